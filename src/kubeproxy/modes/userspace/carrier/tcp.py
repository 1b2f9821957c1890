"""TCP: accept, dial an endpoint (and another if it fails), carry until both sides have ended.

Promises: dialling never blocks accepting; each direction ends by itself; a listener over its share
of descriptors leaves clients in the kernel's queue until there is room; one client over its part of
that, and a connection that goes round in a loop, are reset, and so are connections to an endpoint
whose time to drain is up. Leaves to others: which endpoint is
next (`balance`), moving bytes (`direction`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import Collection, Iterator

from kubeproxy.facts.address import join_host_port
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.direction import Direction
from kubeproxy.modes.userspace.carrier.drains import Drain
from kubeproxy.modes.userspace.carrier.hops import Address
from kubeproxy.modes.userspace.carrier.messages import Balance, Route
from kubeproxy.modes.userspace.carrier.reactor import Timeout
from kubeproxy.modes.userspace.carrier.shared import DIAL_SECONDS, Shared

ACCEPTS_PER_EVENT = 64
CONNECTION_COST = 2
KEEPALIVE_SECONDS = 15
UNSENT_BYTES = 1 << 20
"""More than this that its peer has no window for does not go into a socket's send buffer.

The kernel would let the buffer of a fast connection grow to 4 MB. Two hundred clients that read a
little and then stop would fill all the memory it has for TCP, of every program on the host. A
quarter of this costs bulk a third more processor time: the sender wakes up too often.
"""

_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_OWN_FAULTS = _OUT_OF_DESCRIPTORS | {errno.EADDRNOTAVAIL, errno.EAGAIN, errno.EPERM}
"""Errors of connecting that say nothing about the endpoint."""
_EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_HANGUP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_READABLE = select.EPOLLIN | _HANGUP
_LINGER_NOT = struct.pack("=ii", 1, 0)
"""Lingering for no time makes closing a reset."""
_STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


def tune(handle: socket.socket) -> None:
    """Send at once, and buffer little."""
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def detect_death(handle: socket.socket) -> None:
    """Probe a silent peer."""
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)


class TcpListener:
    """One listening socket and the connections that came through it."""

    def __init__(self, handle: socket.socket, service: str, shared: Shared) -> None:
        self.service = service
        self.family = handle.family
        self.shared = shared
        self.balancer = shared.new_balancer()
        self._drain = Drain(shared.drains, self._end)
        self._connections: dict[Connection, None] = {}
        self._by_client: dict[str, int] = {}
        self._handle = handle
        self._is_open = True
        self._is_paused = False
        handle.setblocking(False)
        # Accepted sockets inherit this.
        tune(handle)
        detect_death(handle)
        shared.reactor.register(handle.fileno(), select.EPOLLIN, self._on_client)

    @property
    def held(self) -> int:
        return len(self._connections) * CONNECTION_COST

    def update(self, balance: Balance) -> None:
        self.balancer.update(
            balance.targets, balance.affinity_seconds, balance.algorithm, balance.weights
        )
        aims = (connection.aim for connection in self._connections)
        used = (aim for aim in aims if aim is not None)
        self._drain.update(balance, used, self.shared.reactor.now)

    def _end(self, targets: Collection[Target]) -> None:
        """Reset the connections to these endpoints, which have had their time."""
        ended = [each for each in self._connections if each.aim in targets]
        for connection in ended:
            connection.leave()
        if ended:
            detail = f"{len(ended)} to an endpoint that has gone"
            self.shared.log(self.service, "connections reset", detail)

    def close(self) -> None:
        """Accept nothing more; connections go on until they end."""
        self._is_open = False
        self.shared.reactor.unregister(self._handle.fileno())
        # At once, not at the end of the iteration: when the proxy gets the reply to its `Sync`,
        # the port must be free.
        self._handle.close()
        self.shared.drop_balancer(self.balancer)
        self.shared.service_log.forget(self.service)

    def evict(self, count: int) -> None:
        for connection in list(reversed(self._connections))[:count]:
            connection.close()

    def routes(self) -> Iterator[tuple[Route, Address]]:
        for connection in self._connections:
            if connection.target is not None:
                yield self.route(connection.target), connection.client

    def route(self, target: Target) -> Route:
        return Route(self.service, False, target)

    def add(self, connection: Connection) -> None:
        self._connections[connection] = None
        client = connection.client_ip
        self._by_client[client] = self._by_client.get(client, 0) + 1
        self.shared.connections += 1
        self.shared.take(self, CONNECTION_COST)

    def remove(self, connection: Connection) -> None:
        del self._connections[connection]
        client = connection.client_ip
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]
        self.shared.connections -= 1
        self.shared.release(self, CONNECTION_COST)

    def _on_client(self, _mask: int) -> None:
        for _ in range(ACCEPTS_PER_EVENT):
            if not self.shared.allows(self.held, CONNECTION_COST):
                self._pause(f"{len(self._connections)} connections hold this service's share")
                return
            try:
                handle, address = self._handle.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._accept_failed(error)
                return
            if reason := self._reason_to_refuse(address):
                self.shared.log(self.service, "connection reset", reason)
                _reset(handle)
            else:
                Connection(self, handle, address).dial()

    def _reason_to_refuse(self, client: Address) -> str:
        """Why this client's connection is not carried; empty if it is."""
        if self.shared.hops.is_loop(client):
            return "its endpoint leads back to it"
        held = self._by_client.get(client[0], 0)
        if not self.shared.budget.allows_client(held * CONNECTION_COST, self.held):
            return f"{client[0]} has {held} connections, all that one client may have now"
        return ""

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
        if not self._is_open:
            return
        try:
            self.shared.reactor.register(self._handle.fileno(), select.EPOLLIN, self._on_client)
        except OSError as error:
            # The kernel watches no more descriptors for us now: out of memory, or over its limit.
            self._pause(os.strerror(error.errno or errno.EIO))


