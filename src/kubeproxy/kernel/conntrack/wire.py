"""ctnetlink messages as bytes: requests, and the flows of one protocol to look through. Pure.

Why a parser of its own: a busy node has hundreds of thousands of entries, and walking the
attributes of each one costs more than all the rest. The kernel writes both tuples of an entry in a
fixed order, so one unpack reads where it was sent to, and most entries are passed over with that;
the attributes of an entry with another layout (a zone in a tuple) are walked. Promise: either way
the same flows are found. Leaves to others: whole entries, for showing and counting (`entries`),
sending (`table`), and which flows are stale.

Constants have the names of linux/netfilter/nfnetlink_conntrack.h; those of the filter's flags are
inside the kernel (net/netfilter/nf_internals.h).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.netlink import codec

_NFNL_SUBSYS_CTNETLINK = 1
IPCTNL_MSG_CT_NEW = _NFNL_SUBSYS_CTNETLINK << 8 | 0
IPCTNL_MSG_CT_GET = _NFNL_SUBSYS_CTNETLINK << 8 | 1
IPCTNL_MSG_CT_DELETE = _NFNL_SUBSYS_CTNETLINK << 8 | 2

CTA_TUPLE_ORIG = 1
CTA_TUPLE_REPLY = 2
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

NFNLGRP_CONNTRACK_NEW = 1
NFNLGRP_CONNTRACK_DESTROY = 3

PORT_BYTES = 2
HEADER = struct.Struct("=IHH")
ATTRIBUTES = codec.HEADER_LENGTH + 4
"""Where the attributes of a message begin."""

FILTER_LIMIT = 8
"""Up to this many destinations are asked for one by one: each request walks the kernel's table,
but only what matches is copied out and parsed."""


class Ends(NamedTuple):
    """How the addresses of a family stand in a tuple: their size and their attributes."""

    size: int
    source: int
    destination: int


ENDS = {
    Family.IPV4: Ends(4, _CTA_IP_V4_SRC, _CTA_IP_V4_DST),
    Family.IPV6: Ends(16, _CTA_IP_V6_SRC, _CTA_IP_V6_DST),
}


def sample_tuples(ends: Ends, protocol: Protocol) -> bytes:
    """Both tuples of an entry as the kernel lays them out, filled with zeros."""
    address = bytes(ends.size)
    addresses = codec.attr(ends.source, address) + codec.attr(ends.destination, address)
    ports = codec.attr(_CTA_PROTO_SRC_PORT, bytes(2)) + codec.attr(_CTA_PROTO_DST_PORT, bytes(2))
    return b"".join(
        _tuple(kind, protocol, addresses, ports) for kind in (CTA_TUPLE_ORIG, CTA_TUPLE_REPLY)
    )


def _tuple(kind: int, protocol: Protocol, addresses: bytes, ports: bytes) -> bytes:
    """One direction of a flow."""
    return codec.attr_nested(
        kind,
        codec.attr_nested(_CTA_TUPLE_IP, addresses),
        codec.attr_nested(_CTA_TUPLE_PROTO, codec.attr_u8(_CTA_PROTO_NUM, protocol.number), ports),
    )


def walk_tuple(raw: bytes, ends: Ends) -> tuple[int, bytes, bytes]:
    """Protocol number, source and destination of a tuple, packed; without ports if it has none."""
    parts = codec.parse_attrs(raw)
    addresses = codec.parse_attrs(parts.get(_CTA_TUPLE_IP, b""))
    ports = codec.parse_attrs(parts.get(_CTA_TUPLE_PROTO, b""))
    return (
        codec.be(ports.get(_CTA_PROTO_NUM, b"\0")),
        addresses.get(ends.source, b"") + ports.get(_CTA_PROTO_SRC_PORT, b""),
        addresses.get(ends.destination, b"") + ports.get(_CTA_PROTO_DST_PORT, b""),
    )


# ---- requests ----


def narrow(family: Family, destinations: Collection[bytes]) -> list[bytes]:
    """What to ask the kernel for so that no flow to these destinations is missing.

    Each is a packed address and port, a port, or nothing for all flows. None given means all.
    """
    wanted = set(destinations)
    if family is Family.IPV6 or len(wanted) > FILTER_LIMIT:
        # The kernel's comparison of IPv6 addresses is the wrong way round (seen in 6.18: equal ones
        # are left out), so only the port is given.
        wanted = {destination[-PORT_BYTES:] for destination in wanted}
    return sorted(wanted) if 0 < len(wanted) <= FILTER_LIMIT else [b""]


def format_listing(family: Family, protocol: Protocol, destination: bytes = b"") -> bytes:
    """Body of IPCTNL_MSG_CT_GET for flows to a packed address and port, to a port, or for all.

    The kernel may return more: it filters since Linux 5.8, and an older one ignores the filter.
    """
    address, port = destination[:-PORT_BYTES], destination[-PORT_BYTES:]
    flags = (
        _CTA_FILTER_F_CTA_PROTO_NUM
        | (_CTA_FILTER_F_CTA_IP_DST if address else 0)
        | (_CTA_FILTER_F_CTA_PROTO_DST_PORT if port else 0)
    )
    wanted = _tuple(
        CTA_TUPLE_ORIG,
        protocol,
        codec.attr(ENDS[family].destination, address) if address else b"",
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


# ---- replies ----


class Flow(NamedTuple):
    """A flow: its original destination and its reply's source (packed), and all attributes."""

    destination: bytes
    reply_source: bytes
    attributes: bytes

    @property
    def key(self) -> bytes:
        """The attributes that identify this flow, also against a later one with equal ends."""
        found = codec.parse_attrs(self.attributes)
        return b"".join(
            codec.attr(kind, found[kind])
            for kind in (CTA_TUPLE_ORIG, _CTA_ZONE, _CTA_ID)
            if kind in found
        )


