"""nf_tables messages: objects as bytes and back, batches, and what news says.

Why: the kernel's transaction is one datagram, so a change to one service is one small `sendmsg`
and needs no tool. Promise: what is packed here parses back; a refusal is mapped back to the label
its message was given, down to the element inside a list where the kernel tells. Leaves to others:
sending (`nft_socket`), and which rules there should be.

Integers inside nf_tables attributes are big endian; register contents (`value`) are bytes in
whatever order the expression produces, and pass through here unchanged.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import (
    Failure,
    Message,
    attr,
    attr_be32,
    attr_be64,
    attr_nested,
    attr_str,
    be,
    iter_attrs,
    parse_attrs,
    text,
)

SUBSYSTEM = 10 << 8
MONITOR_GROUP = 7

NEWTABLE, GETTABLE, DELTABLE = 0, 1, 2
NEWCHAIN, GETCHAIN, DELCHAIN = 3, 4, 5
NEWRULE, GETRULE, DELRULE = 6, 7, 8
NEWSET, GETSET, DELSET = 9, 10, 11
NEWSETELEM, GETSETELEM, DELSETELEM = 12, 13, 14
NEWGEN, GETGEN = 15, 16

CREATE = codec.NLM_F_CREATE
APPEND = codec.NLM_F_CREATE | codec.NLM_F_APPEND

SET_ANONYMOUS, SET_CONSTANT, SET_INTERVAL, SET_MAP = 0x1, 0x2, 0x4, 0x8
SET_TIMEOUT, SET_DYNAMIC = 0x10, 0x20
VERDICT_DATA = 0xFFFFFF00
"""The data type of a verdict map."""

DROP, ACCEPT, CONTINUE, BREAK, JUMP, GOTO, RETURN = 0, 1, -1, -2, -3, -4, -5

ELEMENTS_PER_LIST_BYTES = 60_000
"""An attribute's length has 16 bits; a longer list of elements goes into several messages."""

_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_RES_ID = 10
_COMMENT = 0
_SET_COMMENT = 7
_COMMENT_LIMIT = 128


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """A verdict code, with the chain for jump and goto."""

    code: int
    chain: str = ""


class Hook(msgspec.Struct, frozen=True, gc=False):
    """Where a base chain sits."""

    type: str
    number: int
    priority: int


class TableInfo(msgspec.Struct, frozen=True, gc=False):
    """A table as dumped."""

    family: int
    name: str
    comment: str


class ChainInfo(msgspec.Struct, frozen=True, gc=False):
    """A chain as dumped."""

    table: str
    name: str
    hook: Hook | None
    comment: str


class Expression(msgspec.Struct, frozen=True):
    """One expression of a rule as dumped: its name and raw attributes."""

    name: str
    attributes: Mapping[int, bytes]


class RuleInfo(msgspec.Struct, frozen=True):
    """A rule as dumped."""

    table: str
    chain: str
    handle: int
    expressions: tuple[Expression, ...]
    comment: str


class SetInfo(msgspec.Struct, frozen=True, gc=False):
    """A set or map, as declared and as dumped; `timeout_ms` 0 is none."""

    table: str
    name: str
    flags: int
    key_type: int
    key_length: int
    data_type: int = 0
    data_length: int = 0
    timeout_ms: int = 0
    comment: str = ""


class ElementInfo(msgspec.Struct, frozen=True, gc=False):
    """An element as dumped: key, and data or a verdict for maps."""

    key: bytes
    data: bytes
    verdict: Verdict | None
    flags: int
    comment: str


# ---- packing ---------------------------------------------------------------------------------


def userdata(comment: str, kind: int = _COMMENT) -> bytes:
    """The list nft keeps its comments in; a longer comment is cut to what nft accepts."""
    raw = comment.encode()[: _COMMENT_LIMIT - 1] + b"\0"
    return bytes((kind, len(raw))) + raw


def _userdata_attr(kind: int, comment: str) -> bytes:
    return attr(kind, userdata(comment)) if comment else b""


