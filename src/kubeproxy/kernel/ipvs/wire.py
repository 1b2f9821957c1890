"""IPVS messages: virtual servers and their destinations as bytes, both directions. Pure.

Why: the kernel's load balancer is driven by 17 commands and two nested attributes; this is their
table. Promise: the kernel accepts what is formatted here, in both families, and its answers are
parsed into values that compare. Leaves to others: sending (`table`), and what should exist.

Constants have the names of linux/ip_vs.h. A cold start formats tens of thousands of destinations
which differ only in address, port and weight, so those are joined from pre-packed parts.
"""

from __future__ import annotations

import struct

import msgspec

from kubeproxy.facts.address import family_of, pack_address, unpack_address
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink import codec

IPVS_GENL_NAME = "IPVS"

IPVS_CMD_NEW_SERVICE = 1
IPVS_CMD_SET_SERVICE = 2
IPVS_CMD_DEL_SERVICE = 3
IPVS_CMD_GET_SERVICE = 4
IPVS_CMD_NEW_DEST = 5
IPVS_CMD_SET_DEST = 6
IPVS_CMD_DEL_DEST = 7
IPVS_CMD_GET_DEST = 8
IPVS_CMD_SET_CONFIG = 12
IPVS_CMD_GET_CONFIG = 13

IPVS_CMD_ATTR_SERVICE = 1
IPVS_CMD_ATTR_DEST = 2
IPVS_CMD_ATTR_TIMEOUT_TCP = 4
IPVS_CMD_ATTR_TIMEOUT_TCP_FIN = 5
IPVS_CMD_ATTR_TIMEOUT_UDP = 6

IPVS_SVC_ATTR_AF = 1
IPVS_SVC_ATTR_PROTOCOL = 2
IPVS_SVC_ATTR_ADDR = 3
IPVS_SVC_ATTR_PORT = 4
IPVS_SVC_ATTR_FWMARK = 5
IPVS_SVC_ATTR_SCHED_NAME = 6
IPVS_SVC_ATTR_FLAGS = 7
IPVS_SVC_ATTR_TIMEOUT = 8
IPVS_SVC_ATTR_NETMASK = 9

IPVS_DEST_ATTR_ADDR = 1
IPVS_DEST_ATTR_PORT = 2
IPVS_DEST_ATTR_FWD_METHOD = 3
IPVS_DEST_ATTR_WEIGHT = 4
IPVS_DEST_ATTR_U_THRESH = 5
IPVS_DEST_ATTR_L_THRESH = 6
IPVS_DEST_ATTR_ACTIVE_CONNS = 7
IPVS_DEST_ATTR_INACT_CONNS = 8
IPVS_DEST_ATTR_ADDR_FAMILY = 11

IP_VS_SVC_F_PERSISTENT = 0x1
"""A client stays with its real server for a time."""
IP_VS_SVC_F_HASHED = 0x2
"""Set by the kernel itself while the service is in its table."""
IP_VS_SVC_F_SCHED_FALLBACK = 0x8
"""For the sh and mh schedulers: take another real server where the chosen one has weight 0."""
IP_VS_SVC_F_SCHED_MH_PORT = 0x10
"""For the mh scheduler: hash the source port as well."""

IP_VS_CONN_F_MASQ = 0
"""The forwarding method that translates addresses, whatever the network between."""
_IP_VS_CONN_F_FWD_MASK = 0x7

# The netmask of a service applies to its clients, for persistence: each host for itself. IPv4
# takes it as a mask, IPv6 as a prefix length.
_HOST_MASK = {Family.IPV4: b"\xff\xff\xff\xff", Family.IPV6: struct.pack("=I", 128)}
_ATTR_HEAD = struct.Struct("=HH")
_U32 = struct.Struct("=I")
_PORT = struct.Struct(">H2x")


