"""Echo servers of the lab: they answer with their own name and the source address they saw.

One `EchoServers` serves every pod of a lab from one event loop, with sockets made inside the pods.
TCP answers each line, UDP each datagram. SCTP answers like TCP where the kernel has it, else each
INIT (in the cookie of its INIT ACK). The answer is an `EchoReply` as JSON, the same for all; only
a GET over TCP, which is a health check, is answered as HTTP does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

import msgspec

from kpctl.lab.packets import INIT, INIT_ACK, SctpPacket, format_sctp, parse_sctp, strip_ipv4_header
from kpctl.lab.sockets import Hosts, bound_socket, has_kernel_sctp, raw_sctp_socket
from kubeproxy.facts.ids import Family, Protocol

_SCTP_TAG = 0x6B706C62
_BACKLOG = 512
_HTTP_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class EchoReply(msgspec.Struct, frozen=True):
    """The host that answered, and the source it saw."""

    host: str
    source: str
    source_port: int


class Listening(msgspec.Struct, frozen=True):
    """One open echo port."""

    host: str
    address: str
    family: Family
    protocol: Protocol
    port: int


class EchoServers:
    """Every echo port of a lab. `listen` is idempotent, and `stop` makes an endpoint fail.

    Sockets are served by plain reader callbacks rather than streams, because closing is then
    immediate and complete.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._open: dict[Listening, _Port] = {}
        self._sctp: dict[tuple[str, Family], socket.socket] = {}

    @property
    def open_ports(self) -> frozenset[Listening]:
        return frozenset(self._open)

    def listen(self, wanted: Listening) -> None:
        if wanted not in self._open:
            opener = {
                Protocol.TCP: self._open_stream,
                Protocol.UDP: self._open_udp,
                Protocol.SCTP: self._open_stream if has_kernel_sctp() else self._open_raw_sctp,
            }
            self._open[wanted] = opener[wanted.protocol](wanted)

    def stop(self, listening: Listening) -> None:
        """Close a port and reset the open connections to it."""
        if port := self._open.pop(listening, None):
            port.close()

    def close(self) -> None:
        for listening in tuple(self._open):
            self.stop(listening)
        for sock in self._sctp.values():
            _close(sock)
        self._sctp = {}

    def _bound(self, wanted: Listening) -> socket.socket:
        return bound_socket(
            self._hosts,
            wanted.host,
            wanted.family,
            wanted.protocol,
            address=wanted.address,
            port=wanted.port,
        )

    def _open_stream(self, wanted: Listening) -> _Port:
        sock = self._bound(wanted)
        sock.listen(_BACKLOG)
        port = _Port(wanted.host, sock)
        asyncio.get_running_loop().add_reader(sock, port.accept)
        return port

    def _open_udp(self, wanted: Listening) -> _Port:
        port = _Port(wanted.host, self._bound(wanted))
        asyncio.get_running_loop().add_reader(port.sock, port.answer_datagram)
        return port

    def _open_raw_sctp(self, wanted: Listening) -> _Port:
        """Open the raw socket that serves all SCTP ports of a host, unless it is open.

        A raw socket receives every SCTP packet, so each packet is compared with the open ports.
        """
        key = (wanted.host, wanted.family)
        if key not in self._sctp:
            sock = self._sctp[key] = raw_sctp_socket(self._hosts, wanted.host, wanted.family)
            asyncio.get_running_loop().add_reader(sock, self._answer_sctp, sock, *key)
        return _Port(wanted.host, None)

    def _answer_sctp(self, sock: socket.socket, host: str, family: Family) -> None:
        data, peer = sock.recvfrom(2048)
        packet = parse_sctp(strip_ipv4_header(data) if family is Family.IPV4 else data)
        if packet is None or packet.chunk != INIT:
            return
        ports = {o.port for o in self._open if o.protocol is Protocol.SCTP and o.host == host}
        if packet.destination_port in ports:
            sock.sendto(format_sctp(_init_ack(packet, host, peer[0])), peer)


class _Port:
    """One echo port and the connections made to it."""

    def __init__(self, host: str, sock: socket.socket | None) -> None:
        self.host = host
        self._listener = sock
        self._connections: set[socket.socket] = set()

    @property
    def sock(self) -> socket.socket:
        assert self._listener is not None, "a raw SCTP port has no socket of its own"
        return self._listener

    def accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, peer = self.sock.accept()
                connection.setblocking(False)
                self._connections.add(connection)
                answer = encode_reply(self.host, peer[:2]) + b"\n"
                loop = asyncio.get_running_loop()
                loop.add_reader(connection, self._answer_lines, connection, answer)

    def _answer_lines(self, connection: socket.socket, answer: bytes) -> None:
        try:
            data = connection.recv(4096)
            if data.startswith(b"GET "):
                connection.send(_HTTP_ANSWER)
            elif data:
                connection.send(answer * data.count(b"\n"))
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # The client has reset the connection.
        self._connections.discard(connection)
        _close(connection)

    def answer_datagram(self) -> None:
        # The kernel reports an ICMP error about an earlier answer on the next call. Its client
        # has gone, so there is nothing to do about it.
        with contextlib.suppress(OSError):
            _, peer = self.sock.recvfrom(2048)
            self.sock.sendto(encode_reply(self.host, peer[:2]), peer)

    def close(self) -> None:
        for sock in (*self._connections, *filter(None, [self._listener])):
            _close(sock)
        self._connections.clear()


def _close(sock: socket.socket) -> None:
    asyncio.get_running_loop().remove_reader(sock)
    sock.close()


def _init_ack(packet: SctpPacket, host: str, source: str) -> SctpPacket:
    return SctpPacket(
        source_port=packet.destination_port,
        destination_port=packet.source_port,
        tag=packet.initiate_tag,
        chunk=INIT_ACK,
        initiate_tag=_SCTP_TAG,
        cookie=encode_reply(host, (source, packet.source_port)),
    )


def encode_reply(host: str, peer: tuple[str, int]) -> bytes:
    return msgspec.json.encode(EchoReply(host, peer[0], peer[1]))
