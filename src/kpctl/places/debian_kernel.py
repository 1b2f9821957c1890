"""Debian's kernels as files: downloaded by this machine's apt, unpacked in the cache only.

Promise: nothing outside the cache is changed; a kernel that is in the cache is not fetched again.
A kernel is named by its package (`linux-image-amd64` is whatever that depends on) or by the path
of a .deb file, for kernels that the configured sources do not have.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from kubeproxy.errors import ProxyError

_SECONDS = 600.0


class NoKernel(ProxyError):
    """A kernel cannot be had here. The text says why, and what to do."""


class Kernel(msgspec.Struct, frozen=True):
    """A kernel's files: the image, and the folder in whose lib/modules its modules are."""

    release: str
    image: Path
    folder: Path

    @property
    def modules(self) -> Path:
        return self.folder / "lib/modules" / self.release


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kubeproxy-tests" / "kernels"


def find_kernel(name: str) -> Kernel:
    """The kernel of a package or of a .deb file, fetched if necessary. Raises NoKernel."""
    if name.endswith(".deb"):
        return unpack_kernel(Path(name))
    package = _concrete_package(name)
    folder = cache_folder() / package
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as draft:
            _run(["apt-get", "download", "-qq", package], Path(draft))
            (file,) = Path(draft).glob("*.deb")
            unpack_kernel(file)
    return _kernel(folder)


def unpack_kernel(file: Path) -> Kernel:
    """Unpack a package into the cache, unless it is there."""
    folder = cache_folder() / file.name.partition("_")[0]
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        draft = folder.with_suffix(f".{os.getpid()}")
        try:
            _run(["dpkg-deb", "--extract", str(file.resolve()), str(draft)], Path("/"))
            # Debian's packages list the modules when they are installed.
            _run(["depmod", "-b", str(draft), _kernel(draft).release], Path("/"))
            _put_in_place(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return _kernel(folder)


def _put_in_place(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError:
        # Another process may have unpacked the same package meanwhile.
        if not folder.is_dir():
            raise


def _kernel(folder: Path) -> Kernel:
    images = sorted(folder.glob("boot/vmlinuz-*"))
    if len(images) != 1:
        raise NoKernel(f"{folder.name} is no package of one kernel")
    release = images[0].name.removeprefix("vmlinuz-")
    return Kernel(release=release, image=images[0], folder=folder)


def _concrete_package(name: str) -> str:
    """The package with the files: a name without a version depends on it."""
    shown = _run(["apt-cache", "depends", "--important", name], Path("/"))
    found = [line.split()[1] for line in shown.splitlines() if "Depends: linux-image-" in line]
    return found[0] if found else name


def _run(argv: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except FileNotFoundError as error:
        raise NoKernel(f"{argv[0]} is missing, which gets Debian's kernels") from error
    except subprocess.TimeoutExpired as error:
        raise NoKernel(f"{' '.join(argv)} took longer than {_SECONDS:g} s") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip()
        raise NoKernel(
            f"{' '.join(argv)} failed: {said}; update apt's lists, or name other packages "
            'or .deb files: make test-kernels KERNELS="…"'
        ) from error
    return done.stdout
