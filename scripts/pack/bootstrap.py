"""The first module of the one-file program: unpack it once, then run it from there.

Python cannot import extension modules from a zip file, so the contents are unpacked into a folder
of the user's own, named after their digest, on the first start and whenever they differ. This file
is `__main__.py` of the archive and uses the standard library only.

What was unpacked is run later without another look, and mostly by root. So no other user may be
able to write there: a folder of another owner, or one that others may write to, is refused.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import shutil
import stat
import sys
import tempfile
import zipfile
from importlib import import_module
from pathlib import Path

_CACHE_VARIABLE = "KUBE_PROXY_CACHE"
SITE = "site/"
ABOUT = "about.json"


def main() -> int:
    """Run `kpctl` if the file is called by that name, `kube-proxy` otherwise."""
    archive = Path(__file__).parent
    try:
        about = read_about(archive)
        check_host(about)
        folder = unpacked(archive, cache_folder(), str(about["digest"]))
    except (OSError, ValueError) as error:
        print(f"{archive.name}: {error}", file=sys.stderr)
        return 1
    sys.path.insert(0, str(folder))
    is_kpctl = Path(sys.argv[0]).name.startswith("kpctl")
    run = import_module("kpctl.cli" if is_kpctl else "kubeproxy.cli").main
    return int(run() or 0)


def read_about(archive: Path) -> dict[str, object]:
    """The digest of the contents, and which Python and machines they are for."""
    with zipfile.ZipFile(archive) as file:
        about: dict[str, object] = json.loads(file.read(ABOUT))
    return about


def check_host(about: dict[str, object]) -> None:
    """Raise ValueError if the extension modules cannot be loaded here."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != about["python"]:
        raise ValueError(f"this file needs Python {about['python']}, and was started by {version}")
    machines, libc = about["machines"], platform.libc_ver()[0]
    assert isinstance(machines, list)
    if platform.machine() not in machines or libc != "glibc":
        here = f"{platform.machine()} with {libc or 'another C library'}"
        raise ValueError(f"this file is for {' and '.join(machines)} with glibc, not for {here}")


def cache_folder() -> Path:
    """Where to unpack: KUBE_PROXY_CACHE, else the user's cache, which systemd may not name."""
    chosen = os.environ.get(_CACHE_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or f"{pwd.getpwuid(os.geteuid()).pw_dir}/.cache"
    return Path(base).absolute() / "kubeproxy"


def unpacked(archive: Path, cache: Path, digest: str) -> Path:
    """The folder with the contents, unpacked if need be. Raises OSError or ValueError."""
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_own(cache)
        folder = cache / digest
        if not folder.is_dir():
            _unpack(archive, folder)
    except OSError as error:
        where = f"{cache} ({_CACHE_VARIABLE} can name another folder)"
        raise OSError(f"cannot unpack into {where}: {error}") from error
    require_own(folder)
    return folder


def require_own(folder: Path) -> None:
    """Raise ValueError unless the folder is ours and only we can write to it."""
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"{folder} is not a folder that only this user can write to; remove it, or name another"
            f" by {_CACHE_VARIABLE}"
        )


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack aside and rename, so that a folder of that name is always whole."""
    aside = Path(tempfile.mkdtemp(prefix="unpacking-", dir=folder.parent))
    umask = os.umask(0o077)
    try:
        with zipfile.ZipFile(archive) as file:
            file.extractall(aside, [name for name in file.namelist() if name.startswith(SITE)])
        try:
            (aside / SITE).rename(folder)
        except OSError:
            if not folder.is_dir():  # another start was quicker
                raise
    finally:
        os.umask(umask)
        shutil.rmtree(aside, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