class Service(msgspec.Struct, frozen=True, gc=False):
    """A virtual server as the kernel describes it, without the flag that is the kernel's own."""

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
    forward: int = IP_VS_CONN_F_MASQ
    active: int = 0
    inactive: int = 0

    @property
    def connections(self) -> int:
        return self.active + self.inactive


class Timeouts(msgspec.Struct, frozen=True, gc=False):
    """Seconds; 0 in a request keeps the present value."""

    tcp: int
    tcp_fin: int
    udp: int


def _key_attrs(protocol: int, address: str, port: int) -> bytes:
    return (
        codec.attr_u16(IPVS_SVC_ATTR_AF, family_of(address).af)
        + codec.attr_u16(IPVS_SVC_ATTR_PROTOCOL, protocol)
        + codec.attr(IPVS_SVC_ATTR_ADDR, pack_address(address))
        + codec.attr_be16(IPVS_SVC_ATTR_PORT, port)
    )


def format_key(protocol: int, address: str, port: int) -> bytes:
    """The attribute that names the virtual server a message is about."""
    return codec.attr_nested(IPVS_CMD_ATTR_SERVICE, _key_attrs(protocol, address, port))


def format_service(command: int, service: Service) -> bytes:
    """Body of IPVS_CMD_NEW_SERVICE or IPVS_CMD_SET_SERVICE."""
    attrs = codec.attr_nested(
        IPVS_CMD_ATTR_SERVICE,
        _key_attrs(service.protocol, service.address, service.port),
        codec.attr_str(IPVS_SVC_ATTR_SCHED_NAME, service.scheduler),
        # Flags, and a mask of the flags that are meant.
        codec.attr(IPVS_SVC_ATTR_FLAGS, struct.pack("=II", service.flags, 0xFFFFFFFF)),
        codec.attr_u32(IPVS_SVC_ATTR_TIMEOUT, service.timeout_seconds),
        codec.attr(IPVS_SVC_ATTR_NETMASK, _HOST_MASK[family_of(service.address)]),
    )
    return codec.genl(command) + attrs


def format_service_key(command: int, key: bytes) -> bytes:
    """Body of a message that needs the key alone: IPVS_CMD_DEL_SERVICE, IPVS_CMD_GET_DEST."""
    return codec.genl(command) + key


# A destination is: head, address, port head, port, weight head, weight, thresholds.
_PORT_HEAD = _ATTR_HEAD.pack(6, IPVS_DEST_ATTR_PORT)
_WEIGHT_HEAD = codec.attr_u32(IPVS_DEST_ATTR_FWD_METHOD, IP_VS_CONN_F_MASQ) + _ATTR_HEAD.pack(
    8, IPVS_DEST_ATTR_WEIGHT
)
_THRESHOLDS = codec.attr_u32(IPVS_DEST_ATTR_U_THRESH, 0) + codec.attr_u32(
    IPVS_DEST_ATTR_L_THRESH, 0
)


def _destination_head(length: int) -> bytes:
    """The start of a destination whose address has this many bytes."""
    fixed = len(_PORT_HEAD) + _PORT.size + len(_WEIGHT_HEAD) + _U32.size + len(_THRESHOLDS)
    nested = _ATTR_HEAD.pack(4 + 4 + length + fixed, IPVS_CMD_ATTR_DEST | codec.NLA_F_NESTED)
    return nested + _ATTR_HEAD.pack(4 + length, IPVS_DEST_ATTR_ADDR)


_DEST_HEADS = {length: _destination_head(length) for length in (4, 16)}


def format_destination(command: int, key: bytes, address: str, port: int, weight: int) -> bytes:
    """Body of IPVS_CMD_NEW_DEST or IPVS_CMD_SET_DEST: masquerading, without thresholds."""
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
    """Body of IPVS_CMD_DEL_DEST."""
    return (
        codec.genl(command)
        + key
        + codec.attr_nested(
            IPVS_CMD_ATTR_DEST,
            codec.attr(IPVS_DEST_ATTR_ADDR, pack_address(address)),
            codec.attr_be16(IPVS_DEST_ATTR_PORT, port),
        )
    )


