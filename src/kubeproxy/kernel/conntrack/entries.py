"""Whole conntrack entries and events as bytes, for showing and counting. Pure.

Both ends of both directions of TCP, UDP and SCTP entries; their state and counters are parsed when
they are asked for. An entry with another layout than the usual one is walked, as in `wire`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.conntrack.wire import (
    ATTRIBUTES,
    CTA_TUPLE_ORIG,
    CTA_TUPLE_REPLY,
    ENDS,
    HEADER,
    IPCTNL_MSG_CT_DELETE,
    IPCTNL_MSG_CT_NEW,
    Ends,
    end_errno,
    sample_tuples,
    walk_tuple,
)
from kubeproxy.kernel.netlink import codec

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


class _Layout(NamedTuple):
    """Both tuples of an entry without zones; `frame` are the headers it is recognised by."""

    ends: Ends
    both: struct.Struct
    frame: tuple[bytes, bytes, bytes]


def _layout(ends: Ends) -> _Layout:
    one_way = f"12s{ends.size}s4x{ends.size}s8sB7x2s6x2s2x"
    both = struct.Struct(f"={one_way}{one_way}")
    first, _, _, second, _, _, _, third, *_ = both.unpack(sample_tuples(ends, Protocol.UDP))
    return _Layout(ends, both, (first, second, third))


_LAYOUTS = {family: _layout(ends) for family, ends in ENDS.items()}


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
    layout = _LAYOUTS[family]
    entries: list[Entry] = []
    interrupted = 0
    start, end = 0, len(data)
    while start + codec.HEADER_LENGTH <= end:
        length, kind, flags = HEADER.unpack_from(data, start)
        interrupted |= flags & codec.NLM_F_DUMP_INTR
        if kind in (codec.NLMSG_DONE, codec.NLMSG_ERROR):
            return EntriesPart(entries, end_errno(data, start), bool(interrupted))
        if kind == IPCTNL_MSG_CT_NEW:
            entry = _parse_entry(data[start + ATTRIBUTES : start + length], layout)
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
    while start + ATTRIBUTES <= end:
        length, kind, _ = HEADER.unpack_from(data, start)
        family = _FAMILIES.get(data[start + codec.HEADER_LENGTH])
        if family is not None and kind in (IPCTNL_MSG_CT_NEW, IPCTNL_MSG_CT_DELETE):
            attributes = data[start + ATTRIBUTES : start + length]
            entry = _parse_entry(attributes, _LAYOUTS[family])
            if entry is not None:
                found.append(Event(family, kind == IPCTNL_MSG_CT_NEW, entry))
        start += codec.align(max(length, codec.HEADER_LENGTH))
    return found


def _parse_entry(attributes: bytes, layout: _Layout) -> Entry | None:
    if len(attributes) < layout.both.size:
        return _walk_entry(attributes, layout)
    parts = layout.both.unpack_from(attributes)
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


def _walk_entry(attributes: bytes, layout: _Layout) -> Entry | None:
    """The entry in these attributes, whatever their order, or None if it is of no use."""
    found = codec.parse_attrs(attributes)
    sent = walk_tuple(found.get(CTA_TUPLE_ORIG, b""), layout.ends)
    back = walk_tuple(found.get(CTA_TUPLE_REPLY, b""), layout.ends)
    protocol = _PROTOCOLS.get(sent[0])
    if protocol is None:
        return None
    return Entry(protocol, *sent[1:], *back[1:], attributes)
