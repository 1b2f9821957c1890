"""The carrier process itself: receive commands from the proxy, run the event loop, reply.

Promise: it exits when the proxy does, for whatever reason, because the kernel then closes the
proxy's end of the control socket.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import time
from collections import deque

from kubeproxy.kernel.confine import give_up_privileges
from kubeproxy.modes.userspace.carrier.messages import (
    CloseListener,
    Command,
    FrameDecoder,
    Inspect,
    InspectReply,
    LogMessage,
    OpenListener,
    Reply,
    Sync,
    SyncReply,
    UpdateListener,
    format_frame,
)
from kubeproxy.modes.userspace.carrier.reactor import Reactor
from kubeproxy.modes.userspace.carrier.shared import Shared
from kubeproxy.modes.userspace.carrier.tcp import TcpListener
from kubeproxy.modes.userspace.carrier.udp import UdpListener, UdpSessions

_READ_BYTES = 1 << 18
_MAX_DESCRIPTORS = 253
"""The kernel passes no more descriptors with one message (SCM_MAX_FD)."""
_LOST = -1
"""Stands for a descriptor that did not arrive."""
_LOG_BUFFER_LIMIT = 1 << 20
"""With more than this unsent, log messages are dropped; replies never are."""


class Carrier:
    """The listeners by number, and the control socket."""

    def __init__(self, control: socket.socket, idle_seconds: float) -> None:
        self._control = control
        self._reactor = Reactor(time.monotonic)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._shared = Shared(self._reactor, limit=limit, write=self._log)
        self._sessions = UdpSessions(self._shared, idle_seconds)
        self._listeners: dict[int, TcpListener | UdpListener] = {}
        self._decoder = FrameDecoder()
        self._descriptors: deque[int] = deque()
        self._unsent = bytearray()
        self._is_running = True
        control.setblocking(False)
        self._reactor.register(control.fileno(), select.EPOLLIN, self._on_control)

    def run(self) -> None:
        while self._is_running:
            self._reactor.run_once()

    def _on_control(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._flush()
        if mask & ~select.EPOLLOUT:
            self._receive()

    def _receive(self) -> None:
        if self._shared.make_room():
            return  # commands wait until descriptors are free; the event comes again
        try:
            data, descriptors, flags, _ = socket.recv_fds(
                self._control, _READ_BYTES, _MAX_DESCRIPTORS
            )
        except BlockingIOError:
            return
        except OSError:
            data, descriptors, flags = b"", [], 0
        self._descriptors += descriptors
        if flags & socket.MSG_CTRUNC:
            # Each message has one descriptor, and the kernel drops it if there is no room. Its
            # listener must not get the next one.
            self._descriptors.append(_LOST)
        if not data:
            self._is_running = False
            return
        self._decoder.feed(data)
        for command in self._decoder.commands():
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case OpenListener():
                self._open(command)
            case UpdateListener(number, balance):
                if (listener := self._listeners.get(number)) is not None:
                    listener.update(balance)
            case CloseListener(number):
                self._close(number)
            case Sync(number):
                self._send(SyncReply(number, self._shared.connections, self._shared.sessions))
            case Inspect(number, most_flows):
                self._send(InspectReply(number, *self._shared.carried.report(most_flows)))

    def _open(self, command: OpenListener) -> None:
        descriptor = self._descriptors.popleft()
        if descriptor == _LOST:
            self._shared.log(command.service, "not carried", os.strerror(errno.EMFILE))
            return
        handle = socket.socket(fileno=descriptor)
        listener: TcpListener | UdpListener
        try:
            if command.is_udp:
                listener = UdpListener(handle, command.service, self._sessions)
            else:
                listener = TcpListener(handle, command.service, self._shared)
        except OSError as error:
            # The kernel watches no more descriptors for us: out of memory, or over its limit.
            handle.close()
            self._shared.log(command.service, "not carried", str(error))
            return
        self._shared.budget.take(1)
        listener.update(command.balance)
        self._listeners[command.number] = listener

    def _close(self, number: int) -> None:
        listener = self._listeners.pop(number, None)
        if listener is not None:
            listener.close()
            self._shared.budget.release(1)

    def _log(self, text: str, service: str) -> None:
        if len(self._unsent) < _LOG_BUFFER_LIMIT:
            self._send(LogMessage(text, service))

    def _send(self, reply: Reply) -> None:
        self._unsent += format_frame(reply)
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._control.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._is_running = False
            return
        del self._unsent[:sent]
        writable = select.EPOLLOUT if self._unsent else 0
        self._reactor.modify(self._control.fileno(), select.EPOLLIN | writable)


def main(arguments: list[str]) -> None:
    """`python -m kubeproxy.modes.userspace.carrier DESCRIPTOR UDP_IDLE_SECONDS`."""
    descriptor, idle_seconds = arguments
    # Ctrl-C is meant for the proxy, which then closes the control socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(int(descriptor), False)
    give_up_privileges(0)  # listeners come bound, and connecting needs no capability
    Carrier(socket.socket(fileno=int(descriptor)), float(idle_seconds)).run()
