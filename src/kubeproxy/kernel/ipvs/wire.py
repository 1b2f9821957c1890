"""IPVS messages: virtual servers and their destinations as bytes, both directions. Pure.

Why: the kernel's load balancer is driven by 17 commands and two nested attributes; this is their
table. Promise: what is formatted here the kernel accepts for both families; what the kernel
answers is parsed into values that compare. Leaves to others: sending (`kernel.ipvs`), and what
should exist.

A cold start formats tens of thousands of destinations which differ only in address, port and
weight, so those are joined from pre-packed parts.
"""

from __future__ import annotations

import socket
import struct
from functools import lru_cache

import msgspec

from kubeproxy.kernel.netlink import codec

FAMILY_NAME = "IPVS"

NEW_SERVICE = 1
SET_SERVICE = 2
DEL_SERVICE = 3
GET_SERVICE = 4
NEW_DEST = 5
SET_DEST = 6
DEL_DEST = 7
GET_DEST = 8
SET_CONFIG = 12
GET_CONFIG = 13
GET_INFO = 15
FLUSH = 17

PERSISTENT = 0x1
HASHED = 0x2
MH_PORT = 0x10

MASQUERADE = 0
_FORWARD_MASK = 0x7

_SERVICE = 1
_DEST = 2
_TIMEOUT_TCP = 4
_TIMEOUT_TCP_FIN = 5
_TIMEOUT_UDP = 6

_SVC_AF = 1
_SVC_PROTOCOL = 2
_SVC_ADDR = 3
_SVC_PORT = 4
_SVC_FWMARK = 5
_SVC_SCHED = 6
_SVC_FLAGS = 7
_SVC_TIMEOUT = 8
_SVC_NETMASK = 9

_DEST_ADDR = 1
_DEST_PORT = 2
_DEST_FORWARD = 3
_DEST_WEIGHT = 4
_DEST_UPPER = 5
_DEST_LOWER = 6
_DEST_ACTIVE = 7
_DEST_INACTIVE = 8
_DEST_AF = 11

_HOST_MASK = {socket.AF_INET: b"\xff\xff\xff\xff", socket.AF_INET6: struct.pack("=I", 128)}
_ATTR_HEAD = struct.Struct("=HH")
_U32 = struct.Struct("=I")
_PORT = struct.Struct(">H2x")


class Service(msgspec.Struct, frozen=True, gc=False):
    """A virtual server as the kernel describes it; flags without the kernel's own bit."""

    protocol: int
    address: str
    port: int
    scheduler: str
    flags: int
    timeout_seconds: int
    firewall_mark: int = 0


class Destination(msgspec.Struct, frozen=True, gc=False):
    """A real server as the kernel describes it."""

    address: str
    port: int
    weight: int
    forward: int = MASQUERADE
    active: int = 0
    inactive: int = 0

    @property
    def connections(self) -> int:
        return self.active + self.inactive


class Timeouts(msgspec.Struct, frozen=True, gc=False):
    """Seconds; 0 in a request keeps what holds."""

    tcp: int
    tcp_fin: int
    udp: int


@lru_cache(maxsize=8192)
def pack_address(address: str) -> bytes:
    """Four or sixteen bytes."""
    return socket.inet_pton(_af(address), address)


