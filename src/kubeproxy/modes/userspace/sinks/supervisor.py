"""The proxy's side of the carrier process: start it, send it commands, notice when it exits.

Promise: commands have taken effect when `execute` returns. Leaves to others: which listeners there
are, and sending them to a new carrier (`sockets`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.errors import Drifted, KernelError
from kubeproxy.logs import get_logger
from kubeproxy.modes.userspace.carrier.messages import (
    Command,
    FrameDecoder,
    Inspect,
    InspectReply,
    LogMessage,
    Sync,
    SyncReply,
    format_frame,
)

REPLY_TIMEOUT_SECONDS = 30.0
"""A carrier that does not reply for so long is stuck, and is killed."""
REMINDER_SECONDS = 30.0
"""How often it is logged that a carrier has not replied since its start."""

_MODULE = "kubeproxy.modes.userspace.carrier"
_READ_BYTES = 1 << 16
_STOP_SECONDS = 2.0

LogWriter: TypeAlias = Callable[[LogMessage], None]

logger = get_logger(__name__)


class Request(Struct, frozen=True):
    """A command, with the listening socket that goes with an `OpenListener`."""

    command: Command
    handle: socket.socket | None = None


class Supervisor:
    """One carrier process, or none."""

    def __init__(
        self,
        idle_seconds: float,
        log: LogWriter,
        *,
        reply_timeout_seconds: float = REPLY_TIMEOUT_SECONDS,
        reminder_seconds: float = REMINDER_SECONDS,
    ) -> None:
        self._idle_seconds = idle_seconds
        self.reply_timeout_seconds = reply_timeout_seconds
        self._reminder_seconds = reminder_seconds
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._decoder = FrameDecoder()
        self._asked = 0
        self._waiting: dict[int, asyncio.Future[SyncReply | InspectReply]] = {}
        self._has_replied = False
        self._exited = asyncio.Event()
        self._exited.set()

    @property
    def is_running(self) -> bool:
        return not self._exited.is_set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def wait_exited(self) -> None:
        """Wait until there is no carrier."""
        await self._exited.wait()

    async def start(self) -> None:
        """Start a carrier without any listener; an old one is stopped first.

        That it has started shows in its first reply, which is not waited for here. Raises
        KernelError.
        """
        await self.stop()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise KernelError(f"cannot start the carrier process: {error}") from error
        ours.setblocking(False)
        arguments = ("-m", _MODULE, str(theirs.fileno()), repr(self._idle_seconds))
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                # An image or a package has the modules where Python does not look by itself.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        except OSError as error:
            ours.close()
            raise KernelError(f"cannot start the carrier process: {error}") from error
        finally:
            theirs.close()
        self._control = ours
        self._decoder = FrameDecoder()
        self._has_replied = False
        self._exited.clear()
        asyncio.get_running_loop().add_reader(ours, self._on_readable)

    async def stop(self) -> None:
        """Stop the carrier: it exits when its control socket is closed, or is killed."""
        self._close_control()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _close_control(self) -> None:
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
        self._exited.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("its control socket was closed"))
        self._waiting.clear()

    async def execute(self, requests: Iterable[Request]) -> SyncReply:
        """Send commands and wait until they are done.

        Raises Drifted if the carrier has exited or is stuck: its state is then lost with it.
        """
        reply = await self._exchange(requests, Sync)
        assert isinstance(reply, SyncReply)
        return reply

    async def inspect(self, most_flows: int) -> InspectReply:
        """Ask what is carried. Raises Drifted as `execute` does."""
        reply = await self._exchange((), lambda number: Inspect(number, most_flows))
        assert isinstance(reply, InspectReply)
        return reply

    async def _exchange(
        self, requests: Iterable[Request], question: Callable[[int], Sync | Inspect]
    ) -> SyncReply | InspectReply:
        """Send commands, then a question, and wait for its reply."""
        if self._control is None:
            raise Drifted("the carrier process does not run")
        control = self._control
        limit = self.reply_timeout_seconds
        try:
            if not self._has_replied:
                await self._wait_started(control)
            async with asyncio.timeout(limit):
                for request in requests:
                    await _send(control, format_frame(request.command), request.handle)
                return await self._ask(control, question)
        except TimeoutError:
            await self.stop()
            raise Drifted(f"the carrier did not answer within {limit:g} s") from None
        except OSError as error:
            await self.stop()
            raise Drifted(f"the carrier process is gone: {error}") from error

    async def _wait_started(self, control: socket.socket) -> None:
        """Wait for the first reply of a carrier, as long as it takes.

        It comes after a start of Python, which may take minutes on a starved node. A carrier that
        is killed meanwhile only starts all over, and one that fails ends by itself.
        """
        reminder = asyncio.create_task(self._report_waiting())
        try:
            await self._ask(control, Sync)
        finally:
            reminder.cancel()

    async def _report_waiting(self) -> None:
        while True:
            await asyncio.sleep(self._reminder_seconds)
            logger.info(
                "The carrier process has not replied since its start; waiting", pid=self.pid
            )

    async def _ask(
        self, control: socket.socket, question: Callable[[int], Sync | Inspect]
    ) -> SyncReply | InspectReply:
        self._asked += 1
        waiting: asyncio.Future[SyncReply | InspectReply] = (
            asyncio.get_running_loop().create_future()
        )
        self._waiting[self._asked] = waiting
        await _send(control, format_frame(question(self._asked)), None)
        return await waiting

    def _on_readable(self) -> None:
        if self._control is None:
            return
        try:
            data = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_control()
            return
        self._decoder.feed(data)
        self._has_replied = True
        for reply in self._decoder.replies():
            match reply:
                case LogMessage():
                    self._log(reply)
                case SyncReply(number) | InspectReply(number):
                    waiting = self._waiting.pop(number, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(reply)


async def _send(control: socket.socket, frame: bytes, handle: socket.socket | None) -> None:
    """Send a whole frame; a descriptor goes with its first byte."""
    if handle is not None:
        await _send_descriptor(control, frame[:1], handle.fileno())
        frame = frame[1:]
    await asyncio.get_running_loop().sock_sendall(control, frame)


async def _send_descriptor(control: socket.socket, byte: bytes, descriptor: int) -> None:
    while True:
        try:
            socket.send_fds(control, [byte], [descriptor])
        except BlockingIOError:
            await _wait_writable(control)
        else:
            return


async def _wait_writable(control: socket.socket) -> None:
    """Wait until a socket is writable; asyncio offers this only together with sending bytes."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(control, wake)
    try:
        await ready
    finally:
        loop.remove_writer(control)
