"""Files that other people write: read without waiting for a writer, and never without a limit.

A path may lead to a pipe, a device that has no end, or a file of many gigabytes. Which limit fits,
and what a failure means, is left to the caller.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_PIECE_BYTES = 1 << 20


def read_limited(path: str | Path, most_bytes: int) -> bytes:
    """Read any file to its end, also a pipe. Raises OSError, also for a file that is larger."""
    with Path(path).open("rb") as file:
        return _read(file, os.fstat(file.fileno()).st_size, most_bytes)


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """Read a regular file at once. Raises OSError, also for what would have to be waited for."""
    with open(path, "rb", opener=open_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return _read(file, status.st_size, most_bytes)


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file. A pipe is opened too, without waiting for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(file: BinaryIO, expected: int, most_bytes: int) -> bytes:
    """Read to the end. Python makes room for all that is asked for, so no more is than expected."""
    parts = [_piece(file, min(expected, most_bytes) + 1)]
    left = most_bytes + 1 - len(parts[0])
    if len(parts[0]) > expected:  # it has grown, or does not know its size
        while left > 0 and (more := _piece(file, min(_PIECE_BYTES, left))):
            parts.append(more)
            left -= len(more)
    if left <= 0:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return b"".join(parts)


def _piece(file: BinaryIO, size: int) -> bytes:
    found: bytes | None = file.read(size)
    if found is None:  # a file of the kernel that would block
        raise OSError(errno.EAGAIN, "it has no content yet")
    return found
