"""The two system calls for network namespaces, which Python 3.11 does not have.

They concern the calling thread alone. Sockets and processes made afterwards belong to the new
namespace; those made before stay where they are.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def enter_namespace(handle: int) -> None:
    """Take the calling thread into the network namespace of an open file. Raises OSError."""
    _check(_libc.setns(handle, _CLONE_NEWNET))


@contextmanager
def inside_namespace(namespace: Path) -> Iterator[None]:
    """Take the calling thread, and the processes it starts, into a network namespace."""
    with Path("/proc/thread-self/ns/net").open() as home, namespace.open() as there:
        enter_namespace(there.fileno())
        try:
            yield
        finally:
            enter_namespace(home.fileno())


def leave_namespace() -> None:
    """Give the calling thread an empty network namespace of its own. Raises OSError."""
    _check(_libc.unshare(_CLONE_NEWNET))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"network namespace: {os.strerror(number)}")