def _af(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _key_attrs(protocol: int, address: str, port: int) -> bytes:
    return (
        codec.attr_u16(_SVC_AF, _af(address))
        + codec.attr_u16(_SVC_PROTOCOL, protocol)
        + codec.attr(_SVC_ADDR, pack_address(address))
        + codec.attr_be16(_SVC_PORT, port)
    )


def format_key(protocol: int, address: str, port: int) -> bytes:
    """The attribute that says which virtual server a message is about."""
    return codec.attr_nested(_SERVICE, _key_attrs(protocol, address, port))


def format_service(command: int, service: Service) -> bytes:
    """Body of NEW_SERVICE or SET_SERVICE."""
    attrs = codec.attr_nested(
        _SERVICE,
        _key_attrs(service.protocol, service.address, service.port),
        codec.attr_str(_SVC_SCHED, service.scheduler),
        codec.attr(_SVC_FLAGS, struct.pack("=II", service.flags, 0xFFFFFFFF)),
        codec.attr_u32(_SVC_TIMEOUT, service.timeout_seconds),
        codec.attr(_SVC_NETMASK, _HOST_MASK[_af(service.address)]),
    )
    return codec.genl(command) + attrs


def format_service_key(command: int, key: bytes = b"") -> bytes:
    """Body of a message that needs nothing but the key: DEL_SERVICE, GET_SERVICE, GET_DEST."""
    return codec.genl(command) + key


# A destination is: head, address, port head, port, weight head, weight, thresholds.
_PORT_HEAD = _ATTR_HEAD.pack(6, _DEST_PORT)
_WEIGHT_HEAD = codec.attr_u32(_DEST_FORWARD, MASQUERADE) + _ATTR_HEAD.pack(8, _DEST_WEIGHT)
_THRESHOLDS = codec.attr_u32(_DEST_UPPER, 0) + codec.attr_u32(_DEST_LOWER, 0)


def _destination_head(length: int) -> bytes:
    """The start of a destination whose address has this many bytes."""
    fixed = len(_PORT_HEAD) + _PORT.size + len(_WEIGHT_HEAD) + _U32.size + len(_THRESHOLDS)
    nested = _ATTR_HEAD.pack(4 + 4 + length + fixed, _DEST | codec.NLA_F_NESTED)
    return nested + _ATTR_HEAD.pack(4 + length, _DEST_ADDR)


_DEST_HEADS = {length: _destination_head(length) for length in (4, 16)}


def format_destination(command: int, key: bytes, address: str, port: int, weight: int) -> bytes:
    """Body of NEW_DEST or SET_DEST: masquerading, without connection thresholds."""
    packed = pack_address(address)
    return b"".join(
        (
            codec.genl(command),
            key,
            _DEST_HEADS[len(packed)],
            packed,
            _PORT_HEAD,
            _PORT.pack(port),
            _WEIGHT_HEAD,
            _U32.pack(weight),
            _THRESHOLDS,
        )
    )


def format_destination_key(command: int, key: bytes, address: str, port: int) -> bytes:
    """Body of DEL_DEST."""
    return (
        codec.genl(command)
        + key
        + codec.attr_nested(
            _DEST,
            codec.attr(_DEST_ADDR, pack_address(address)),
            codec.attr_be16(_DEST_PORT, port),
        )
    )


def format_timeouts(timeouts: Timeouts) -> bytes:
    """Body of SET_CONFIG."""
    return (
        codec.genl(SET_CONFIG)
        + codec.attr_u32(_TIMEOUT_TCP, timeouts.tcp)
        + codec.attr_u32(_TIMEOUT_TCP_FIN, timeouts.tcp_fin)
        + codec.attr_u32(_TIMEOUT_UDP, timeouts.udp)
    )


def format_command(command: int) -> bytes:
    """Body of a message without attributes: FLUSH, GET_CONFIG, a dump of all services."""
    return codec.genl(command)


def parse_service(body: bytes) -> Service:
    """The virtual server in an answer or request."""
    attrs = codec.parse_attrs(codec.parse_attrs(body, 4)[_SERVICE])
    af = codec.u16(attrs[_SVC_AF])
    return Service(
        protocol=codec.u16(attrs.get(_SVC_PROTOCOL, b"\0\0")),
        address=_text_address(af, attrs.get(_SVC_ADDR, bytes(16))),
        port=codec.be(attrs.get(_SVC_PORT, b"\0\0")),
        scheduler=codec.text(attrs.get(_SVC_SCHED, b"")),
        flags=codec.u32(attrs.get(_SVC_FLAGS, bytes(4))) & ~HASHED,
        timeout_seconds=codec.u32(attrs.get(_SVC_TIMEOUT, bytes(4))),
        firewall_mark=codec.u32(attrs.get(_SVC_FWMARK, bytes(4))),
    )


def parse_destination(body: bytes, default_af: int) -> Destination:
    """The real server in an answer or request; `default_af` where the message has no family."""
    attrs = codec.parse_attrs(codec.parse_attrs(body, 4)[_DEST])
    af = codec.u16(attrs[_DEST_AF]) if _DEST_AF in attrs else default_af
    return Destination(
        address=_text_address(af, attrs[_DEST_ADDR]),
        port=codec.be(attrs[_DEST_PORT]),
        weight=codec.u32(attrs.get(_DEST_WEIGHT, bytes(4))),
        forward=codec.u32(attrs.get(_DEST_FORWARD, bytes(4))) & _FORWARD_MASK,
        active=codec.u32(attrs.get(_DEST_ACTIVE, bytes(4))),
        inactive=codec.u32(attrs.get(_DEST_INACTIVE, bytes(4))),
    )


def parse_timeouts(body: bytes) -> Timeouts:
    attrs = codec.parse_attrs(body, 4)
    return Timeouts(
        tcp=codec.u32(attrs[_TIMEOUT_TCP]),
        tcp_fin=codec.u32(attrs[_TIMEOUT_TCP_FIN]),
        udp=codec.u32(attrs[_TIMEOUT_UDP]),
    )


def _text_address(af: int, raw: bytes) -> str:
    """Answers carry 16 bytes for either family."""
    return socket.inet_ntop(af, raw[:4] if af == socket.AF_INET else raw)
