"""A process that is killed at one of its calls to the kernel, chosen by number.

A call is one netlink datagram, or one run of a tool. A restore of several tables has further places
to be cut at: after each table that it has committed, since nothing else of it can be seen from
outside. The process is really killed (SIGKILL, by itself), so nothing is tidied up.

Standard library and the program's own edges only, because a guest kernel uses it as well.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from kubeproxy.kernel.netlink import socket as netlink

Work = Callable[[], Coroutine[Any, Any, None]]

_COMMIT = b"\nCOMMIT\n"


class Calls:
    """Counts the places at which this process can be cut, and kills it at one of them."""

    def __init__(self, cut_at: int | None) -> None:
        self._cut_at = cut_at
        self.count = 0

    def next(self) -> bool:
        """Is this the place?"""
        self.count += 1
        return self.count - 1 == self._cut_at

    def pass_by(self) -> None:
        if self.next():
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Socket:
    """A netlink socket whose datagrams are counted."""

    def __init__(self, real: socket.socket, calls: Calls) -> None:
        self._real = real
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send(self, data: bytes) -> int:
        self._calls.pass_by()
        return self._real.send(data)


def install(calls: Calls) -> None:
    """Count every call to the kernel of this process from here on."""
    opened, start = netlink._open, asyncio.create_subprocess_exec

    async def started(*argv: str, **options: Any) -> asyncio.subprocess.Process:
        calls.pass_by()
        for tables in range(1, _tables_in(options["stdin"]) if _is_restore(argv[0]) else 1):
            if calls.next():
                _keep_tables(options["stdin"], tables)
                process = await start(*argv, **options)
                await process.wait()
                die()
        return await start(*argv, **options)

    netlink._open = lambda protocol: _Socket(opened(protocol), calls)  # type: ignore[assignment, return-value]
    asyncio.create_subprocess_exec = started  # type: ignore[assignment]


def _is_restore(program: str) -> bool:
    return program.endswith("-restore")


def _tables_in(handle: int) -> int:
    return os.pread(handle, os.fstat(handle).st_size, 0).count(_COMMIT)


def _keep_tables(handle: int, count: int) -> None:
    """Leave nothing in the file but its first tables."""
    content, end = os.pread(handle, os.fstat(handle).st_size, 0), 0
    for _ in range(count):
        end = content.index(_COMMIT, end) + len(_COMMIT)
    os.ftruncate(handle, end)


def run_cut(work: Work, cut_at: int | None = None) -> int:
    """Run `work` in a process of its own, to its end or to the cut.

    Return how many places it passed, or -1 if it was cut. Raises what it printed if it failed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_and_exit(work, cut_at, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return -1
    if os.WEXITSTATUS(status):
        raise AssertionError(told)
    return int(told)


def _run_and_exit(work: Work, cut_at: int | None, writing: int) -> None:
    status = 1
    try:
        calls = Calls(cut_at)
        install(calls)
        asyncio.run(work())
        os.write(writing, str(calls.count).encode())
        status = 0
    except BaseException:
        os.write(writing, traceback.format_exc().encode())
    finally:
        # Not a part of the test run: nothing of it must be flushed or closed by this process.
        os._exit(status)
