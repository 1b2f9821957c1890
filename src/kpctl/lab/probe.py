"""Probes: one packet (or connection) from a host of the lab, and what became of it.

    answered      an echo server answered; the outcome holds its reply
    refused       a TCP reset or an SCTP abort
    rejected      ICMP port unreachable
    unreachable   another ICMP error, or no route
    dropped       nothing came back in time
    broken        a connection that was open broke

The kernel reports a reset and an ICMP error on a TCP socket with the same error number. A raw ICMP
socket per host tells them apart: the kernel delivers ICMP to it before it fails the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
from enum import StrEnum
from itertools import count

import msgspec

from kpctl.lab.echo import EchoReply
from kpctl.lab.packets import (
    INIT,
    INIT_ACK,
    SctpPacket,
    format_sctp,
    parse_icmp_error,
    parse_sctp,
    strip_ipv4_header,
)
from kpctl.lab.sockets import (
    Hosts,
    bound_socket,
    has_kernel_sctp,
    icmp_socket,
    raw_sctp_socket,
)
from kubeproxy.facts.ids import Family, Protocol

DEFAULT_TIMEOUT_SECONDS = 1.0
_ASK = b"who?\n"
_MAX_REMEMBERED = 4096
_SCTP_LISTEN_SECONDS = 0.05
_REPORT_ERRORS = {
    Family.IPV4: (socket.IPPROTO_IP, 11, 1),
    Family.IPV6: (socket.IPPROTO_IPV6, 25, 1),
}
"""IP_RECVERR and IPV6_RECVERR: without them only some ICMP errors end a UDP socket's wait."""
_SCTP_REPEAT = 5
_UDP_REPEAT_SECONDS = 1.0
_ENDED = "the peer has closed the connection"
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH)


class Fate(StrEnum):
    """What became of a packet."""

    ANSWERED = "answered"
    REFUSED = "refused"
    REJECTED = "rejected"
    UNREACHABLE = "unreachable"
    DROPPED = "dropped"
    BROKEN = "broken"


class Target(msgspec.Struct, frozen=True):
    """Where a probe goes, and from where."""

    source: str
    address: str
    port: int
    family: Family
    protocol: Protocol
    source_port: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """What became of one probe."""

    fate: Fate
    answer: EchoReply | None = None
    source_port: int = 0
    cause: str = ""
    """What ended a probe that got no answer: an ICMP error and who sent it, or an error number."""


class Failure(msgspec.Struct, frozen=True):
    """An error that a host received about one of its packets."""

    fate: Fate
    cause: str


