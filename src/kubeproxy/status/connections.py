"""The listening sockets and open connections of one server, bounded in number, bytes and age.

Why: what outsiders open must never use up what the proxy itself needs: descriptors for tools and
netlink, memory, time. Promise: a new client is always let in and served. At the limit, the
connection that has waited longest without a whole request goes instead. A failed accept is retried
and logged once in a while. Leaves to others: what is served.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import time
from collections.abc import Callable

from kubeproxy.facts.address import join_host_port
from kubeproxy.go.text import format_os_error
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit
from kubeproxy.status.connection import Connection, Handler, State
from kubeproxy.status.pacing import Pacing

logger = get_logger(__name__)

MAX_CONNECTIONS = 1000
MIN_CONNECTIONS = 8
SERVERS = 3
"""Health server, metrics server, and all service health ports together."""

MAX_HELD_BYTES = 8 * 1024 * 1024
"""Unfinished requests and unsent responses of one server's clients together."""

SWEEP_SECONDS = 1.0
ACCEPT_RETRY_SECONDS = 1.0
ACCEPTS_PER_TURN = 64
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def connection_limit() -> int:
    """Return how many connections a server may have: together at most a quarter of the limit."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, allowed // 4 // SERVERS))


def address_text(sock: socket.socket) -> str:
    """Return where a socket listens: `host:port`, or the path of a Unix socket."""
    name = sock.getsockname()
    return name if isinstance(name, str) else join_host_port(*name[:2])


class Connections:
    """Open connections, in the order in which they last completed a request."""

    def __init__(
        self, limit: int | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.monotonic = monotonic
        self.pacing = Pacing()
        self._limit = connection_limit() if limit is None else limit
        self._held: dict[Connection, int] = {}
        self._held_bytes = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._crowded = LogLimit()

    def __len__(self) -> int:
        return len(self._held)

    def admit(self, connection: Connection) -> bool:
        """Take a connection in, if need be in place of another. Return False if none can go."""
        if len(self._held) >= self._limit and not self.make_room():
            return False
        self._held[connection] = 0
        if self._sweeper is None:
            self._schedule()
        return True

    def make_room(self) -> bool:
        """Close the connection that has waited longest. Return False if all are busy."""
        oldest = next((held for held in self._held if not held.is_busy), None)
        if oldest is None:
            return False
        if oldest.state is not State.LINGERING and self._crowded.is_due():
            logger.info(
                "Too many HTTP connections; closing those that wait longest", open=len(self._held)
            )
        oldest.close()
        return True

    def renewed(self, connection: Connection) -> None:
        """Move a connection to the end of the queue: it has completed a request."""
        self._count(connection)
        self._held[connection] = self._held.pop(connection, 0)

    def grown(self, connection: Connection) -> None:
        """Count what a client makes us hold. Beyond the limit the oldest other holders are closed.

        One response larger than the limit can therefore still be sent.
        """
        self._count(connection)
        if self._held_bytes <= MAX_HELD_BYTES:
            return
        for held, size in list(self._held.items()):
            if size and held is not connection:
                held.close()
            if self._held_bytes <= MAX_HELD_BYTES:
                return

    def closed(self, connection: Connection) -> None:
        self._held_bytes -= self._held.pop(connection, 0)

    def drop(self, handler: Handler) -> None:
        """Close all connections that this handler serves."""
        for held in [h for h in self._held if h.handler == handler]:
            held.close()

    def sweep(self) -> None:
        """Close the connections whose time is up."""
        now = self.monotonic()
        for held in [h for h in self._held if not h.is_busy and h.deadline <= now]:
            held.close()

    def _count(self, connection: Connection) -> None:
        if connection not in self._held:
            return
        size = connection.held_bytes
        self._held_bytes += size - self._held[connection]
        self._held[connection] = size

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._on_sweep)

    def _on_sweep(self) -> None:
        self._sweeper = None
        self.sweep()
        if self._held:
            self._schedule()


class Listener:
    """One listening socket."""

    def __init__(
        self,
        sock: socket.socket,
        handler: Handler,
        connections: Connections,
        *,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._socket = sock
        self._handler = handler
        self._connections = connections
        self._now_ns = now_ns
        self._retry: asyncio.TimerHandle | None = None
        self._failed = LogLimit()

    def start(self) -> None:
        """Accept connections from now on."""
        self._retry = None
        asyncio.get_running_loop().add_reader(self._socket, self._on_pending)

    def close(self) -> None:
        """Stop listening and drop the connections of this handler."""
        if self._retry is not None:
            self._retry.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._connections.drop(self._handler)

    def _on_pending(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Other errors are those of one connection that broke while it waited.
                if error.errno in _EXHAUSTED and not self._connections.make_room():
                    self._pause(error)
                    return
                continue
            self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        connection = Connection(sock, self._handler, self._connections, self._now_ns)
        if self._connections.admit(connection):
            connection.start()
        else:
            sock.close()

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment: nothing can be closed to make room."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._retry = loop.call_later(ACCEPT_RETRY_SECONDS, self.start)
        if self._failed.is_due():
            address = address_text(self._socket)
            logger.error(format_os_error(error), "Cannot accept connections", address=address)
