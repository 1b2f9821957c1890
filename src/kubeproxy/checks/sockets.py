"""All checks under way, one socket each, behind one epoll.

Nothing here waits. What an endpoint does ends at its own check: an error of the network is a
failure of that endpoint, a shortage on this host is a failure of none.

A TCP connection ends with a reset rather than an orderly close: no TIME_WAIT is left on the node,
and conntrack forgets the flow after 10 s instead of 120 s, which at 10,000 endpoints are 110,000
entries less. Its socket is disconnected (connect to AF_UNSPEC does both) and used again: making,
registering and closing one costs as much as a third of a check.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable

from kubeproxy.checks.attempts import ATTEMPTS, Attempt
from kubeproxy.checks.condition import Failure
from kubeproxy.checks.schedule import Target
from kubeproxy.errors import fault_text
from kubeproxy.facts.policy import CheckKind

_AT_A_TIME = 4
"""How many events are taken before the time is looked at. Each may be a TLS handshake, of 1 ms, or
of 10 if the endpoint has a key of RSA with a large exponent."""
_MOST_IDLE = 256
"""How many sockets wait to be used again."""
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
"""Edge-triggered, so that one registration serves a socket for as long as it lives."""

SHORTAGES = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.ENOSPC,  # fs.epoll.max_user_watches
        errno.EAGAIN,
        errno.EADDRNOTAVAIL,  # all ports of this host are in use, or it has no such address
    }
)
"""What this host lacks; it says nothing about the endpoint."""

_KINDS = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timeout",
}
_REUSED = frozenset({CheckKind.TCP, CheckKind.HTTP})
"""TLS keeps state about its socket. UDP has another port for each check, so that a late answer
counts for no other."""

_connect = ctypes.CDLL(None).connect
_connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_NOWHERE = struct.pack("=H14x", socket.AF_UNSPEC)
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, for no time: closing resets the connection."""

Finished = Callable[[Target, Failure | None], None]
Skipped = Callable[[Target, str], None]


class CheckSockets:
    """Begins checks, goes on with them when their sockets are ready, and reports how they end."""

    def __init__(self, finished: Finished, skipped: Skipped) -> None:
        """`skipped` is called with a reason for checks that this host could not make."""
        self._finished = finished
        self._skipped = skipped
        self._epoll: select.epoll | None = None
        self._attempts: dict[int, Attempt] = {}
        self._idle: dict[bool, list[socket.socket]] = {False: [], True: []}
        """Sockets to be used again, by whether they are of IPv6."""
        self._left = 0
        """How many events may be left of those that had arrived when `go_on` began with them."""

    def __len__(self) -> int:
        return len(self._attempts)

    def close(self) -> None:
        for attempt in tuple(self._attempts.values()):
            self.abandon(attempt.target)
        for sock in (*self._idle[False], *self._idle[True]):
            sock.close()
        if self._epoll is not None:
            self._epoll.close()

    def begin(self, target: Target) -> None:
        """Begin the check of a target. It may be over at once."""
        try:
            sock = self._socket(target)
        except OSError as error:
            self._fail(target, error)
            return
        target.descriptor = sock.fileno()
        self._attempts[target.descriptor] = ATTEMPTS[target.check.kind](target, sock)
        number = sock.connect_ex((target.address, target.port))
        if number not in (0, errno.EINPROGRESS):
            self.abandon(target)
            self._fail(target, OSError(number, ""))

    def _socket(self, target: Target) -> socket.socket:
        kind, is_ipv6 = target.check.kind, ":" in target.address
        if kind in _REUSED and self._idle[is_ipv6]:
            return self._idle[is_ipv6].pop()
        is_stream = kind is not CheckKind.UDP
        sock = socket.socket(
            socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            socket.SOCK_NONBLOCK | (socket.SOCK_STREAM if is_stream else socket.SOCK_DGRAM),
        )
        try:
            if is_stream:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Of a client, this delays the last packet of the handshake, and it outlasts a
                # disconnect. If there is nothing but a connect, the reset replaces that packet, and
                # the program behind the port never sees a connection that is of no use to it; else
                # the request carries it.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
            self._epoll = self._epoll or select.epoll()
            self._epoll.register(sock, _EVENTS)
        except OSError:
            sock.close()
            raise
        return sock

    def abandon(self, target: Target) -> None:
        """End the check of a target, if one is under way, without an outcome."""
        descriptor, target.descriptor = target.descriptor, -1
        attempt = self._attempts.pop(descriptor, None)
        if attempt is None:
            return
        sock = attempt.sock
        idle = self._idle[":" in target.address]
        is_reused = target.check.kind in _REUSED and len(idle) < _MOST_IDLE
        if is_reused and _connect(descriptor, _NOWHERE, len(_NOWHERE)) == 0:
            idle.append(sock)
        else:
            sock.close()  # that takes it out of the epoll as well

    def go_on(self, until: float) -> bool:
        """Go on with whatever is ready, for as long as `time.thread_time` is below `until`.

        Return whether that was all that had arrived when the first call began since it last was.
        Not all there is: endpoints that never cease to send would keep us from anything else.
        """
        # The kernel has each socket once in its list, and a new event puts it at the end. So after
        # as many events as there are sockets, none is left of those that were there.
        self._left = self._left or len(self._attempts) + sum(map(len, self._idle.values()))
        while self._epoll is not None:
            found = self._epoll.poll(0, _AT_A_TIME)
            for descriptor, events in found:
                # A socket that waits to be used again has events, too.
                attempt = self._attempts.get(descriptor)
                if attempt is not None:
                    self._go_on_with(attempt, events)
            self._left -= len(found)
            if len(found) < _AT_A_TIME or self._left <= 0:
                break
            if time.thread_time() >= until:
                return False
        self._left = 0
        return True

    def _go_on_with(self, attempt: Attempt, events: int) -> None:
        target = attempt.target
        try:
            if not attempt.ready(events):
                return
        except OSError as error:
            self.abandon(target)
            self._fail(target, error)
        except Exception as fault:  # of ours, whatever an endpoint did to bring it out
            self.abandon(target)
            self._skipped(target, fault_text(fault))
        else:
            self.abandon(target)
            self._finished(target, attempt.failure)

    def _fail(self, target: Target, error: OSError) -> None:
        number = error.errno or 0
        text = os.strerror(number).lower()
        if number in SHORTAGES:
            self._skipped(target, text)
        else:
            self._finished(target, Failure(_KINDS.get(number, "unreachable"), text))
