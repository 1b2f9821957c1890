"""The proxy's side of the carrier process: start it, command it, notice when it dies.

Promise: commands are done when `order` returns. Leaves to others: which listeners there are, and
telling a new carrier about them (`listeners`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterable

from msgspec import Struct

from kubeproxy.errors import Drifted, KernelError
from kubeproxy.modes.userspace.carrier.messages import (
    Command,
    Done,
    Frames,
    Say,
    Sync,
    format_frame,
)

ANSWER_SECONDS = 30.0
"""A carrier that does not answer for so long is stuck, and is killed."""

_MODULE = "kubeproxy.modes.userspace.carrier"
_READ_BYTES = 1 << 16
_STOP_SECONDS = 2.0

Hear = Callable[[Say], None]


class Order(Struct, frozen=True):
    """A command, with the listening socket that goes with an `Open`."""

    command: Command
    handle: socket.socket | None = None


class Supervisor:
    """One carrier process, or none."""

    def __init__(
        self, idle_seconds: float, hear: Hear, *, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._idle_seconds = idle_seconds
        self._answer_seconds = answer_seconds
        self._hear = hear
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._frames = Frames()
        self._syncs = 0
        self._done: dict[int, asyncio.Future[Done]] = {}
        self._gone = asyncio.Event()
        self._gone.set()

    @property
    def is_running(self) -> bool:
        return not self._gone.is_set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def wait_gone(self) -> None:
        """Return once there is no carrier."""
        await self._gone.wait()

    async def start(self) -> None:
        """A new carrier that knows no listener yet; an old one is ended first."""
        await self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        arguments = ("-m", _MODULE, str(theirs.fileno()), repr(self._idle_seconds))
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        except OSError as error:
            ours.close()
            raise KernelError(f"cannot start the carrier process: {error}") from error
        finally:
            theirs.close()
        self._control = ours
        self._frames = Frames()
        self._gone.clear()
        asyncio.get_running_loop().add_reader(ours, self._on_answers)

    async def stop(self) -> None:
        """End the carrier: it leaves when its control socket closes, or is killed."""
        self._hang_up()
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

    def _hang_up(self) -> None:
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
        self._gone.set()
        for waiting in self._done.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("its control socket was closed"))
        self._done.clear()

    async def order(self, orders: Iterable[Order]) -> Done:
        """Send commands and wait until they are done.

        Raises Drifted if the carrier is gone or stuck: what it knows is then lost with it.
        """
        if self._control is None:
            raise Drifted("the carrier process does not run")
        control = self._control
        try:
            async with asyncio.timeout(self._answer_seconds):
                for order in orders:
                    await _send(control, format_frame(order.command), order.handle)
                return await self._sync(control)
        except TimeoutError:
            await self.stop()
            raise Drifted(f"the carrier did not answer within {self._answer_seconds:g} s") from None
        except OSError as error:
            await self.stop()
            raise Drifted(f"the carrier process is gone: {error}") from error

    async def _sync(self, control: socket.socket) -> Done:
        self._syncs += 1
        waiting: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._done[self._syncs] = waiting
        await _send(control, format_frame(Sync(self._syncs)), None)
        return await waiting

    def _on_answers(self) -> None:
        if self._control is None:
            return
        try:
            data = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        self._frames.feed(data)
        for answer in self._frames.answers():
            if isinstance(answer, Say):
                self._hear(answer)
            elif waiting := self._done.pop(answer.number, None):
                waiting.set_result(answer)


async def _send(control: socket.socket, frame: bytes, handle: socket.socket | None) -> None:
    """The whole frame; a descriptor goes with its first byte."""
    if handle is not None:
        await _send_descriptor(control, frame[:1], handle.fileno())
        frame = frame[1:]
    await asyncio.get_running_loop().sock_sendall(control, frame)


async def _send_descriptor(control: socket.socket, byte: bytes, descriptor: int) -> None:
    while True:
        try:
            socket.send_fds(control, [byte], [descriptor])
        except BlockingIOError:
            await _writable(control)
        else:
            return


async def _writable(control: socket.socket) -> None:
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
