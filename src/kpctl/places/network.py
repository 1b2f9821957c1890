"""A network namespace with nothing but loopback, that cannot outlive the process that made it.

A small process holds a network and a process namespace; it ends when our end of its standard input
closes, also when we are killed, and the kernel then ends everything that was started inside.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_HOLD = "ip link set lo up && echo up && exec cat"


class PrivateNetwork:
    """An open network; close it to end everything inside."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"up\n":
            self.close()
            raise OSError("cannot make a network namespace; this needs root")

    @property
    def namespace(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/ns/net")

    @property
    def command(self) -> tuple[str, ...]:
        """The words that run the rest of a command line inside."""
        pids = f"/proc/{self._holder.pid}/ns/pid_for_children"
        return ("nsenter", f"--net={self.namespace}", f"--pid={pids}")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Take the calling thread, and the processes it starts, into the network."""
        with Path("/proc/thread-self/ns/net").open() as home, self.namespace.open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.stdout.close()
        try:
            self._holder.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()


def _enter(handle: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
