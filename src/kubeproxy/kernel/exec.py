"""Run one of the kernel's tools: arguments and input in, status and output back.

Why: every tool call of the program takes the same care. Promise: a call ends within its time, or
the process is killed; the error about a missing tool names the package that has it; a host without
descriptors, memory or processes left is an error to retry; cancelling the caller kills the tool
too. Leaves to others: what a status means.

Input and output are files in memory rather than pipes: a restore of a whole cluster is 16 MB, and
neither the tool nor our event loop should wait for the other in pieces of 64 kB.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterator, Sequence

from msgspec import Struct

from kubeproxy.errors import Busy, Drifted, KernelError, ToolMissing
from kubeproxy.go.text import format_os_error

DEFAULT_TIMEOUT_SECONDS = 300.0
"""Long enough for a whole cluster on a slow node; a tool beyond it is stuck."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})

_PACKAGES = {
    "iptables": "iptables",
    "ip6tables": "iptables",
    "modprobe": "kmod",
    "nft": "nftables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "ipset": "ipset",
}
"""Debian's names, by the first part of the program's name."""


class Completed(Struct, frozen=True, gc=False):
    """How a tool ended and what it printed."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Everything it printed, for people."""
        return "\n".join(part.strip() for part in (self.stdout, self.stderr) if part.strip())

    @property
    def is_success(self) -> bool:
        return self.status == 0


def package_of(program: str) -> str:
    """The package that installs a program."""
    base = program.rpartition("/")[2]
    return _PACKAGES.get(base.partition("-")[0], base)


async def run_tool(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> Completed:
    """Run a tool to its end, whatever its status.

    Raises ToolMissing if it is not there, Busy if the host has no room for it, Drifted if it had
    to be killed: what it did until then is unknown.
    """
    with contextlib.ExitStack() as files:
        given, stdout, stderr = (
            files.enter_context(_memory_file(argv[0], content)) for content in (stdin, b"", b"")
        )
        process = await _start(argv, given, stdout, stderr)
        try:
            async with asyncio.timeout(timeout_seconds):
                status = await process.wait()
        except TimeoutError:
            await _kill(process)
            raise Drifted(
                f"{argv[0]} did not end within {timeout_seconds:g} s and was killed; "
                "what it changed is unknown"
            ) from None
        except BaseException:  # above all cancellation
            await _kill(process)
            raise
        return Completed(tuple(argv), status, _content(stdout), _content(stderr))


@contextlib.contextmanager
def _memory_file(program: str, content: bytes) -> Iterator[int]:
    """A file in memory that holds `content`, positioned at its start. Raises Busy."""
    handle = -1
    try:
        handle = os.memfd_create("tool", os.MFD_CLOEXEC)
        written = memoryview(content)
        while written:
            written = written[os.write(handle, written) :]
        os.lseek(handle, 0, os.SEEK_SET)
    except OSError as error:
        if handle >= 0:
            os.close(handle)
        raise _no_room(program, error) from error
    try:
        yield handle
    finally:
        os.close(handle)


def _no_room(program: str, error: OSError) -> Busy:
    return Busy(f"cannot run {program}: {format_os_error(error)}", errno=error.errno or 0)


def _content(handle: int) -> str:
    # The tool has moved the file offset, which we share with it, so the file is read by position.
    size = os.fstat(handle).st_size
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(handle, size, sum(map(len, parts)))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts).decode(errors="replace")


async def _start(
    argv: Sequence[str], stdin: int, stdout: int, stderr: int
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            # Ctrl-C at the terminal is for us; a half-done restore would be worse than a late one.
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ToolMissing(
            f'"{argv[0]}" is not installed or not in PATH; '
            f'install the package "{package_of(argv[0])}"'
        ) from None
    except OSError as error:
        if error.errno in _EXHAUSTED:
            raise _no_room(argv[0], error) from error
        raise KernelError(f"cannot run {argv[0]}: {error}", errno=error.errno or 0) from error
    except RuntimeError as error:
        # asyncio waits for a process in a thread, and there was none to be had. The tool runs.
        raise Drifted(f"cannot wait for {argv[0]}: {error}; what it changes is unknown") from error


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    # The process dies at once, so this wait is short.
    await process.wait()
