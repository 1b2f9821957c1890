"""Files that other people write: read without waiting for a writer, and never without a limit.

A path may lead to a pipe, a device that has no end, or a file of many gigabytes. Which limit fits,
and what a failure means, is left to the caller.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_limited(path: str | Path, most_bytes: int) -> bytes:
    """Read any file to its end, also a pipe. Raises OSError, also for a file that is larger."""
    with Path(path).open("rb") as file:
        return _up_to(file.read(most_bytes + 1), most_bytes)


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """Read a regular file at once. Raises OSError, also for what would have to be waited for."""
    with open(path, "rb", opener=open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        content = file.read(most_bytes + 1)
    if content is None:  # a file of the kernel that would block
        raise OSError(errno.EAGAIN, "it has no content yet")
    return _up_to(content, most_bytes)


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file. A pipe is opened too, without waiting for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _up_to(content: bytes, most_bytes: int) -> bytes:
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return content
