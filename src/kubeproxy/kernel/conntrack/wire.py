"""ctnetlink messages about UDP flows, as bytes. Pure.

Why a parser of its own: a busy node has hundreds of thousands of entries, and walking the
attributes of each one costs more than all the rest. The kernel writes both tuples of an entry in a
fixed order, so one unpack reads them; the attributes of an entry with another layout (a zone in a
tuple) are walked. Promise: either way the same flows are found. Leaves to others: sending
(`table`), and which flows are stale.

Constants have the names of linux/netfilter/nfnetlink_conntrack.h; those of the filter's flags are
inside the kernel (net/netfilter/nf_internals.h).
"""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

from msgspec import Struct

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.netlink import codec

_NFNL_SUBSYS_CTNETLINK = 1
IPCTNL_MSG_CT_NEW = _NFNL_SUBSYS_CTNETLINK << 8 | 0
IPCTNL_MSG_CT_GET = _NFNL_SUBSYS_CTNETLINK << 8 | 1
IPCTNL_MSG_CT_DELETE = _NFNL_SUBSYS_CTNETLINK << 8 | 2

_CTA_TUPLE_ORIG = 1
_CTA_TUPLE_REPLY = 2
_CTA_ID = 12
_CTA_ZONE = 18
_CTA_FILTER = 25

_CTA_TUPLE_IP = 1
_CTA_TUPLE_PROTO = 2

_CTA_IP_V4_SRC = 1
_CTA_IP_V4_DST = 2
_CTA_IP_V6_SRC = 3
_CTA_IP_V6_DST = 4

_CTA_PROTO_NUM = 1
_CTA_PROTO_SRC_PORT = 2
_CTA_PROTO_DST_PORT = 3

_CTA_FILTER_ORIG_FLAGS = 1
_CTA_FILTER_REPLY_FLAGS = 2
# Which parts of the tuple given along with the filter must match.
_CTA_FILTER_F_CTA_IP_DST = 1 << 1
_CTA_FILTER_F_CTA_PROTO_NUM = 1 << 3
_CTA_FILTER_F_CTA_PROTO_DST_PORT = 1 << 5

_PORT_BYTES = 2
_HEADER = struct.Struct("=IHH")
_ATTRIBUTES = codec.HEADER_LENGTH + 4


class Flow(NamedTuple):
    """A UDP flow: its original destination and its reply's source (packed), and all attributes."""

    destination: bytes
    reply_source: bytes
    attributes: bytes

    @property
    def key(self) -> bytes:
        """The attributes that identify this flow, also against a later one with equal ends."""
        found = codec.parse_attrs(self.attributes)
        return b"".join(
            codec.attr(kind, found[kind])
            for kind in (_CTA_TUPLE_ORIG, _CTA_ZONE, _CTA_ID)
            if kind in found
        )


class ListingPart(Struct, frozen=True):
    """One datagram of a listing; `errno` is None unless the listing ends here."""

    flows: list[Flow]
    errno: int | None
    is_interrupted: bool


class _Layout(NamedTuple):
    """A UDP entry of one family, without zones in its tuples.

    `ends` unpacks both ends together with the frame: the attribute headers between them and the
    protocol, by which this layout is recognised.
    """

    source: int
    destination: int
    ends: struct.Struct
    frame: tuple[bytes, bytes, int, bytes]


def _layout(size: int, source: int, destination: int) -> _Layout:
    """The layout with addresses of this size in these attributes."""
    ends = struct.Struct(
        f"=12s{size}x4x{size}s8sB7x2x6x2s2x"  # original: destination address and port
        f"12s{size}s4x{size}x8x1x7x2s6x2x2x"  # reply: source address and port
    )
    address = bytes(size)
    addresses = codec.attr(source, address) + codec.attr(destination, address)
    ports = codec.attr(_CTA_PROTO_SRC_PORT, bytes(2)) + codec.attr(_CTA_PROTO_DST_PORT, bytes(2))
    sample = b"".join(
        _tuple(kind, addresses, ports) for kind in (_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY)
    )
    first, _, second, udp, _, third, _, _ = ends.unpack(sample)
    return _Layout(source, destination, ends, (first, second, udp, third))


def _tuple(kind: int, addresses: bytes, ports: bytes) -> bytes:
    """One direction of a UDP flow."""
    protocol = codec.attr_u8(_CTA_PROTO_NUM, Protocol.UDP.number)
    return codec.attr_nested(
        kind,
        codec.attr_nested(_CTA_TUPLE_IP, addresses),
        codec.attr_nested(_CTA_TUPLE_PROTO, protocol, ports),
    )


