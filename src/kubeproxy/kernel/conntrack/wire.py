"""ctnetlink messages as bytes: UDP flows to delete, and whole entries and events to show. Pure.

Why a parser of its own: a busy node has hundreds of thousands of entries, and walking the
attributes of each one costs more than all the rest. The kernel writes both tuples of an entry in a
fixed order, so one unpack reads them; the attributes of an entry with another layout (a zone in a
tuple) are walked. Promise: either way the same flows are found. Whole entries (TCP, UDP, SCTP, both
ends of both directions) are for showing and counting; their state and counters are parsed when they
are asked for. Leaves to others: sending (`table`), and which flows are stale.

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

NFNLGRP_CONNTRACK_NEW = 1
NFNLGRP_CONNTRACK_DESTROY = 3

_CTA_STATUS = 3
_CTA_PROTOINFO = 4
_CTA_TIMEOUT = 7
_CTA_COUNTERS_ORIG = 9
_CTA_COUNTERS_REPLY = 10

_CTA_PROTOINFO_TCP = 1
_CTA_PROTOINFO_TCP_STATE = 1
_CTA_COUNTERS_PACKETS = 1
_CTA_COUNTERS_BYTES = 2

_IPS_SEEN_REPLY = 1 << 1
_IPS_ASSURED = 1 << 2

_TCP_STATES = (
    *("NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT"),
    *("LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2"),
)
ENDED_STATES = frozenset({"TIME_WAIT", "CLOSE", "LAST_ACK"})
"""A TCP connection in one of these is over; its entry waits for late packets."""

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
    first, _, second, udp, _, third, _, _ = ends.unpack(_sample_tuples(source, destination, size))
    return _Layout(source, destination, ends, (first, second, udp, third))


def _sample_tuples(source: int, destination: int, size: int) -> bytes:
    """Both tuples of a UDP entry as the kernel lays them out, filled with zeros."""
    address = bytes(size)
    addresses = codec.attr(source, address) + codec.attr(destination, address)
    ports = codec.attr(_CTA_PROTO_SRC_PORT, bytes(2)) + codec.attr(_CTA_PROTO_DST_PORT, bytes(2))
    return b"".join(_tuple(kind, addresses, ports) for kind in (_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY))


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
    sent, back = (
        _walk_tuple(found.get(kind, b""), layout.source, layout.destination)
        for kind in (_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY)
    )
    if sent[0] != Protocol.UDP.number or back[0] != Protocol.UDP.number:
        return None
    return Flow(sent[2], back[1], attributes)


def _walk_tuple(raw: bytes, source: int, destination: int) -> tuple[int, bytes, bytes]:
    """Protocol number, source and destination of a tuple, packed; without ports if it has none.

    `source` and `destination` are the attributes of the addresses.
    """
    parts = codec.parse_attrs(raw)
    addresses = codec.parse_attrs(parts.get(_CTA_TUPLE_IP, b""))
    ports = codec.parse_attrs(parts.get(_CTA_TUPLE_PROTO, b""))
    return (
        codec.be(ports.get(_CTA_PROTO_NUM, b"\0")),
        addresses.get(source, b"") + ports.get(_CTA_PROTO_SRC_PORT, b""),
        addresses.get(destination, b"") + ports.get(_CTA_PROTO_DST_PORT, b""),
    )


# ---- whole entries ----

_PROTOCOLS = {protocol.number: protocol for protocol in Protocol}
_FAMILIES = {family.af: family for family in Family}


class Counters(NamedTuple):
    """Packets and bytes of one direction."""

    packets: int
    bytes: int


class Entry(NamedTuple):
    """A tracked flow. Ends are packed: address and port in network byte order."""

    protocol: Protocol
    source: bytes
    destination: bytes
    reply_source: bytes
    reply_destination: bytes
    attributes: bytes

    @property
    def is_translated(self) -> bool:
        """Is it answered from another place than it was sent to?"""
        return self.destination != self.reply_source

    @property
    def state(self) -> str:
        """The state as `conntrack -L` spells it; of other protocols what has been seen."""
        found = codec.parse_attrs(self.attributes)
        if self.protocol is Protocol.TCP:
            return _tcp_state(found)
        status = codec.be(found.get(_CTA_STATUS, b"\0"))
        if status & _IPS_ASSURED:
            return "ASSURED"
        return "REPLIED" if status & _IPS_SEEN_REPLY else "UNREPLIED"

    @property
    def counters(self) -> tuple[Counters, Counters] | None:
        """What was sent and what came back; None while the kernel does not count."""
        found = codec.parse_attrs(self.attributes)
        if _CTA_COUNTERS_ORIG not in found:
            return None
        return _counters(found[_CTA_COUNTERS_ORIG]), _counters(found.get(_CTA_COUNTERS_REPLY, b""))

    @property
    def expires_seconds(self) -> int:
        """How long the entry stays if no more packets come."""
        return codec.be(codec.parse_attrs(self.attributes).get(_CTA_TIMEOUT, b"\0"))


def _tcp_state(found: dict[int, bytes]) -> str:
    tcp = codec.parse_attrs(found.get(_CTA_PROTOINFO, b"")).get(_CTA_PROTOINFO_TCP, b"")
    number = codec.be(codec.parse_attrs(tcp).get(_CTA_PROTOINFO_TCP_STATE, b"\0"))
    return _TCP_STATES[number] if number < len(_TCP_STATES) else "NONE"


def _counters(raw: bytes) -> Counters:
    found = codec.parse_attrs(raw)
    return Counters(
        codec.be(found.get(_CTA_COUNTERS_PACKETS, b"\0")),
        codec.be(found.get(_CTA_COUNTERS_BYTES, b"\0")),
    )


class _EntryLayout(NamedTuple):
    """Both tuples of an entry without zones; `frame` are the headers it is recognised by."""

    ends: struct.Struct
    frame: tuple[bytes, bytes, bytes]
    source: int
    destination: int


def _entry_layout(size: int, source: int, destination: int) -> _EntryLayout:
    one_way = f"12s{size}s4x{size}s8sB7x2s6x2s2x"
    ends = struct.Struct(f"={one_way}{one_way}")
    sample = _sample_tuples(source, destination, size)
    first, _, _, second, _, _, _, third, *_ = ends.unpack(sample)
    return _EntryLayout(ends, (first, second, third), source, destination)


_ENTRY_LAYOUTS = {
    Family.IPV4: _entry_layout(4, _CTA_IP_V4_SRC, _CTA_IP_V4_DST),
    Family.IPV6: _entry_layout(16, _CTA_IP_V6_SRC, _CTA_IP_V6_DST),
}


class EntriesPart(NamedTuple):
    """One datagram of a listing; `errno` is None unless the listing ends here."""

    entries: list[Entry]
    errno: int | None
    is_interrupted: bool


def format_dump(family: Family) -> bytes:
    """Body of IPCTNL_MSG_CT_GET for every entry of a family."""
    return codec.nfgen(family.af)


def parse_entries(data: bytes, family: Family) -> EntriesPart:
    """The TCP, UDP and SCTP entries of one datagram, and whether the listing ends with it."""
    layout = _ENTRY_LAYOUTS[family]
    entries: list[Entry] = []
    interrupted = 0
    start, end = 0, len(data)
    while start + codec.HEADER_LENGTH <= end:
        length, kind, flags = _HEADER.unpack_from(data, start)
        interrupted |= flags & codec.NLM_F_DUMP_INTR
        if kind in (codec.NLMSG_DONE, codec.NLMSG_ERROR):
            return EntriesPart(entries, _end_errno(data, start), bool(interrupted))
        if kind == IPCTNL_MSG_CT_NEW:
            entry = _parse_entry(data[start + _ATTRIBUTES : start + length], layout)
            if entry is not None:
                entries.append(entry)
        start += codec.align(max(length, codec.HEADER_LENGTH))
    return EntriesPart(entries, None, bool(interrupted))


class Event(NamedTuple):
    """An entry that has come (`is_new`) or gone."""

    family: Family
    is_new: bool
    entry: Entry


def parse_events(data: bytes) -> list[Event]:
    """The events of one datagram. What is neither TCP, UDP nor SCTP is left out."""
    found: list[Event] = []
    start, end = 0, len(data)
    while start + _ATTRIBUTES <= end:
        length, kind, _ = _HEADER.unpack_from(data, start)
        family = _FAMILIES.get(data[start + codec.HEADER_LENGTH])
        if family is not None and kind in (IPCTNL_MSG_CT_NEW, IPCTNL_MSG_CT_DELETE):
            attributes = data[start + _ATTRIBUTES : start + length]
            entry = _parse_entry(attributes, _ENTRY_LAYOUTS[family])
            if entry is not None:
                found.append(Event(family, kind == IPCTNL_MSG_CT_NEW, entry))
        start += codec.align(max(length, codec.HEADER_LENGTH))
    return found


def _parse_entry(attributes: bytes, layout: _EntryLayout) -> Entry | None:
    if len(attributes) < layout.ends.size:
        return _walk_entry(attributes, layout)
    parts = layout.ends.unpack_from(attributes)
    first, source, destination, second, number, source_port, port = parts[:7]
    third, answering, answered, _, _, answering_port, answered_port = parts[7:]
    if (first, second, third) != layout.frame or number not in _PROTOCOLS:
        return _walk_entry(attributes, layout)
    return Entry(
        _PROTOCOLS[number],
        source + source_port,
        destination + port,
        answering + answering_port,
        answered + answered_port,
        attributes,
    )


def _walk_entry(attributes: bytes, layout: _EntryLayout) -> Entry | None:
    """The entry in these attributes, whatever their order, or None if it is of no use."""
    found = codec.parse_attrs(attributes)
    sent = _walk_tuple(found.get(_CTA_TUPLE_ORIG, b""), layout.source, layout.destination)
    back = _walk_tuple(found.get(_CTA_TUPLE_REPLY, b""), layout.source, layout.destination)
    protocol = _PROTOCOLS.get(sent[0])
    if protocol is None:
        return None
    return Entry(protocol, *sent[1:], *back[1:], attributes)
