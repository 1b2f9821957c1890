"""Archives with the same bytes for the same files: sorted, one time, one owner."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_GZIP_LEVEL = 9


def write_tar(out: IO[bytes], root: Path, epoch: int, prefix: str = "") -> None:
    """Write everything below `root`, owned by root, with `epoch` as time."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in walk(root):
            member = tar.gettarinfo(path, prefix + str(path.relative_to(root)))
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            member.mode = tidy_mode(member.mode, is_directory=member.isdir())
            if member.isreg():
                with path.open("rb") as content:
                    tar.addfile(member, content)
            else:
                tar.addfile(member)


def walk(root: Path) -> Iterator[Path]:
    """Everything below a folder, parents before children, in the order of their names."""
    yield from sorted(root.rglob("*"), key=lambda path: path.parts)


def tidy_mode(mode: int, *, is_directory: bool) -> int:
    """0755 or 0644, whatever the umask of the one who builds was."""
    return 0o755 if is_directory or mode & stat.S_IXUSR else 0o644


def compress(data: bytes) -> bytes:
    """gzip without name and time."""
    out = io.BytesIO()
    with gzip.GzipFile(
        fileobj=out, mode="wb", filename="", mtime=0, compresslevel=_GZIP_LEVEL
    ) as f:
        f.write(data)
    return out.getvalue()


def write_zip(out: IO[bytes], root: Path, epoch: int) -> None:
    """Write the files below `root`, with `epoch` as time."""
    moment = _zip_time(epoch)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in walk(root):
            if path.is_file():
                member = zipfile.ZipInfo(str(path.relative_to(root)), moment)
                mode = tidy_mode(path.stat().st_mode, is_directory=False)
                member.external_attr = (stat.S_IFREG | mode) << 16
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, path.read_bytes())


def _zip_time(epoch: int) -> tuple[int, int, int, int, int, int]:
    at = time.gmtime(max(epoch, 315_532_800))  # the format begins in 1980
    return at.tm_year, at.tm_mon, at.tm_mday, at.tm_hour, at.tm_min, at.tm_sec


def settle(root: Path, epoch: int) -> None:
    """Give everything below `root`, and it, tidy modes and one time, for tools that read both."""
    for path in [*reversed(list(walk(root))), root]:
        if not path.is_symlink():
            path.chmod(tidy_mode(path.stat().st_mode, is_directory=path.is_dir()))
        os.utime(path, (epoch, epoch), follow_symlinks=False)