class Prober:
    """Sends probes from any host of a lab, any number at once."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._icmp: dict[tuple[str, Family], _IcmpWatch] = {}

    async def probe(
        self, target: Target, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Outcome:
        if _is_stream(target.protocol):
            opened = await self.connect(target, timeout_seconds=timeout_seconds)
            if isinstance(opened, Outcome):
                return opened
            try:
                return await opened.ask(timeout_seconds=timeout_seconds)
            finally:
                opened.close()
        if target.protocol is Protocol.UDP:
            return await self._probe_udp(target, timeout_seconds)
        return await self._probe_raw_sctp(target, timeout_seconds)

    async def connect(
        self, target: Target, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Connection | Outcome:
        """An open connection, or why there is none."""
        sock = self._socket(target)
        watch, port = self._watch(target), sock.getsockname()[1]
        watch.forget(target.protocol, port)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_seconds):
                await loop.sock_connect(sock, (target.address, target.port))
        except OSError as error:
            failure = watch.find(target.protocol, port) or _failure_of(error)
        else:
            return Connection(sock)
        sock.close()
        return _failed(failure, port)

    def close(self) -> None:
        for watch in self._icmp.values():
            watch.close()
        self._icmp = {}

    def _socket(self, target: Target) -> socket.socket:
        return bound_socket(
            self._hosts, target.source, target.family, target.protocol, port=target.source_port
        )

    def _watch(self, target: Target) -> _IcmpWatch:
        key = (target.source, target.family)
        if key not in self._icmp:
            self._icmp[key] = _IcmpWatch(icmp_socket(self._hosts, *key), target.family)
        return self._icmp[key]

    async def _probe_udp(self, target: Target, timeout_seconds: float) -> Outcome:
        sock = self._socket(target)
        watch, port = self._watch(target), sock.getsockname()[1]
        watch.forget(Protocol.UDP, port)
        loop = asyncio.get_running_loop()
        try:
            sock.setsockopt(*_REPORT_ERRORS[target.family])
            sock.connect((target.address, target.port))
            async with asyncio.timeout(timeout_seconds):
                data = await _ask_by_datagram(loop, sock)
            return Outcome(Fate.ANSWERED, msgspec.json.decode(data, type=EchoReply), port)
        except OSError as error:
            return _failed(watch.find(Protocol.UDP, port) or _failure_of(error), port)
        finally:
            sock.close()

    async def _probe_raw_sctp(self, target: Target, timeout_seconds: float) -> Outcome:
        sock = raw_sctp_socket(self._hosts, target.source, target.family)
        watch = self._watch(target)
        port = target.source_port or random.randint(32768, 60999)
        watch.forget(Protocol.SCTP, port)
        init = SctpPacket(port, target.port, 0, INIT, random.randint(1, 2**32 - 1))
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._sctp_reply(sock, init, target, watch)
        except OSError as error:
            return _failed(watch.find(Protocol.SCTP, port) or _failure_of(error), port)
        finally:
            sock.close()

    async def _sctp_reply(
        self, sock: socket.socket, init: SctpPacket, target: Target, watch: _IcmpWatch
    ) -> Outcome:
        """Send our INIT until there is a reply to it.

        A raw socket receives all SCTP packets of the host, and no ICMP errors.
        """
        loop = asyncio.get_running_loop()
        for attempt in count():
            if attempt % _SCTP_REPEAT == 0:
                # An INIT is repeated, as RFC 9260 demands. The port of the address is 0 because a
                # raw socket has none: ours is in the packet.
                sock.sendto(format_sctp(init), (target.address, 0))
            try:
                data = await asyncio.wait_for(loop.sock_recv(sock, 2048), _SCTP_LISTEN_SECONDS)
            except TimeoutError:
                if failure := watch.find(Protocol.SCTP, init.source_port):
                    return _failed(failure, init.source_port)
                continue
            outcome = _sctp_outcome(data, init, target.family)
            if outcome is not None:
                return outcome
        raise AssertionError("unreachable: the caller's time-out ends the loop")


async def _ask_by_stream(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bytes:
    """Send a request and read the reply, which is a line. Raises EOFError."""
    await loop.sock_sendall(sock, _ASK)
    data = b""
    while not data.endswith(b"\n"):
        chunk = await loop.sock_recv(sock, 2048)
        if not chunk:
            raise EOFError
        data += chunk
    return data


async def _ask_by_datagram(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bytes:
    """Send a request until there is a reply, as clients of UDP do.

    What a client sends between a change of rules and the deletion of its stale flow is lost.
    """
    while True:
        await loop.sock_sendall(sock, _ASK)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(loop.sock_recv(sock, 2048), _UDP_REPEAT_SECONDS)


def _is_stream(protocol: Protocol) -> bool:
    """Does the kernel have connections of this protocol?"""
    return protocol is Protocol.TCP or (protocol is Protocol.SCTP and has_kernel_sctp())


def _sctp_outcome(data: bytes, init: SctpPacket, family: Family) -> Outcome | None:
    """The outcome of our INIT if this packet is the reply to it, else None."""
    packet = parse_sctp(strip_ipv4_header(data) if family is Family.IPV4 else data)
    if packet is None or packet.tag != init.initiate_tag:
        return None
    if packet.chunk != INIT_ACK:
        return Outcome(Fate.REFUSED, source_port=init.source_port)
    answer = msgspec.json.decode(packet.cookie, type=EchoReply)
    return Outcome(Fate.ANSWERED, answer, init.source_port)


class Connection:
    """An open connection to an echo server, or a connected socket of UDP."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._port: int = sock.getsockname()[1]
        self._ask = _ask_by_datagram if sock.type == socket.SOCK_DGRAM else _ask_by_stream

    async def ask(self, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> Outcome:
        """Send one request over the open connection and read the reply."""
        try:
            async with asyncio.timeout(timeout_seconds):
                data = await self._ask(asyncio.get_running_loop(), self._sock)
        except EOFError:
            return Outcome(Fate.BROKEN, source_port=self._port, cause=_ENDED)
        except OSError as error:
            # TimeoutError is an OSError too: an open connection that falls silent is broken.
            cause = _failure_of(error).cause
            return Outcome(Fate.BROKEN, source_port=self._port, cause=cause)
        return Outcome(Fate.ANSWERED, msgspec.json.decode(data, type=EchoReply), self._port)

    async def wait_for_end(self, *, timeout_seconds: float) -> str:
        """Wait without sending until the connection ends. Return how, or that it does not."""
        try:
            async with asyncio.timeout(timeout_seconds):
                data = await asyncio.get_running_loop().sock_recv(self._sock, 2048)
        except OSError as error:
            return _failure_of(error).cause
        return "got data" if data else _ENDED

    def close(self) -> None:
        self._sock.close()


class _IcmpWatch:
    """ICMP errors a host received, by our port that they quote. Read from the socket on demand."""

    def __init__(self, sock: socket.socket, family: Family) -> None:
        self._sock = sock
        self._family = family
        self._seen: dict[tuple[Protocol, int], Failure] = {}

    def forget(self, protocol: Protocol, port: int) -> None:
        self._drain()
        self._seen.pop((protocol, port), None)

    def find(self, protocol: Protocol, port: int) -> Failure | None:
        self._drain()
        return self._seen.get((protocol, port))

    def close(self) -> None:
        self._sock.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, address = self._sock.recvfrom(2048)
                self._note(data, address[0])

    def _note(self, data: bytes, sender: str) -> None:
        message = strip_ipv4_header(data) if self._family is Family.IPV4 else data
        error = parse_icmp_error(message, self._family)
        if error is None:
            return
        if len(self._seen) >= _MAX_REMEMBERED:
            self._seen.clear()
        fate = Fate.REJECTED if error.is_port_unreachable else Fate.UNREACHABLE
        cause = f"ICMP type {message[0]} code {message[1]} from {sender}"
        self._seen[error.protocol, error.source_port] = Failure(fate, cause)


def _failed(failure: Failure, port: int) -> Outcome:
    return Outcome(failure.fate, source_port=port, cause=failure.cause)


def _failure_of(error: OSError) -> Failure:
    if isinstance(error, TimeoutError):
        return Failure(Fate.DROPPED, "no answer in time")
    return Failure(_fate_of(error), error.strerror or str(error))


def _fate_of(error: OSError) -> Fate:
    if error.errno in _NO_ROUTE:
        return Fate.UNREACHABLE
    if error.errno in (errno.EPERM, errno.EACCES):
        # A rule that drops a packet of a local sender fails the call that sent it.
        return Fate.DROPPED
    return Fate.REFUSED