def source_of(flow: Flow, family: Family) -> bytes:
    """Who sent the flow: packed address and port."""
    found = codec.parse_attrs(flow.attributes)
    return walk_tuple(found.get(CTA_TUPLE_ORIG, b""), ENDS[family])[1]


class ListingPart(Struct, frozen=True):
    """One datagram of a listing; `errno` is None unless the listing ends here."""

    flows: list[Flow]
    errno: int | None
    is_interrupted: bool


class _Layout(NamedTuple):
    """An entry of one family and protocol, without zones in its tuples.

    `sent` unpacks the header of a message and where the flow was sent to, together with the frame:
    the attribute headers around it and the protocol, by which this layout is recognised. `answered`
    unpacks what follows: who answers.
    """

    ends: Ends
    number: int
    sent: struct.Struct
    answered: struct.Struct
    frame: tuple[bytes, bytes, bytes]


@cache
def _layout(family: Family, protocol: Protocol) -> _Layout:
    ends = ENDS[family]
    size = ends.size
    sent = struct.Struct(f"=IHH12x12s{size}x4x{size}s8sB7x2x6x2s2x")
    answered = struct.Struct(f"=12s{size}s4x{size}x8x1x7x2s6x2x2x")
    sample = bytes(ATTRIBUTES) + sample_tuples(ends, protocol)
    *_, first, _, second, _, _ = sent.unpack_from(sample)
    third = answered.unpack_from(sample, sent.size)[0]
    return _Layout(ends, protocol.number, sent, answered, (first, second, third))


def parse_listing(
    data: bytes, family: Family, protocol: Protocol, addresses: Collection[bytes] | None = None
) -> ListingPart:
    """The flows of one datagram, and whether the listing ends with it.

    `addresses`: only flows that were sent to one of these; None means any.
    """
    layout = _layout(family, protocol)
    unpack, number, (before, between, _) = layout.sent.unpack_from, layout.number, layout.frame
    flows: list[Flow | None] = []
    interrupted = 0
    start, last = 0, len(data) - layout.sent.size - layout.answered.size
    while start <= last:
        length, kind, flags, first, address, second, found, port = unpack(data, start)
        if kind != IPCTNL_MSG_CT_NEW:
            break
        interrupted |= flags
        if first != before or second != between:
            flow = _walk_flow(data[start + ATTRIBUTES : start + length], layout)
            if flow and (addresses is None or flow.destination[:-PORT_BYTES] in addresses):
                flows.append(flow)
        elif found == number and (addresses is None or address in addresses):
            flows.append(_read_flow(data, start, length, layout, address + port))
        start += codec.align(max(length, codec.HEADER_LENGTH))
    errno, flags = _find_end(data, start)
    is_interrupted = bool((interrupted | flags) & codec.NLM_F_DUMP_INTR)
    return ListingPart([flow for flow in flows if flow], errno, is_interrupted)


def _find_end(data: bytes, start: int) -> tuple[int | None, int]:
    """The error number and flags of the message that ends a listing, if it is in the rest."""
    while start + codec.HEADER_LENGTH <= len(data):
        length, kind, flags = HEADER.unpack_from(data, start)
        if kind in (codec.NLMSG_DONE, codec.NLMSG_ERROR):
            return end_errno(data, start), flags
        start += codec.align(max(length, codec.HEADER_LENGTH))
    return None, 0


def end_errno(data: bytes, start: int) -> int:
    """The error number with which NLMSG_DONE and NLMSG_ERROR begin, made positive; 0 is success."""
    raw = data[start + codec.HEADER_LENGTH : start + codec.HEADER_LENGTH + 4]
    return -int.from_bytes(raw, sys.byteorder, signed=True)


def _read_flow(
    data: bytes, start: int, length: int, layout: _Layout, destination: bytes
) -> Flow | None:
    attributes = data[start + ATTRIBUTES : start + length]
    third, source, port = layout.answered.unpack_from(data, start + layout.sent.size)
    if third != layout.frame[2]:
        return _walk_flow(attributes, layout)
    return Flow(destination, source + port, attributes)


def _walk_flow(attributes: bytes, layout: _Layout) -> Flow | None:
    """The flow in these attributes, whatever their order, or None if it is of another protocol."""
    found = codec.parse_attrs(attributes)
    sent = walk_tuple(found.get(CTA_TUPLE_ORIG, b""), layout.ends)
    back = walk_tuple(found.get(CTA_TUPLE_REPLY, b""), layout.ends)
    if sent[0] != layout.number or back[0] != layout.number:
        return None
    return Flow(sent[2], back[1], attributes)
