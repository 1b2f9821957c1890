"""UDP: one session per client, each with a connected socket to its endpoint.

Promises: datagrams of any size pass whole; a reply leaves from the address the client's datagram
came to, so that the kernel can translate it back; a session ends when idle, when its endpoint
refuses, or when its endpoint no longer serves; sessions are bounded, the one idle longest ends
first; a datagram that goes round in a loop is dropped. Leaves to others: which endpoint is next
(`balance`).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Collection, Iterator
from typing import TypeAlias

from msgspec.structs import replace

from kubeproxy.facts.address import join_host_port
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.drains import Drain
from kubeproxy.modes.userspace.carrier.hops import Address
from kubeproxy.modes.userspace.carrier.messages import Balance, Route
from kubeproxy.modes.userspace.carrier.shared import Shared

DATAGRAMS_PER_EVENT = 64
MAX_DATAGRAM_BYTES = 65_535
SESSION_COST = 1

_IP_PKTINFO = 8  # not among Python's constants
_PKTINFO4 = struct.Struct("=i4s4s")
_PKTINFO6 = struct.Struct("=16si")
_ANCILLARY_BYTES = 128
_REFUSALS = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})
_DATAGRAM = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC

Ancillary: TypeAlias = list[tuple[int, int, bytes]]
Key: TypeAlias = tuple[Address, bytes]
"""The client's socket address, and the local address it sent to."""


class UdpSessions:
    """All sessions of a carrier in the order of their last use: the first is the next to end."""

    def __init__(self, shared: Shared, idle_seconds: float) -> None:
        self.shared = shared
        self.buffer = memoryview(bytearray(MAX_DATAGRAM_BYTES))
        self._idle_seconds = idle_seconds
        self._by_use: dict[Session, None] = {}
        shared.reactor.add_timers(self)

    def touch(self, session: Session) -> None:
        session.used_at = self.shared.reactor.now
        self._by_use.pop(session, None)
        self._by_use[session] = None

    def forget(self, session: Session) -> None:
        self._by_use.pop(session, None)

    def oldest(self) -> Session | None:
        return next(iter(self._by_use), None)

    def next_deadline(self) -> float | None:
        session = self.oldest()
        return None if session is None else session.used_at + self._idle_seconds

    def expire(self, now: float) -> None:
        while (
            session := self.oldest()
        ) is not None and session.used_at + self._idle_seconds <= now:
            session.close()


class UdpListener:
    """One unconnected socket and the sessions of its clients."""

    def __init__(self, handle: socket.socket, service: str, all_sessions: UdpSessions) -> None:
        self.service = service
        self.handle = handle
        self.all_sessions = all_sessions
        self.shared = all_sessions.shared
        self.balancer = self.shared.new_balancer()
        self.sessions: dict[Key, Session] = {}
        self._drain = Drain(self.shared.drains, self._end)
        handle.setblocking(False)
        if handle.family == socket.AF_INET6:
            handle.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            handle.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        self.shared.reactor.register(handle.fileno(), select.EPOLLIN, self._on_datagrams)

    def update(self, balance: Balance) -> None:
        """New sessions go to the new endpoints; those to endpoints that no longer serve end.

        At once, unless the Service lets them drain.
        """
        self.balancer.update(
            balance.targets, balance.affinity_seconds, balance.algorithm, balance.weights
        )
        if balance.drain_seconds is None:
            balance = replace(balance, drain_seconds=0.0)
        used = (session.target for session in self.sessions.values())
        self._drain.update(balance, used, self.shared.reactor.now)

    def _end(self, targets: Collection[Target]) -> None:
        for session in [s for s in self.sessions.values() if s.target in targets]:
            session.close()

    def close(self) -> None:
        for session in list(self.sessions.values()):
            session.close()
        self.shared.reactor.unregister(self.handle.fileno())
        # At once, not at the end of the iteration: when the proxy gets the reply to its `Sync`,
        # the port must be free.
        self.handle.close()
        self.shared.drop_balancer(self.balancer)
        self.shared.service_log.forget(self.service)

    @property
    def held(self) -> int:
        return len(self.sessions) * SESSION_COST

    def evict(self, count: int) -> None:
        for session in list(reversed(self.sessions.values()))[:count]:
            session.close()

    def routes(self) -> Iterator[tuple[Route, Address]]:
        for (client, _), session in self.sessions.items():
            yield self.route(session.target), client

    def route(self, target: Target) -> Route:
        return Route(self.service, True, target)

    def _on_datagrams(self, _mask: int) -> None:
        buffer = self.all_sessions.buffer
        for _ in range(DATAGRAMS_PER_EVENT):
            try:
                size, ancillary, _, client = self.handle.recvmsg_into([buffer], _ANCILLARY_BYTES)
            except BlockingIOError:
                return
            except OSError:
                # The kernel reports an error of an earlier reply (the client is gone) here, once.
                continue
            self._forward(buffer[:size], client, ancillary)

    def _forward(self, data: memoryview, client: Address, ancillary: Ancillary) -> None:
        local = _local_address(ancillary)
        session = self.sessions.get((client, local))
        if session is not None and session.send(data):
            return
        # A second session is tried at once if the endpoint turns out to refuse.
        for ignore_affinity in (session is not None, True):
            session = self._open(client, local, ignore_affinity=ignore_affinity)
            if session is None or session.send(data):
                return

    def _open(self, client: Address, local: bytes, *, ignore_affinity: bool) -> Session | None:
        if self.shared.hops.is_loop(client):
            self.shared.log(self.service, "datagram dropped", "its endpoint leads back to it")
            return None
        now = self.shared.reactor.now
        target = self.balancer.pick(client[0], now, ignore_affinity=ignore_affinity)
        if target is None:
            self.shared.log(self.service, "datagram dropped", "no endpoints")
            return None
        self._make_room()
        try:
            return Session(self, (client, local), target)
        except OSError as error:
            reason = f"{join_host_port(*target)}: {os.strerror(error.errno or errno.EIO)}"
            self.shared.log(self.service, "no session to endpoint", reason)
            return None

    def _make_room(self) -> None:
        """Over its share, end the listener's own session that was idle longest."""
        if self.shared.allows(self.held, SESSION_COST):
            return
        held = f"{len(self.sessions)} sessions hold this service's share"
        self.shared.log(self.service, "the oldest UDP session ends for a new one", held)
        oldest = next(iter(self.sessions.values()), None) or self.all_sessions.oldest()
        if oldest is not None:
            oldest.close()


