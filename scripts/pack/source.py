"""The project as it is packed: where it lies, its version, its commit and the time of that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PYTHON_VERSION = "3.11"
"""What the products run on: bytecode and extension modules fit this version only."""


class Source(NamedTuple):
    """What all products say about their origin."""

    version: str
    kubernetes_version: str
    revision: str
    epoch: int
    """The time of everything in a product, in seconds since 1970: that of the commit."""


def read_source() -> Source:
    """Read the versions from the code, revision and time from git.

    Outside a repository, SOURCE_REVISION and SOURCE_DATE_EPOCH say what git would.
    """
    text = (ROOT / "src/kubeproxy/version.py").read_text()
    constants = dict(re.findall(r'^(\w+) = "(.*)"$', text, re.MULTILINE))
    return Source(
        version=constants["PACKAGE_VERSION"],
        kubernetes_version=constants["KUBERNETES_VERSION"],
        revision=os.environ.get("SOURCE_REVISION") or _revision(),
        epoch=int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or 0),
    )


def _revision() -> str:
    commit = _git("rev-parse", "HEAD")
    return f"{commit}-dirty" if commit and _git("status", "--porcelain") else commit


def _git(*arguments: str, root: Path = ROOT) -> str:
    """The output of git; nothing outside a repository or without git."""
    try:
        done = subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def project_files(root: Path = ROOT) -> list[Path]:
    """Every file of the project, relative to its root: what git knows or would add, else all."""
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", root=root)
    if listed:
        return sorted(path for path in map(Path, listed.splitlines()) if (root / path).is_file())
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


def copy_project(target: Path, root: Path = ROOT) -> None:
    """Copy the files of the project, and nothing else that lies in its folder."""
    for path in project_files(root):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, target / path)
