"""The program with everything it imports as one folder: the heart of every product.

Dependencies come as wheels, pinned by hash. What is only used by people at a desk (lab, flows,
benchmarks) or by no one at run time (tests, type stubs, C sources) stays out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scripts.pack.source import PYTHON_VERSION, ROOT, Source

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The kernel's name of each architecture, by Debian's."""

_PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5")

UNUSED_DEPENDENCIES = ("pygments", "markdown_it", "mdurl")
"""rich imports them for source code and Markdown only, which no command prints."""

DESK_FOLDERS = ("apiserver", "bench", "demo", "flows", "kubernetes", "lab", "places")
"""Of kpctl: what a person at a desk uses, not one on a node."""

_LEFT_OUT = (
    *("*.pyi", "*.pyx", "*.pxd", "*.c", "*.h", "*.in", "*.cpp", "*.hpp", "*.hash", "*.tmp"),
    *("__pycache__", "tests", "test", ".hash", "bin", "_testcapi.*", "py.typed"),
    # What pip notes for itself differs from machine to machine.
    *("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"),
)


def build_program(target: Path, source: Source, architectures: Iterable[str]) -> None:
    """Put the program and its dependencies for these architectures into `target`.

    Extension modules carry their platform in their names, so those of several stand side by side.
    """
    for architecture in architectures:
        with tempfile.TemporaryDirectory() as folder:
            _install_dependencies(Path(folder), architecture)
            shutil.copytree(folder, target, dirs_exist_ok=True)
    for name in UNUSED_DEPENDENCIES:
        for path in target.glob(f"{name}*"):
            shutil.rmtree(path)
    _copy_own(target)
    for pattern in _LEFT_OUT:
        for path in sorted(target.rglob(pattern), reverse=True):
            _remove(path)
    _stamp(target / "kubeproxy/version.py", source)


def _install_dependencies(target: Path, architecture: str) -> None:
    """Install wheels of this architecture; pip's own settings say where they come from."""
    machine = MACHINES[architecture]
    platforms = [f"--platform={name}_{machine}" for name in _PLATFORMS]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--no-deps", "--no-compile", "--only-binary=:all:"),
            *("--implementation=cp", f"--python-version={PYTHON_VERSION}", *platforms),
            *(f"--target={target}", "--requirement", ROOT / "requirements/runtime.txt"),
        ],
        check=True,
    )


def _copy_own(target: Path) -> None:
    for package, without in (("kubeproxy", ()), ("kpctl", DESK_FOLDERS)):
        ignored = shutil.ignore_patterns("__pycache__", *without)
        shutil.copytree(ROOT / "src" / package, target / package, ignore=ignored)
    shutil.copyfile(ROOT / "LICENSE", target / "kubeproxy/LICENSE")


def _stamp(module: Path, source: Source) -> None:
    """Write the commit into the version module, so that a running program can name it."""
    text = module.read_text()
    stamped = text.replace('\nREVISION = ""\n', f'\nREVISION = "{source.revision}"\n')
    if source.revision and stamped == text:
        raise ValueError(f"{module} has no line for the revision")
    module.write_text(stamped)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def compile_bytecode(tree: Path, installed_as: str) -> None:
    """Compile every module below `tree`, which will lie at `installed_as` where it runs.

    The compiled files are valid without a look at the source and its time. One process, one order
    and one hash seed: equal sources give equal files.
    """
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON_VERSION:
        raise SystemExit(f"bytecode is compiled by Python {PYTHON_VERSION}; this is {sys.version}")
    subprocess.run(
        [
            *(sys.executable, "-I", "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash"),
            *("-s", tree, "-p", installed_as, tree),
        ],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
