"""Wire formats the lab needs and the standard library lacks: SCTP's handshake, ICMP errors.

Pure functions over bytes. SCTP is implemented here rather than by the kernel because many kernels
are built without it, while their connection tracking and NAT support it. An INIT answered by an
INIT ACK is enough to see where a packet went.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import msgspec

from kubeproxy.facts.ids import Family, Protocol

INIT, INIT_ACK, ABORT = 1, 2, 6
_STATE_COOKIE = 7
_COMMON = struct.Struct("!HHII")
_INIT = struct.Struct("!IIHHI")
_CHUNK = struct.Struct("!BBH")
_WINDOW, _STREAMS = 65536, 1
_CASTAGNOLI = 0x82F63B78
_BY_NUMBER = {protocol.number: protocol for protocol in Protocol}

# ICMP types that mean "your packet did not get there", and the code that means "no such port".
_ICMP_ERRORS = {Family.IPV4: (3, 11), Family.IPV6: (1, 3)}
_PORT_UNREACHABLE = {Family.IPV4: (3, 3), Family.IPV6: (1, 4)}


class SctpPacket(msgspec.Struct, frozen=True):
    """The part of an SCTP packet a handshake needs: ports, tags, first chunk, cookie."""

    source_port: int
    destination_port: int
    tag: int
    chunk: int
    initiate_tag: int
    cookie: bytes = b""


class IcmpError(msgspec.Struct, frozen=True):
    """An ICMP error, and the packet of ours that it quotes."""

    is_port_unreachable: bool
    protocol: Protocol
    source_port: int
    destination_port: int


def format_sctp(packet: SctpPacket) -> bytes:
    """The packet as bytes, checksum included."""
    body = _chunk_body(packet)
    chunk = _CHUNK.pack(packet.chunk, 0, _CHUNK.size + len(body)) + body
    chunk += b"\0" * (-len(chunk) % 4)
    ports = (packet.source_port, packet.destination_port, packet.tag)
    checksum = crc32c(_COMMON.pack(*ports, 0) + chunk)
    return _COMMON.pack(*ports, int.from_bytes(checksum.to_bytes(4, "little"), "big")) + chunk


def _chunk_body(packet: SctpPacket) -> bytes:
    if packet.chunk == ABORT:
        return b""
    body = _INIT.pack(packet.initiate_tag, _WINDOW, _STREAMS, _STREAMS, 1)
    if packet.chunk != INIT_ACK:
        return body
    return body + struct.pack("!HH", _STATE_COOKIE, 4 + len(packet.cookie)) + packet.cookie


def parse_sctp(data: bytes) -> SctpPacket | None:
    """The packet in these bytes, or None if it is no part of a handshake."""
    if len(data) < _COMMON.size + _CHUNK.size:
        return None
    source, destination, tag, _ = _COMMON.unpack_from(data)
    kind, _, length = _CHUNK.unpack_from(data, _COMMON.size)
    body = data[_COMMON.size + _CHUNK.size : _COMMON.size + length]
    if kind == ABORT:
        return SctpPacket(source, destination, tag, kind, 0)
    if kind not in (INIT, INIT_ACK) or len(body) < _INIT.size:
        return None
    initiate_tag = _INIT.unpack_from(body)[0]
    return SctpPacket(source, destination, tag, kind, initiate_tag, _cookie(body[_INIT.size :]))


def _cookie(parameters: bytes) -> bytes:
    while len(parameters) >= 4:
        kind, length = struct.unpack_from("!HH", parameters)
        if kind == _STATE_COOKIE:
            return parameters[4:length]
        parameters = parameters[max(4, length + (-length % 4)) :]
    return b""


@lru_cache(maxsize=1)
def _table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


def crc32c(data: bytes) -> int:
    """The checksum of SCTP (RFC 9260, appendix A)."""
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def strip_ipv4_header(data: bytes) -> bytes:
    """What follows the IPv4 header. (IPv6 raw sockets deliver no header.)"""
    return data[(data[0] & 0x0F) * 4 :]


def parse_icmp_error(data: bytes, family: Family) -> IcmpError | None:
    """The error in an ICMP message (without IP header), or None if it is none of interest."""
    if len(data) < 8 or data[0] not in _ICMP_ERRORS[family]:
        return None
    quoted = _quoted_transport(data[8:], family)
    if quoted is None or len(quoted[1]) < 4 or quoted[0] not in _BY_NUMBER:
        return None
    source, destination = struct.unpack_from("!HH", quoted[1])
    return IcmpError(
        is_port_unreachable=(data[0], data[1]) == _PORT_UNREACHABLE[family],
        protocol=_BY_NUMBER[quoted[0]],
        source_port=source,
        destination_port=destination,
    )


def _quoted_transport(packet: bytes, family: Family) -> tuple[int, bytes] | None:
    """Protocol number and transport header of the packet an error quotes."""
    if family is Family.IPV4:
        return (packet[9], strip_ipv4_header(packet)) if len(packet) >= 20 else None
    return (packet[6], packet[40:]) if len(packet) >= 40 else None
