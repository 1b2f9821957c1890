"""Netlink framing: messages and attributes as bytes, both directions. Pure.

Why: every kernel family we use (nf_tables, IPVS, ipset, conntrack, rtnetlink) has the same
envelope, and a table of struct formats is all it takes. Promise: what is packed here parses back
to the same values, and no input makes a parser raise. Leaves to others: what a message means (the
`wire` module of each family) and sending it (`socket`).

Byte order: netlink headers are in host order. Attribute integers are in host order for rtnetlink
and generic netlink, and in network order for netfilter, so there is a helper for each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import msgspec

NLA_F_NESTED = 0x8000
NLA_F_NET_BYTEORDER = 0x4000
NLA_TYPE_MASK = 0x3FFF

NLM_F_REQUEST = 0x001
NLM_F_MULTI = 0x002
NLM_F_ACK = 0x004
NLM_F_ECHO = 0x008
NLM_F_DUMP_INTR = 0x010
NLM_F_ROOT = 0x100
NLM_F_MATCH = 0x200
NLM_F_DUMP = NLM_F_ROOT | NLM_F_MATCH
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200

NLMSG_NOOP = 1
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLMSG_OVERRUN = 4

HEADER_LENGTH = 16
ATTR_HEADER_LENGTH = 4
NFGEN_LENGTH = 4

_ATTR = struct.Struct("=HH")
_HEADER = struct.Struct("=IHHII")
_NFGEN = struct.Struct("=BB2s")
_ERROR = struct.Struct("=iIHHII")

_NLMSGERR_ATTR_MSG = 1
_NLMSGERR_ATTR_OFFS = 2

_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")


class Message(msgspec.Struct, frozen=True, gc=False):
    """One received netlink message without its envelope."""

    type: int
    flags: int
    seq: int
    pid: int
    body: bytes


class Failure(msgspec.Struct, frozen=True, gc=False):
    """The contents of an NLMSG_ERROR. `errno` 0 is an acknowledgement."""

    errno: int
    seq: int
    text: str = ""
    offset: int = 0
    """Where in the refused message the offending attribute starts, or 0."""


def align(length: int) -> int:
    """Round up to the four bytes to which netlink pads everything."""
    return (length + 3) & ~3


def attr(kind: int, payload: bytes) -> bytes:
    """One attribute: header, payload, padding."""
    length = len(payload) + 4
    return _ATTR.pack(length, kind) + payload + _PADDING[length & 3]


def attr_nested(kind: int, *children: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attr(kind | NLA_F_NESTED, b"".join(children))


def attr_str(kind: int, text: str) -> bytes:
    """NUL-terminated text. Bytes that were no text when read go back as they were."""
    return attr(kind, text.encode(errors="surrogateescape") + b"\0")


def _packer(layout: str) -> Callable[[int, int], bytes]:
    value = struct.Struct(layout)

    def pack(kind: int, number: int) -> bytes:
        return attr(kind, value.pack(number))

    return pack


attr_u8 = _packer("=B")
attr_u16 = _packer("=H")
attr_u32 = _packer("=I")
attr_be16 = _packer(">H")
attr_be32 = _packer(">I")
attr_be64 = _packer(">Q")


def u16(raw: bytes) -> int:
    """Host-order number of 16 bits."""
    return int(_U16.unpack(raw[:2])[0])


def u32(raw: bytes) -> int:
    """Host-order number of 32 bits."""
    return int(_U32.unpack(raw[:4])[0])


def be(raw: bytes) -> int:
    """Network-order number of whatever length the attribute has."""
    return int.from_bytes(raw, "big")


def text(raw: bytes) -> str:
    """Text up to the first NUL."""
    return raw.split(b"\0", 1)[0].decode(errors="replace")


_U16 = struct.Struct("=H")
_U32 = struct.Struct("=I")


def iter_attrs(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Attributes in order, with flags stripped from the type. A truncated tail ends the walk."""
    end = len(data)
    while start + 4 <= end:
        length, kind = _ATTR.unpack_from(data, start)
        if length < 4 or start + length > end:
            return
        yield kind & NLA_TYPE_MASK, data[start + 4 : start + length]
        start += (length + 3) & ~3


def parse_attrs(data: bytes, start: int = 0) -> dict[int, bytes]:
    """Attributes by type, of a repeated type the last one (`iter_attrs` is for lists)."""
    return dict(iter_attrs(data, start))


def message(kind: int, flags: int, seq: int, body: bytes, pid: int = 0) -> bytes:
    """A complete message. `body` must be padded already, as attributes are."""
    return _HEADER.pack(HEADER_LENGTH + len(body), kind, flags, seq, pid) + body


def iter_messages(data: bytes) -> Iterator[Message]:
    """Messages of one datagram."""
    start, end = 0, len(data)
    while start + HEADER_LENGTH <= end:
        length, kind, flags, seq, pid = _HEADER.unpack_from(data, start)
        if length < HEADER_LENGTH or start + length > end:
            return
        yield Message(kind, flags, seq, pid, data[start + HEADER_LENGTH : start + length])
        start += align(length)


def sequence_number(packed: bytes) -> int:
    """The sequence number in a packed message."""
    return int(_U32.unpack_from(packed, 8)[0])


def nfgen(family: int, res_id: int = 0) -> bytes:
    """The header netfilter messages carry after the netlink header."""
    return _NFGEN.pack(family, 0, res_id.to_bytes(2, "big"))


def genl(command: int, version: int = 1) -> bytes:
    """The header generic netlink messages carry after the netlink header."""
    return struct.pack("=BBH", command, version, 0)


def parse_failure(reply: Message) -> Failure:
    """Parse an NLMSG_ERROR, with the kernel's extended text and offset where there are any."""
    errno, length, _, _, seq, _ = _ERROR.unpack_from(reply.body)
    if not reply.flags & NLM_F_ACK_TLVS:
        return Failure(-errno, seq)
    # The refused message is echoed in full unless capped; an acknowledgement echoes its header.
    echoed = HEADER_LENGTH if reply.flags & NLM_F_CAPPED or not errno else align(length)
    extra = parse_attrs(reply.body, 4 + echoed)
    offset = extra.get(_NLMSGERR_ATTR_OFFS, b"\0\0\0\0")
    return Failure(-errno, seq, text(extra.get(_NLMSGERR_ATTR_MSG, b"")), u32(offset))