class Connection:
    """One client, and the endpoint it is carried to."""

    __slots__ = (
        "_attempt",
        "_client",
        "_down",
        "_endpoint",
        "_hops",
        "_is_closed",
        "_listener",
        "_local",
        "_target",
        "_timeout",
        "_up",
        "client",
        "client_ip",
    )

    def __init__(self, listener: TcpListener, client: socket.socket, address: Address) -> None:
        self.client = address
        self.client_ip = address[0]
        self._listener = listener
        self._client = client
        self._hops = listener.shared.hops.of(address) + 1
        self._attempt = 0
        self._target: Target | None = None
        self._endpoint: socket.socket | None = None
        self._local: Address | None = None
        self._timeout: Timeout | None = None
        self._up: Direction | None = None
        self._down: Direction | None = None
        self._is_closed = False
        listener.add(self)

    @property
    def target(self) -> Target | None:
        """The endpoint it is carried to, or None while none has answered."""
        return None if self._up is None else self._target

    @property
    def aim(self) -> Target | None:
        """The endpoint it is carried to, or that is being tried."""
        return self._target

    # --- reaching an endpoint ---

    def dial(self) -> None:
        """Begin the next attempt; after a failure affinity is ignored."""
        shared = self._listener.shared
        target = self._listener.balancer.pick(
            self.client_ip, shared.reactor.now, ignore_affinity=self._attempt > 0
        )
        if target is None:
            shared.log(self._listener.service, "connection closed", "no endpoints")
            self.close()
            return
        self._target = target
        self._listener.balancer.began(target)
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
        self._local = endpoint.getsockname()
        shared.hops.enter(self._local, self._hops)
        shared.reactor.register(endpoint.fileno(), _EDGES, self._on_endpoint)
        timeouts = shared.dial_timeouts[self._attempt]
        self._timeout = timeouts.start(shared.reactor.now, self._timed_out)

    def _timed_out(self) -> None:
        endpoint = self._endpoint
        if endpoint is not None and _is_connected(endpoint):
            # The answer came in time, but so many events are due that it was not handled yet.
            self._start_carrying(endpoint)
        else:
            self._failed(errno.ETIMEDOUT)

    def _failed(self, number: int) -> None:
        """Try the next endpoint, if there is an attempt left."""
        listener, target = self._listener, self._target
        if target is not None:
            reason = f"{join_host_port(*target)}: {os.strerror(number)}"
            listener.shared.log(listener.service, "endpoint does not answer", reason)
            if number not in _OWN_FAULTS:
                listener.balancer.failed(target, listener.shared.reactor.now)
        self._drop_endpoint()
        self._attempt += 1
        if self._attempt < len(DIAL_SECONDS):
            self.dial()
        else:
            self.close()

    def _drop_endpoint(self) -> None:
        if self._target is not None:
            self._listener.balancer.ended(self._target)
            self._target = None
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self._local is not None:
            self._listener.shared.hops.leave(self._local)
            self._local = None
        if self._endpoint is not None:
            self._listener.shared.reactor.close_later(self._endpoint)
            self._endpoint = None

    def _dialled(self, endpoint: socket.socket, mask: int) -> None:
        """Handle the outcome of an attempt."""
        # An attempt that failed is announced as such; only then the reason is to be had.
        number = mask & _HANGUP and endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._failed(number)
        elif mask & select.EPOLLOUT:
            self._start_carrying(endpoint)

    def _start_carrying(self, endpoint: socket.socket) -> None:
        try:
            self._connected(endpoint)
        except OSError as error:
            # The kernel refuses to add the client to the epoll set: out of memory or over the
            # limit of watches (fs.epoll.max_user_watches).
            self._listener.shared.log(self._listener.service, "connection closed", str(error))
            self.close()

    def _connected(self, endpoint: socket.socket) -> None:
        shared = self._listener.shared
        if self._target is not None:
            self._listener.balancer.answered(self._target)
            shared.carried.add(self._listener.route(self._target))
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        self._timeout = shared.lasting.start(shared.reactor.now, self._lasts)
        self._up = Direction(self._client, endpoint, shared.pipes)
        self._down = Direction(endpoint, self._client, shared.pipes)
        self._up.reverse, self._down.reverse = self._down, self._up
        # Registering reports at once what has arrived in the meantime.
        shared.reactor.register(self._client.fileno(), _EDGES, self._on_client)

    def _lasts(self) -> None:
        """Probe the endpoint from now on: three system calls that a short connection saves."""
        self._timeout = None
        if self._endpoint is not None:
            detect_death(self._endpoint)

    # --- carrying ---

    def _on_client(self, mask: int) -> None:
        self._on_traffic(mask, self._up, self._down)

    def _on_endpoint(self, mask: int) -> None:
        if self._up is None and self._endpoint is not None:
            self._dialled(self._endpoint, mask)
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
                out.is_ending = not mask & select.EPOLLERR
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

    def leave(self) -> None:
        """Give the endpoint up: reset both peers, or try the next one if it has not answered."""
        if self._up is None:
            self._failed(errno.ECONNABORTED)
            return
        for handle in (self._client, self._endpoint):
            if handle is not None:
                _linger_not(handle)
        self.close()

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
        self._listener.shared.reactor.close_later(self._client)
        self._listener.remove(self)


def _reset(handle: socket.socket) -> None:
    """Close a connection at once, so that its client notices."""
    _linger_not(handle)
    handle.close()


def _linger_not(handle: socket.socket) -> None:
    """Make closing this socket a reset."""
    with contextlib.suppress(OSError):
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)


def _is_connected(handle: socket.socket) -> bool:
    try:
        handle.getpeername()
    except OSError:
        return False
    return True
