"""TCP: accept, dial an endpoint (and another if it fails), carry until both sides have ended.

Promises: dialling never blocks accepting; each direction ends by itself; a listener over its share
of descriptors leaves clients in the kernel's queue until there is room. Leaves to others: which
endpoint is next (`balance`), moving bytes (`direction`).
"""

from __future__ import annotations

import errno
import os
import select
import socket

from kubeproxy.facts.address import join_host_port
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.direction import Direction
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.carrier.reactor import Timeout
from kubeproxy.modes.userspace.carrier.shared import DIAL_SECONDS, Shared, new_balancer

ACCEPTS_PER_EVENT = 64
CONNECTION_COST = 2
KEEPALIVE_SECONDS = 15

_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_HANGUP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_READABLE = select.EPOLLIN | _HANGUP
_STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


def tune(handle: socket.socket) -> None:
    """Send small segments without delay and detect dead peers; accepted sockets inherit this."""
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)


class TcpListener:
    """One listening socket and the connections that came through it."""

    def __init__(self, handle: socket.socket, service: str, shared: Shared) -> None:
        self.service = service
        self.family = handle.family
        self.shared = shared
        self.balancer = new_balancer()
        self.connections = 0
        self._handle = handle
        self._is_open = True
        self._is_paused = False
        handle.setblocking(False)
        tune(handle)
        shared.reactor.register(handle.fileno(), select.EPOLLIN, self._on_client)

    def update(self, balance: Balance) -> None:
        self.balancer.update(balance.targets, balance.affinity_seconds)

    def close(self) -> None:
        """Accept nothing more; connections go on until they end."""
        self._is_open = False
        self.shared.reactor.unregister(self._handle.fileno())
        # At once, not at the end of the iteration: when the proxy gets the reply to its `Sync`,
        # the port must be free.
        self._handle.close()
        self.shared.service_log.forget(self.service)

    def _on_client(self, _mask: int) -> None:
        for _ in range(ACCEPTS_PER_EVENT):
            if not self.shared.budget.allows(self.connections * CONNECTION_COST, CONNECTION_COST):
                self._pause(f"{self.connections} connections hold this service's share")
                return
            try:
                handle, address = self._handle.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._accept_failed(error)
                return
            handle.setblocking(False)
            Connection(self, handle, address[0]).dial()

    def _accept_failed(self, error: OSError) -> None:
        """Pause if descriptors or memory ran out; a client that has disconnected is ignored."""
        if error.errno in _OUT_OF_DESCRIPTORS:
            self._pause(os.strerror(error.errno))

    def _pause(self, reason: str) -> None:
        """Leave clients in the kernel's queue for a while."""
        self.shared.log(self.service, "new connections wait for file descriptors", reason)
        if not self._is_paused:
            self._is_paused = True
            self.shared.reactor.unregister(self._handle.fileno())
            self.shared.pauses.start(self.shared.reactor.now, self._resume)

    def _resume(self) -> None:
        self._is_paused = False
        if self._is_open:
            self.shared.reactor.register(self._handle.fileno(), select.EPOLLIN, self._on_client)