_LAYOUTS = {
    Family.IPV4: _layout(4, _CTA_IP_V4_SRC, _CTA_IP_V4_DST),
    Family.IPV6: _layout(16, _CTA_IP_V6_SRC, _CTA_IP_V6_DST),
}


def format_listing(family: Family, destination: bytes = b"") -> bytes:
    """Body of IPCTNL_MSG_CT_GET for UDP flows to a packed address and port, to a port, or for all.

    The kernel may return more: it filters since Linux 5.8, and an older one ignores the filter.
    """
    address, port = destination[:-_PORT_BYTES], destination[-_PORT_BYTES:]
    if family is Family.IPV6:
        # The kernel's comparison of IPv6 addresses is the wrong way round (seen in 6.18: equal ones
        # are left out), so only the port is given.
        address = b""
    flags = (
        _CTA_FILTER_F_CTA_PROTO_NUM
        | (_CTA_FILTER_F_CTA_IP_DST if address else 0)
        | (_CTA_FILTER_F_CTA_PROTO_DST_PORT if port else 0)
    )
    wanted = _tuple(
        _CTA_TUPLE_ORIG,
        codec.attr(_LAYOUTS[family].destination, address) if address else b"",
        codec.attr(_CTA_PROTO_DST_PORT, port) if port else b"",
    )
    bits = (
        codec.attr_u32(_CTA_FILTER_ORIG_FLAGS, flags),
        codec.attr_u32(_CTA_FILTER_REPLY_FLAGS, 0),
    )
    return codec.nfgen(family.af) + wanted + codec.attr_nested(_CTA_FILTER, *bits)


def format_delete(family: Family, flow: Flow) -> bytes:
    """Body of IPCTNL_MSG_CT_DELETE."""
    return codec.nfgen(family.af) + flow.key


def parse_listing(data: bytes, family: Family) -> ListingPart:
    """The UDP flows of one datagram, and whether the listing ends with it."""
    layout = _LAYOUTS[family]
    shortest = _ATTRIBUTES + layout.ends.size
    flows: list[Flow] = []
    interrupted = 0
    start, end = 0, len(data)
    while start + codec.HEADER_LENGTH <= end:
        length, kind, flags = _HEADER.unpack_from(data, start)
        interrupted |= flags & codec.NLM_F_DUMP_INTR
        if kind in (codec.NLMSG_DONE, codec.NLMSG_ERROR):
            return ListingPart(flows, _end_errno(data, start), bool(interrupted))
        if kind == IPCTNL_MSG_CT_NEW and length >= shortest:
            flow = _parse_flow(data, start + _ATTRIBUTES, start + length, layout)
            if flow is not None:
                flows.append(flow)
        start += codec.align(max(length, codec.HEADER_LENGTH))
    return ListingPart(flows, None, bool(interrupted))


def _end_errno(data: bytes, start: int) -> int:
    """The error number with which NLMSG_DONE and NLMSG_ERROR begin, made positive; 0 is success."""
    raw = data[start + codec.HEADER_LENGTH : start + codec.HEADER_LENGTH + 4]
    return -int.from_bytes(raw, sys.byteorder, signed=True)


def _parse_flow(data: bytes, start: int, stop: int, layout: _Layout) -> Flow | None:
    """The flow between `start` and `stop`, or None if it is not UDP."""
    first, address, second, protocol, port, third, source, source_port = layout.ends.unpack_from(
        data, start
    )
    if (first, second, protocol, third) == layout.frame:
        return Flow(address + port, source + source_port, data[start:stop])
    return _walk_flow(data[start:stop], layout)


def _walk_flow(attributes: bytes, layout: _Layout) -> Flow | None:
    """The flow in these attributes, whatever their order, or None if it is not UDP."""
    found = codec.parse_attrs(attributes)
    sent = _walk_end(found.get(_CTA_TUPLE_ORIG, b""), layout.destination, _CTA_PROTO_DST_PORT)
    answers = _walk_end(found.get(_CTA_TUPLE_REPLY, b""), layout.source, _CTA_PROTO_SRC_PORT)
    return Flow(sent, answers, attributes) if sent and answers else None


def _walk_end(raw: bytes, address_kind: int, port_kind: int) -> bytes:
    """One end of a tuple, packed; empty if the tuple is not UDP."""
    parts = codec.parse_attrs(raw)
    addresses = codec.parse_attrs(parts.get(_CTA_TUPLE_IP, b""))
    protocol = codec.parse_attrs(parts.get(_CTA_TUPLE_PROTO, b""))
    if protocol.get(_CTA_PROTO_NUM) != bytes((Protocol.UDP.number,)):
        return b""
    return addresses.get(address_kind, b"") + protocol.get(port_kind, b"")
