"""The carrier process itself: takes commands from the proxy, runs the loop, answers.

Promise: it ends when the proxy does, whatever way that happens, because then the control socket
reports its end.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import time
from collections import deque

from kubeproxy.modes.userspace.carrier.messages import (
    Answer,
    Close,
    Command,
    Done,
    Frames,
    Open,
    Say,
    Sync,
    Update,
    format_frame,
)
from kubeproxy.modes.userspace.carrier.reactor import Reactor
from kubeproxy.modes.userspace.carrier.shared import Shared
from kubeproxy.modes.userspace.carrier.tcp import TcpListener
from kubeproxy.modes.userspace.carrier.udp import UdpListener, UdpSessions

_READ_BYTES = 1 << 18
_MOST_DESCRIPTORS = 253
"""The kernel passes no more with one message."""
_LONGEST_OUTBOX = 1 << 20
"""Beyond this, what is only for the log is dropped rather than kept."""


class Carrier:
    """Listeners by number, and the conversation with the proxy."""

    def __init__(self, control: socket.socket, idle_seconds: float) -> None:
        self._control = control
        self._reactor = Reactor(time.monotonic)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._shared = Shared(self._reactor, limit=limit, say=self._say)
        self._sessions = UdpSessions(self._shared, idle_seconds)
        self._listeners: dict[int, TcpListener | UdpListener] = {}
        self._frames = Frames()
        self._descriptors: deque[int] = deque()
        self._outbox = bytearray()
        self._is_running = True
        control.setblocking(False)
        self._reactor.register(control.fileno(), select.EPOLLIN, self._on_control)

    def run(self) -> None:
        while self._is_running:
            self._reactor.turn()

    def _on_control(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._flush()
        if mask & ~select.EPOLLOUT:
            self._receive()

    def _receive(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, _READ_BYTES, _MOST_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        self._descriptors += descriptors
        if not data:
            self._is_running = False
            return
        self._frames.feed(data)
        for command in self._frames.commands():
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Open():
                self._open(command)
            case Update(number, balance):
                self._listeners[number].update(balance)
            case Close(number):
                self._listeners.pop(number).close()
                self._shared.budget.release(1)
            case Sync(number):
                self._answer(Done(number, self._shared.connections, self._shared.sessions))

    def _open(self, command: Open) -> None:
        handle = socket.socket(fileno=self._descriptors.popleft())
        self._shared.budget.take(1)
        listener: TcpListener | UdpListener
        if command.is_udp:
            listener = UdpListener(handle, command.label, self._sessions)
        else:
            listener = TcpListener(handle, command.label, self._shared)
        listener.update(command.balance)
        self._listeners[command.number] = listener

    def _say(self, text: str, label: str) -> None:
        if len(self._outbox) < _LONGEST_OUTBOX:
            self._answer(Say(text, label))

    def _answer(self, answer: Answer) -> None:
        self._outbox += format_frame(answer)
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._control.send(self._outbox)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._is_running = False
            return
        del self._outbox[:sent]
        waiting = select.EPOLLOUT if self._outbox else 0
        self._reactor.modify(self._control.fileno(), select.EPOLLIN | waiting)


def main(arguments: list[str]) -> None:
    """`python -m kubeproxy.modes.userspace.carrier DESCRIPTOR UDP_IDLE_SECONDS`."""
    descriptor, idle_seconds = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the proxy, which then closes us
    os.set_inheritable(int(descriptor), False)
    Carrier(socket.socket(fileno=int(descriptor)), float(idle_seconds)).run()
