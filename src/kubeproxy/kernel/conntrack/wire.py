"""ctnetlink messages about UDP flows, as bytes. Pure.

Why a parser of its own: a busy node has hundreds of thousands of entries, and walking the
attributes of each one costs more than all the rest. The kernel writes both tuples of an entry in a
fixed order, so one unpack reads them; an entry that looks otherwise (a zone in a tuple) is walked.
"""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

from msgspec import Struct

from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink import codec

NEW, GET, DELETE = 0x100, 0x101, 0x102

_TUPLE_ORIG, _TUPLE_REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_PROTO_NUM, _PROTO_SRC_PORT, _PROTO_DST_PORT = 1, 2, 3
_FILTER_ORIG_FLAGS, _FILTER_REPLY_FLAGS = 1, 2
# Bits of the kernel's filter, for the tuple given along with it.
_BY_ADDRESS, _BY_PROTOCOL, _BY_PORT = 1 << 1, 1 << 3, 1 << 5

_UDP = 17
_PORT_BYTES = 2
_HEADER = struct.Struct("=IHH")
_ATTRIBUTES = codec.HEADER_LENGTH + 4


class Flow(NamedTuple):
    """A UDP flow: where it was sent and who answers it (packed), and all its attributes."""

    destination: bytes
    reply_source: bytes
    attributes: bytes

    @property
    def key(self) -> bytes:
        """What tells this flow from every other one, also from a later one with equal ends."""
        found = codec.parse_attrs(self.attributes)
        return b"".join(
            codec.attr(kind, found[kind]) for kind in (_TUPLE_ORIG, _ZONE, _ID) if kind in found
        )


class Listed(Struct, frozen=True):
    """One datagram of a listing; `errno` is None unless the listing ends here."""

    flows: list[Flow]
    errno: int | None
    is_interrupted: bool


class _Layout(NamedTuple):
    """A UDP entry of one family, without zones in its tuples.

    `ends` unpacks the frame (headers that tell this layout, and the protocol) with both ends.
    """

    number: int
    source: int
    destination: int
    ends: struct.Struct
    frame: tuple[bytes, bytes, int, bytes]


def _layout(number: int, source: int, destination: int, size: int) -> _Layout:
    ends = struct.Struct(
        f"=12s{size}x4x{size}s8sB7x2x6x2s2x"  # original: destination address and port
        f"12s{size}s4x{size}x8x1x7x2s6x2x2x"  # reply: source address and port
    )
    address = bytes(size)
    addresses = codec.attr(source, address) + codec.attr(destination, address)
    ports = codec.attr(_PROTO_SRC_PORT, bytes(2)) + codec.attr(_PROTO_DST_PORT, bytes(2))
    sample = b"".join(_tuple(kind, addresses, ports) for kind in (_TUPLE_ORIG, _TUPLE_REPLY))
    first, _, second, udp, _, third, _, _ = ends.unpack(sample)
    return _Layout(number, source, destination, ends, (first, second, udp, third))


def _tuple(kind: int, addresses: bytes, ports: bytes) -> bytes:
    """One direction of a UDP flow."""
    protocol = codec.attr_u8(_PROTO_NUM, _UDP)
    return codec.attr_nested(
        kind,
        codec.attr_nested(_TUPLE_IP, addresses),
        codec.attr_nested(_TUPLE_PROTO, protocol, ports),
    )


_AF_INET, _AF_INET6 = 2, 10
_LAYOUTS = {
    Family.IPV4: _layout(_AF_INET, 1, 2, 4),
    Family.IPV6: _layout(_AF_INET6, 3, 4, 16),
}


def list_request(family: Family, destination: bytes = b"") -> bytes:
    """Ask for UDP flows: those to a packed address and port, to a port on any address, or all.

    What comes back may be more than was asked for. The kernel filters since Linux 5.8, an older
    one ignores the filter. And its comparison of IPv6 addresses is the wrong way round (seen in
    6.18: equal ones are left out), so for IPv6 only the port is given.
    """
    layout = _LAYOUTS[family]
    address, port = destination[:-_PORT_BYTES], destination[-_PORT_BYTES:]
    if family is Family.IPV6:
        address = b""
    flags = _BY_PROTOCOL | (_BY_ADDRESS if address else 0) | (_BY_PORT if port else 0)
    wanted = _tuple(
        _TUPLE_ORIG,
        codec.attr(layout.destination, address) if address else b"",
        codec.attr(_PROTO_DST_PORT, port) if port else b"",
    )
    bits = codec.attr_u32(_FILTER_ORIG_FLAGS, flags) + codec.attr_u32(_FILTER_REPLY_FLAGS, 0)
    return codec.nfgen(layout.number) + wanted + codec.attr_nested(_FILTER, bits)


def delete_request(family: Family, flow: Flow) -> bytes:
    return codec.nfgen(_LAYOUTS[family].number) + flow.key


def parse_listing(data: bytes, family: Family) -> Listed:
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
            return Listed(flows, _end_errno(data, start), bool(interrupted))
        if kind == NEW and length >= shortest:
            flow = _parse_flow(data, start + _ATTRIBUTES, start + length, layout)
            if flow is not None:
                flows.append(flow)
        start += codec.align(max(length, codec.HEADER_LENGTH))
    return Listed(flows, None, bool(interrupted))


def _end_errno(data: bytes, start: int) -> int:
    """Both ends of a listing begin with an error number, negative, or with zero."""
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
    """As above, for an entry of any other layout."""
    found = codec.parse_attrs(attributes)
    sent = _walk_end(found.get(_TUPLE_ORIG, b""), layout.destination, _PROTO_DST_PORT)
    answers = _walk_end(found.get(_TUPLE_REPLY, b""), layout.source, _PROTO_SRC_PORT)
    return Flow(sent, answers, attributes) if sent and answers else None


def _walk_end(raw: bytes, address_kind: int, port_kind: int) -> bytes:
    """One end of a tuple; nothing if the tuple is not UDP."""
    parts = codec.parse_attrs(raw)
    addresses = codec.parse_attrs(parts.get(_TUPLE_IP, b""))
    protocol = codec.parse_attrs(parts.get(_TUPLE_PROTO, b""))
    if protocol.get(_PROTO_NUM) != bytes((_UDP,)):
        return b""
    return addresses.get(address_kind, b"") + protocol.get(port_kind, b"")