def pack_verdict(kind: int, verdict: Verdict) -> bytes:
    """A data attribute holding a verdict."""
    chain = attr_str(2, verdict.chain) if verdict.chain else b""
    return attr_nested(kind, attr_nested(2, attr(1, struct.pack(">i", verdict.code)), chain))


def pack_value(kind: int, value: bytes) -> bytes:
    """A data attribute holding register contents."""
    return attr_nested(kind, attr(1, value))


def table_body(name: str, comment: str = "") -> bytes:
    """Body of a table message."""
    return attr_str(1, name) + attr_be32(2, 0) + _userdata_attr(6, comment)


def chain_body(table: str, name: str, hook: Hook | None = None, comment: str = "") -> bytes:
    """Body of a chain message; a base chain accepts by policy."""
    body = attr_str(1, table) + attr_str(3, name)
    if hook is not None:
        place = attr_be32(1, hook.number) + attr(2, struct.pack(">i", hook.priority))
        body += attr_nested(4, place) + attr_be32(5, ACCEPT) + attr_str(7, hook.type)
    return body + _userdata_attr(12, comment)


def reference(table: str, name: str) -> bytes:
    """Body that names a set, or all rules of a chain."""
    return attr_str(1, table) + attr_str(2, name)


def expression(name: str, *attributes: bytes) -> bytes:
    """One expression inside a rule."""
    return attr_nested(1, attr_str(1, name), attr_nested(2, *attributes))


def rule_body(table: str, chain: str, expressions: Iterable[bytes], comment: str = "") -> bytes:
    """Body of a rule message."""
    listed = attr_nested(4, *expressions)
    return attr_str(1, table) + attr_str(2, chain) + listed + _userdata_attr(7, comment)


def set_body(spec: SetInfo, identity: int) -> bytes:
    """Body of a set message; `identity` is any number unique within the batch."""
    body = attr_str(1, spec.table) + attr_str(2, spec.name) + attr_be32(3, spec.flags)
    body += attr_be32(4, spec.key_type) + attr_be32(5, spec.key_length)
    if spec.flags & SET_MAP:
        body += attr_be32(6, spec.data_type) + attr_be32(7, spec.data_length)
    body += attr_be32(10, identity)
    if spec.timeout_ms:
        body += attr_be64(11, spec.timeout_ms)
    return body + attr(13, _set_userdata(spec))


def _set_userdata(spec: SetInfo) -> bytes:
    """How nft prints keys (2: network order, 0: concatenation), and the comment."""
    order = 0 if spec.key_type >> 6 else 2
    hints = struct.pack("=BBI", 0, 4, order)
    return hints + (userdata(spec.comment, _SET_COMMENT) if spec.comment else b"")


def element(key: bytes, value: bytes = b"", comment: str = "") -> bytes:
    """One element; `value` is a packed data attribute of kind 2."""
    return attr_nested(1, pack_value(1, key), value, _userdata_attr(6, comment))


class ElementTemplate:
    """Elements that differ only in key and data bytes of fixed length, without a comment."""

    def __init__(self, key_length: int, data_length: int) -> None:
        packed = element(b"\0" * key_length, pack_value(2, b"\0" * data_length))
        self.size = len(packed)
        self.head = packed[:12]
        self.middle = packed[12 + key_length : 20 + key_length]
        self.bare_head = element(b"\0" * key_length)[:12]
        self._wire = struct.Struct(f"=12s{key_length}s8s{data_length}s")
        # The kernel leaves the nested flag out when it dumps.
        self._shapes = {(self.head, self.middle), (_unflagged(self.head), _unflagged(self.middle))}

    def parse(self, listed: bytes) -> list[tuple[bytes, bytes]] | None:
        """Keys and data of a whole dumped list, or None if some element has another shape."""
        if len(listed) % self.size:
            return None
        found = []
        for head, key, middle, data in self._wire.iter_unpack(listed):
            if (head, middle) not in self._shapes:
                return None
            found.append((key, data))
        return found