class Connection:
    """One client, and the endpoint it is carried to."""

    __slots__ = (
        "_attempt",
        "_client",
        "_client_ip",
        "_down",
        "_endpoint",
        "_is_closed",
        "_listener",
        "_target",
        "_timeout",
        "_up",
    )

    def __init__(self, listener: TcpListener, client: socket.socket, client_ip: str) -> None:
        self._listener = listener
        self._client = client
        self._client_ip = client_ip
        self._attempt = 0
        self._target: Target | None = None
        self._endpoint: socket.socket | None = None
        self._timeout: Timeout | None = None
        self._up: Direction | None = None
        self._down: Direction | None = None
        self._is_closed = False
        listener.connections += 1
        listener.shared.connections += 1
        listener.shared.budget.take(CONNECTION_COST)

    # --- reaching an endpoint ---

    def dial(self) -> None:
        """Begin the next attempt; after a failure affinity is ignored."""
        shared = self._listener.shared
        target = self._listener.balancer.pick(
            self._client_ip, shared.reactor.now, ignore_affinity=self._attempt > 0
        )
        if target is None:
            shared.log(self._listener.service, "connection closed", "no endpoints")
            self.close()
            return
        self._target = target
        try:
            self._connect(target)
        except OSError as error:
            self._failed(error.errno or errno.EIO)

    def _connect(self, target: Target) -> None:
        shared = self._listener.shared
        endpoint = self._endpoint = socket.socket(self._listener.family, _STREAM)
        tune(endpoint)
        number = endpoint.connect_ex(target)
        if number not in (0, errno.EINPROGRESS):
            raise OSError(number, "connect")
        shared.reactor.register(endpoint.fileno(), _EDGES, self._on_endpoint)
        timeouts = shared.dial_timeouts[self._attempt]
        self._timeout = timeouts.start(shared.reactor.now, self._timed_out)

    def _timed_out(self) -> None:
        self._failed(errno.ETIMEDOUT)

    def _failed(self, number: int) -> None:
        """Try the next endpoint, if there is an attempt left."""
        where = join_host_port(*self._target) if self._target else ""
        self._listener.shared.log(
            self._listener.service, "endpoint does not answer", f"{where}: {os.strerror(number)}"
        )
        self._drop_endpoint()
        self._attempt += 1
        if self._attempt < len(DIAL_SECONDS):
            self.dial()
        else:
            self.close()

    def _drop_endpoint(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self._endpoint is not None:
            self._listener.shared.reactor.close_later(self._endpoint)
            self._endpoint = None

    def _dialled(self, endpoint: socket.socket, mask: int) -> None:
        """Handle the outcome of an attempt."""
        number = endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._failed(number)
        elif mask & select.EPOLLOUT:
            self._connected(endpoint)

    def _connected(self, endpoint: socket.socket) -> None:
        shared = self._listener.shared
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        self._up = Direction(self._client, endpoint, shared.pipes)
        self._down = Direction(endpoint, self._client, shared.pipes)
        # Registering reports at once what has arrived in the meantime.
        shared.reactor.register(self._client.fileno(), _EDGES, self._on_client)

    # --- carrying ---

    def _on_client(self, mask: int) -> None:
        self._on_traffic(mask, self._up, self._down)

    def _on_endpoint(self, mask: int) -> None:
        if self._up is None and self._endpoint is not None:
            try:
                self._dialled(self._endpoint, mask)
            except OSError as error:
                # The kernel refuses to add the client to the epoll set: out of memory or over the
                # limit of watches (fs.epoll.max_user_watches).
                self._listener.shared.log(self._listener.service, "connection closed", str(error))
                self.close()
        # The event that ends dialling may already announce traffic.
        self._on_traffic(mask, self._down, self._up)

    def _on_traffic(self, mask: int, out: Direction | None, into: Direction | None) -> None:
        """Handle an event of the socket that `out` reads from and `into` writes to."""
        if out is None or into is None:
            return
        if mask & _READABLE:
            out.readable = True
            if mask & _HANGUP:
                out.is_hung_up = True
        if mask & select.EPOLLOUT:
            into.writable = True
        self._pump(out, into)

    def _pump(self, first: Direction, second: Direction) -> None:
        try:
            more = first.can_move and first.pump()
            more = (second.can_move and second.pump()) or more
        except OSError:
            # Reset or timed out: nothing more can be carried either way.
            self.close()
            return
        if first.is_done and second.is_done:
            self.close()
        elif more:
            self._listener.shared.reactor.call_soon(self._pump_both)

    def _pump_both(self) -> None:
        if self._up is not None and self._down is not None:
            self._pump(self._up, self._down)

    def close(self) -> None:
        """Close both sockets; harmless when repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        for direction in (self._up, self._down):
            if direction is not None:
                direction.close()
        self._up = self._down = None
        self._drop_endpoint()
        listener = self._listener
        listener.shared.reactor.close_later(self._client)
        listener.connections -= 1
        listener.shared.connections -= 1
        listener.shared.budget.release(CONNECTION_COST)
