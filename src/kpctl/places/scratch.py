"""A network namespace without a name that lasts as long as a `with` block.

For tests and benchmarks that program a kernel: the calling thread enters a fresh namespace, and
on leaving it the kernel removes the namespace with everything in it, also after a crash, because
nothing else holds it. Sockets opened inside keep belonging to it; child processes start in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def scratch_namespace() -> Iterator[None]:
    """Run the block in a new network namespace, with `lo` up."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(_CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            _check(_libc.setns(home, _CLONE_NEWNET))
    finally:
        os.close(home)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"network namespace: {os.strerror(number)}")