def _unflagged(headers: bytes) -> bytes:
    """The same attribute headers without the nested flag."""
    return b"".join(
        struct.pack("=HH", length, kind & ~codec.NLA_F_NESTED)
        for length, kind in struct.iter_unpack("=HH", headers)
    )


def elements_bodies(table: str, name: str, elements: Sequence[bytes]) -> Iterator[bytes]:
    """Bodies of as few element messages as hold the list."""
    head = reference(table, name)
    start, size = 0, 0
    for position, packed in enumerate(elements):
        if size + len(packed) > ELEMENTS_PER_LIST_BYTES:
            yield head + attr_nested(3, *elements[start:position])
            start, size = position, 0
        size += len(packed)
    if start < len(elements):
        yield head + attr_nested(3, *elements[start:])


# ---- batches ---------------------------------------------------------------------------------


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """One message of a batch that the kernel refused."""

    label: str
    errno: int
    text: str
    position: int
    """Position of the message in the batch."""
    offset: int
    """Where in the message, headers included, the offending attribute starts; 0 if unknown."""


class Batch:
    """Messages that happen together, each labelled with the object it concerns."""

    def __init__(self, family: int) -> None:
        self._head = codec.nfgen(family)
        self._parts: list[bytes] = []
        self.labels: list[str] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, kind: int, body: bytes, label: str, flags: int = 0) -> None:
        """Append one message; its sequence number is its position, counted from one."""
        packed = codec.message(
            SUBSYSTEM | kind, flags | codec.NLM_F_REQUEST, len(self._parts) + 1, self._head + body
        )
        self._parts.append(packed)
        self.labels.append(label)
        self.size += len(packed)

    def pack(self, *, is_dry_run: bool = False) -> bytes:
        """The datagram; without its end mark the kernel checks everything and rolls back."""
        mark = codec.nfgen(0, _RES_ID)
        begin = codec.message(_BATCH_BEGIN, codec.NLM_F_REQUEST, 0, mark)
        end = b"" if is_dry_run else codec.message(_BATCH_END, codec.NLM_F_REQUEST, 0, mark)
        return b"".join((begin, *self._parts, end))

    def element_key_at(self, position: int, offset: int) -> bytes | None:
        """Key of the element that lies at an offset of a message, where there is one."""
        if not offset or not 0 <= position < len(self._parts):
            return None
        packed = self._parts[position]
        return element_key_at(packed, offset) if _is_element_list(packed) else None

    def refusals(self, failures: Iterable[Failure]) -> tuple[Refusal, ...]:
        """The kernel's answers in terms of our labels."""
        return tuple(self._refusal(failure) for failure in failures)

    def _refusal(self, failure: Failure) -> Refusal:
        position = failure.seq - 1
        known = 0 <= position < len(self.labels)
        label = self.labels[position] if known else "transaction"
        words = failure.text or os.strerror(failure.errno)
        return Refusal(label, failure.errno, words, position, failure.offset)


def _is_element_list(packed: bytes) -> bool:
    kind = codec.u16(packed[4:6]) & 0xFF
    return kind in (NEWSETELEM, DELSETELEM)


def element_key_at(packed: bytes, offset: int) -> bytes | None:
    """Walk a packed element message to the element that covers `offset`."""
    position = codec.HEADER_LENGTH + 4
    while position + 4 <= len(packed):
        length = codec.u16(packed[position : position + 2])
        kind = codec.u16(packed[position + 2 : position + 4]) & codec.NLA_TYPE_MASK
        if kind == 3 and position < offset < position + length:
            return _covering_element(packed, position + 4, offset)
        position += codec.align(length)
    return None


def _covering_element(packed: bytes, position: int, offset: int) -> bytes | None:
    while position + 4 <= len(packed):
        length = codec.u16(packed[position : position + 2])
        if position <= offset < position + length:
            return parse_element(packed[position + 4 : position + length]).key
        position += codec.align(length)
    return None


# ---- parsing ---------------------------------------------------------------------------------