def format_timeouts(timeouts: Timeouts) -> bytes:
    """Body of IPVS_CMD_SET_CONFIG."""
    return (
        codec.genl(IPVS_CMD_SET_CONFIG)
        + codec.attr_u32(IPVS_CMD_ATTR_TIMEOUT_TCP, timeouts.tcp)
        + codec.attr_u32(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, timeouts.tcp_fin)
        + codec.attr_u32(IPVS_CMD_ATTR_TIMEOUT_UDP, timeouts.udp)
    )


def format_command(command: int) -> bytes:
    """Body of a message without attributes: IPVS_CMD_GET_CONFIG, a dump of all services."""
    return codec.genl(command)


def parse_service(body: bytes) -> Service:
    """The virtual server in an answer or request."""
    attrs = codec.parse_attrs(codec.parse_attrs(body, 4)[IPVS_CMD_ATTR_SERVICE])
    af = codec.u16(attrs[IPVS_SVC_ATTR_AF])
    return Service(
        protocol=codec.u16(attrs.get(IPVS_SVC_ATTR_PROTOCOL, b"\0\0")),
        address=_address_text(af, attrs.get(IPVS_SVC_ATTR_ADDR, bytes(16))),
        port=codec.be(attrs.get(IPVS_SVC_ATTR_PORT, b"\0\0")),
        scheduler=codec.text(attrs.get(IPVS_SVC_ATTR_SCHED_NAME, b"")),
        flags=codec.u32(attrs.get(IPVS_SVC_ATTR_FLAGS, bytes(4))) & ~IP_VS_SVC_F_HASHED,
        timeout_seconds=codec.u32(attrs.get(IPVS_SVC_ATTR_TIMEOUT, bytes(4))),
        firewall_mark=codec.u32(attrs.get(IPVS_SVC_ATTR_FWMARK, bytes(4))),
    )


def parse_destination(body: bytes, family: Family) -> Destination:
    """The real server in an answer or request; `family` counts where the message names none."""
    attrs = codec.parse_attrs(codec.parse_attrs(body, 4)[IPVS_CMD_ATTR_DEST])
    named = attrs.get(IPVS_DEST_ATTR_ADDR_FAMILY)
    forward = codec.u32(attrs.get(IPVS_DEST_ATTR_FWD_METHOD, bytes(4)))
    return Destination(
        address=_address_text(codec.u16(named) if named else family.af, attrs[IPVS_DEST_ATTR_ADDR]),
        port=codec.be(attrs[IPVS_DEST_ATTR_PORT]),
        weight=codec.u32(attrs.get(IPVS_DEST_ATTR_WEIGHT, bytes(4))),
        forward=forward & _IP_VS_CONN_F_FWD_MASK,
        active=codec.u32(attrs.get(IPVS_DEST_ATTR_ACTIVE_CONNS, bytes(4))),
        inactive=codec.u32(attrs.get(IPVS_DEST_ATTR_INACT_CONNS, bytes(4))),
    )


def parse_timeouts(body: bytes) -> Timeouts:
    """The answer to IPVS_CMD_GET_CONFIG."""
    attrs = codec.parse_attrs(body, 4)
    return Timeouts(
        tcp=codec.u32(attrs[IPVS_CMD_ATTR_TIMEOUT_TCP]),
        tcp_fin=codec.u32(attrs[IPVS_CMD_ATTR_TIMEOUT_TCP_FIN]),
        udp=codec.u32(attrs[IPVS_CMD_ATTR_TIMEOUT_UDP]),
    )


def _address_text(af: int, raw: bytes) -> str:
    # Answers carry 16 bytes for either family.
    return unpack_address(raw[:4] if af == Family.IPV4.af else raw)