class Session:
    """One client's datagrams to one endpoint and back."""

    __slots__ = ("_handle", "_key", "_listener", "_local", "_reply_from", "target", "used_at")

    def __init__(self, listener: UdpListener, key: Key, target: Target) -> None:
        self._listener = listener
        self._key = key
        self._reply_from = _reply_ancillary(key[1])
        self.target = target
        self.used_at = 0.0
        self._handle = socket.socket(listener.handle.family, _DATAGRAM)
        try:
            self._handle.connect(target)
            self._local: Address = self._handle.getsockname()
            listener.shared.reactor.register(self._handle.fileno(), select.EPOLLIN, self._on_reply)
        except OSError:
            self._handle.close()
            raise
        shared = listener.shared
        shared.hops.enter(self._local, shared.hops.of(key[0]) + 1)
        listener.sessions[key] = self
        shared.sessions += 1
        shared.take(listener, SESSION_COST)
        shared.carried.add(listener.route(target))
        listener.balancer.began(target)
        listener.all_sessions.touch(self)

    def send(self, data: memoryview) -> bool:
        """Pass a datagram on. Return False if the endpoint refuses, which ends the session."""
        try:
            self._handle.send(data)
        except BlockingIOError:
            pass  # full buffers lose datagrams; that is what UDP promises
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                return True
            self._failed(error)
            return False
        self._touch()
        return True

    def _touch(self) -> None:
        """Make this the session used last, among all and among its listener's."""
        sessions = self._listener.sessions
        sessions[self._key] = sessions.pop(self._key)
        self._listener.all_sessions.touch(self)

    def _on_reply(self, _mask: int) -> None:
        buffer = self._listener.all_sessions.buffer
        for _ in range(DATAGRAMS_PER_EVENT):
            try:
                size = self._handle.recv_into(buffer)
            except BlockingIOError:
                return
            except OSError as error:
                self._failed(error)
                return
            self._listener.balancer.answered(self.target)
            self._touch()
            self._reply(buffer[:size])

    def _failed(self, error: OSError) -> None:
        """End the session; an endpoint that refuses is passed over for a while."""
        if error.errno in _REFUSALS:
            self._listener.balancer.failed(self.target, self._listener.shared.reactor.now)
        self.close()

    def _reply(self, data: memoryview) -> None:
        try:
            self._listener.handle.sendmsg([data], self._reply_from, 0, self._key[0])
        except BlockingIOError:
            return
        except OSError as error:
            self._listener.shared.log(
                self._listener.service, "answer dropped", os.strerror(error.errno or errno.EIO)
            )

    def close(self) -> None:
        listener = self._listener
        if listener.sessions.pop(self._key, None) is None:
            return
        listener.balancer.ended(self.target)
        listener.all_sessions.forget(self)
        listener.shared.reactor.close_later(self._handle)
        listener.shared.hops.leave(self._local)
        listener.shared.sessions -= 1
        listener.shared.release(listener, SESSION_COST)


def _local_address(ancillary: Ancillary) -> bytes:
    """The local address a datagram was sent to, packed; empty if the kernel did not report it."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO:
            return bytes(data[8:12])
        if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_PKTINFO:
            return bytes(data[:16])
    return b""


def _reply_ancillary(local: bytes) -> Ancillary:
    """Ancillary data that makes the kernel send from this address."""
    if len(local) == 4:
        info = _PKTINFO4.pack(0, local, bytes(4))
        return [(socket.IPPROTO_IP, _IP_PKTINFO, info)]
    if len(local) == 16:
        return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _PKTINFO6.pack(local, 0))]
    return []