def _comment(raw: bytes, kind: int = _COMMENT) -> str:
    position = 0
    while position + 2 <= len(raw):
        found, length = raw[position], raw[position + 1]
        if found == kind:
            return text(raw[position + 2 : position + 2 + length])
        position += 2 + length
    return ""


def parse_table(message: Message) -> TableInfo:
    """A table out of its dump message."""
    found = parse_attrs(message.body, 4)
    return TableInfo(message.body[0], text(found[1]), _comment(found.get(6, b"")))


def parse_chain(message: Message) -> ChainInfo:
    """A chain out of its dump message."""
    found = parse_attrs(message.body, 4)
    hook = None
    if 4 in found:
        place = parse_attrs(found[4])
        priority = int.from_bytes(place[2], "big", signed=True)
        hook = Hook(text(found.get(7, b"")), be(place[1]), priority)
    return ChainInfo(text(found[1]), text(found[3]), hook, _comment(found.get(12, b"")))


def parse_rule(message: Message) -> RuleInfo:
    """A rule out of its dump message."""
    found = parse_attrs(message.body, 4)
    listed = tuple(_parse_expression(raw) for _, raw in iter_attrs(found.get(4, b"")))
    comment = _comment(found.get(7, b""))
    handle = be(found.get(3, b""))
    return RuleInfo(text(found[1]), text(found[2]), handle, listed, comment)


def _parse_expression(raw: bytes) -> Expression:
    found = parse_attrs(raw)
    return Expression(text(found[1]), parse_attrs(found.get(2, b"")))


def parse_set(message: Message) -> SetInfo:
    """A set out of its dump message."""
    found = parse_attrs(message.body, 4)

    def number(kind: int) -> int:
        return be(found.get(kind, b""))

    return SetInfo(
        table=text(found[1]),
        name=text(found[2]),
        flags=number(3),
        key_type=number(4),
        key_length=number(5),
        data_type=number(6),
        data_length=number(7),
        timeout_ms=number(11),
        comment=_comment(found.get(13, b""), _SET_COMMENT),
    )


def parse_data(raw: bytes) -> bytes | Verdict:
    """A data attribute: register contents or a verdict."""
    found = parse_attrs(raw)
    if 2 not in found:
        return found.get(1, b"")
    verdict = parse_attrs(found[2])
    code = int.from_bytes(verdict[1], "big", signed=True)
    return Verdict(code, text(verdict.get(2, b"")))


def parse_element(raw: bytes) -> ElementInfo:
    """One element of a dumped list."""
    found = parse_attrs(raw)
    data = parse_data(found[2]) if 2 in found else b""
    key = parse_data(found[1]) if 1 in found else b""
    return ElementInfo(
        key=key if isinstance(key, bytes) else b"",
        data=data if isinstance(data, bytes) else b"",
        verdict=data if isinstance(data, Verdict) else None,
        flags=be(found.get(3, b"")),
        comment=_comment(found.get(6, b"")),
    )


class News(msgspec.Struct, frozen=True, gc=False):
    """One thing somebody changed in a table."""

    family: int
    table: str
    kind: int
    name: str
    """Chain or set concerned; empty for the table itself."""
    is_removal: bool


_REMOVALS = frozenset({DELTABLE, DELCHAIN, DELRULE, DELSET, DELSETELEM})
_NAME_ATTRIBUTE = {
    NEWCHAIN: 3,
    DELCHAIN: 3,
    NEWRULE: 2,
    DELRULE: 2,
    NEWSET: 2,
    DELSET: 2,
    NEWSETELEM: 2,
    DELSETELEM: 2,
}


def parse_news(message: Message) -> News | None:
    """What a monitor message tells, or None if it is no change to an object."""
    kind = message.type & 0xFF
    if message.type & ~0xFF != SUBSYSTEM or kind >= NEWGEN:
        return None
    found = parse_attrs(message.body, 4)
    if 1 not in found:
        return None
    name = text(found.get(_NAME_ATTRIBUTE.get(kind, 0), b""))
    return News(message.body[0], text(found[1]), kind, name, kind in _REMOVALS)
