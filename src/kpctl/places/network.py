"""A network namespace with nothing but loopback, that cannot outlive the process that made it.

A small process holds a network and a process namespace. It ends when our end of its standard input
closes, also when we are killed, and the kernel then ends everything that was started inside.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kpctl.places.netns import inside_namespace

_HOLD = "ip link set lo up && echo up && exec cat"


class PrivateNetwork:
    """An open network. Closing it ends everything inside."""

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
        with inside_namespace(self.namespace):
            yield

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
