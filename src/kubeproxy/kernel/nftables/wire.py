"""nf_tables messages as bytes: objects, transactions, and notifications, both directions. Pure.

Why: the kernel takes a whole transaction in one datagram, so a change to one service is one small
`sendmsg` and needs no tool. Promise: what is packed here parses back to equal values, and an
element can be found again from the offset at which the kernel refused a message. Leaves to others:
sending (`table`), and which rules there should be (the mode).

Integers inside nf_tables attributes are big endian. Register contents are bytes in whatever order
the expression produces, and pass through here unchanged.

The file is long because the first part lists the kernel's numbers under the kernel's names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

from msgspec import Struct

from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import (
    ATTR_HEADER_LENGTH,
    HEADER_LENGTH,
    NFGEN_LENGTH,
    NLA_F_NESTED,
    Message,
    attr,
    attr_be32,
    attr_be64,
    attr_nested,
    attr_str,
    attr_u8,
    be,
    iter_attrs,
    parse_attrs,
    text,
)

T = TypeVar("T")

# ---- the kernel's numbers --------------------------------------------------------------------
# As in include/uapi/linux/netfilter/nf_tables.h where no other header is named. Only what is
# needed is listed, hence the gaps.

# nfnetlink.h; the subsystem is the upper byte of a message type
NFNL_SUBSYS_NFTABLES = 10
SUBSYSTEM = NFNL_SUBSYS_NFTABLES << 8
NFNLGRP_NFTABLES = 7
NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 0x10, 0x11

# enum nf_tables_msg_types, without its prefix NFT_MSG_
NEWTABLE, GETTABLE, DELTABLE = 0, 1, 2
NEWCHAIN, GETCHAIN, DELCHAIN = 3, 4, 5
NEWRULE, GETRULE, DELRULE = 6, 7, 8
NEWSET, GETSET, DELSET = 9, 10, 11
NEWSETELEM, GETSETELEM, DELSETELEM = 12, 13, 14
NEWGEN = 15
NEWOBJ, GETOBJ, DELOBJ = 18, 19, 20
NEWFLOWTABLE, GETFLOWTABLE, DELFLOWTABLE = 22, 23, 24

# enum nft_registers: 0 holds the verdict, 1 to 4 are the old names of every fourth 4-byte register
NFT_REG_VERDICT, NFT_REG_1, NFT_REG_4 = 0, 1, 4
NFT_REG32_00 = 8

# netfilter.h and enum nft_verdicts
NF_DROP, NF_ACCEPT = 0, 1
NFT_CONTINUE, NFT_BREAK, NFT_JUMP, NFT_GOTO, NFT_RETURN = -1, -2, -3, -4, -5

# netfilter.h
NFPROTO_UNSPEC, NFPROTO_INET = 0, 1

# netfilter.h, enum nf_inet_hooks
NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN, NF_INET_FORWARD = 0, 1, 2
NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING = 3, 4

# netfilter_ipv4.h, enum nf_ip_hook_priorities; the numbers are the same for IPv6
NF_IP_PRI_NAT_DST, NF_IP_PRI_FILTER, NF_IP_PRI_NAT_SRC = -100, 0, 100

NFTA_LIST_ELEM = 1
NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY = 1, 2
NFTA_TABLE_NAME, NFTA_TABLE_FLAGS, NFTA_TABLE_USERDATA = 1, 2, 6
NFT_TABLE_F_DORMANT = 0x1
"""The base chains of such a table are not attached to their hooks."""
NFTA_OBJ_TABLE, NFTA_OBJ_NAME, NFTA_OBJ_TYPE = 1, 2, 3
NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME = 2, 3
NFTA_FLOWTABLE_TABLE, NFTA_FLOWTABLE_NAME = 1, 2

NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK, NFTA_CHAIN_POLICY = 1, 3, 4, 5
NFTA_CHAIN_TYPE, NFTA_CHAIN_FLAGS, NFTA_CHAIN_USERDATA = 7, 10, 12
NFT_CHAIN_BINDING = 0x4
"""A chain without a name of its own, which lives and dies with the rule that jumps there."""

NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_EXPRESSIONS = 1, 2, 3, 4
NFTA_RULE_USERDATA = 7

NFTA_SET_TABLE, NFTA_SET_NAME, NFTA_SET_FLAGS = 1, 2, 3
NFTA_SET_KEY_TYPE, NFTA_SET_KEY_LEN, NFTA_SET_DATA_TYPE, NFTA_SET_DATA_LEN = 4, 5, 6, 7
NFTA_SET_DESC, NFTA_SET_ID, NFTA_SET_TIMEOUT, NFTA_SET_USERDATA = 9, 10, 11, 13
NFTA_SET_EXPR, NFTA_SET_EXPRESSIONS = 17, 18
NFTA_SET_DESC_SIZE = 1

NFT_SET_ANONYMOUS, NFT_SET_MAP, NFT_SET_TIMEOUT, NFT_SET_EVAL = 0x1, 0x8, 0x10, 0x20
"""Rules may add elements to a set with NFT_SET_EVAL, which nft calls "dynamic"."""
NFT_DATA_VERDICT = 0xFFFFFF00
"""The data type of a verdict map."""

NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_ELEMENTS = 1, 2, 3
NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_FLAGS, NFTA_SET_ELEM_USERDATA = 1, 2, 3, 6
NFT_SET_ELEM_CATCHALL = 0x2
"""The element without a key, which every key matches that no other element matches."""
NFTA_DATA_VALUE, NFTA_DATA_VERDICT = 1, 2
NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN = 1, 2
NFTA_EXPR_NAME, NFTA_EXPR_DATA = 1, 2

# Expressions in the order of the header. Values of an attribute stand below the attributes.
NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA = 1, 2
NFTA_BITWISE_SREG, NFTA_BITWISE_DREG, NFTA_BITWISE_LEN = 1, 2, 3
NFTA_BITWISE_MASK, NFTA_BITWISE_XOR = 4, 5
NFTA_CMP_SREG, NFTA_CMP_OP, NFTA_CMP_DATA = 1, 2, 3
NFT_CMP_EQ, NFT_CMP_NEQ = 0, 1
NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG, NFTA_LOOKUP_DREG, NFTA_LOOKUP_FLAGS = 1, 2, 3, 5
NFTA_DYNSET_SET_NAME, NFTA_DYNSET_OP, NFTA_DYNSET_SREG_KEY = 1, 3, 4
NFT_DYNSET_OP_UPDATE = 1
NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN = 1, 2, 3, 4
NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER = 1, 2
NFTA_META_DREG, NFTA_META_KEY, NFTA_META_SREG = 1, 2, 3
NFT_META_MARK, NFT_META_IIFNAME, NFT_META_L4PROTO = 3, 6, 16
NFTA_CT_DREG, NFTA_CT_KEY = 1, 2
NFT_CT_STATE, NFT_CT_STATUS = 0, 2
NFTA_REJECT_TYPE, NFTA_REJECT_ICMP_CODE = 1, 2
NFT_REJECT_ICMP_UNREACH = 0
NFTA_NAT_TYPE, NFTA_NAT_FAMILY, NFTA_NAT_REG_ADDR_MIN, NFTA_NAT_REG_ADDR_MAX = 1, 2, 3, 4
NFTA_NAT_REG_PROTO_MIN, NFTA_NAT_REG_PROTO_MAX, NFTA_NAT_FLAGS = 5, 6, 7
NFT_NAT_DNAT = 1
NFTA_MASQ_FLAGS = 1
NFTA_FIB_DREG, NFTA_FIB_RESULT, NFTA_FIB_FLAGS = 1, 2, 3
NFT_FIB_RESULT_ADDRTYPE = 3
NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR = 1, 2
NFTA_NG_DREG, NFTA_NG_MODULUS, NFTA_NG_TYPE, NFTA_NG_OFFSET = 1, 2, 3, 4
NFT_NG_RANDOM = 1

# Values that registers and attributes take from other headers.
NF_CT_STATE_NEW = 0x08  # nf_conntrack_common.h: NF_CT_STATE_BIT(IP_CT_NEW)
IPS_DST_NAT = 0x20  # nf_conntrack_common.h
NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED = 0x1, 0x2  # nf_nat.h
NF_NAT_RANGE_PROTO_RANDOM_FULLY = 0x10  # nf_nat.h
RTN_UNICAST, RTN_LOCAL = 1, 2  # rtnetlink.h
ICMP_PORT_UNREACH, ICMPV6_PORT_UNREACH = 3, 4  # icmp.h, icmpv6.h
IFNAMSIZ = 16  # if.h

# Numbers that the kernel stores and only nft understands: types of keys and data (nft's
# datatype.h), and what stands in user data (libnftnl's udata.h).
TYPE_INTEGER, TYPE_IPADDR, TYPE_IP6ADDR = 4, 7, 8
TYPE_INET_PROTOCOL, TYPE_INET_SERVICE, TYPE_MARK = 12, 13, 19
TYPE_BITS = 6
"""A concatenation packs the types of its fields into one number, this many bits for each."""
_UDATA_COMMENT = 0
_UDATA_SET_KEYBYTEORDER, _UDATA_SET_COMMENT = 0, 7
UDATA_SET_KEY_TYPEOF, UDATA_SET_DATA_TYPEOF = 3, 4
_BYTEORDER_INVALID, _BYTEORDER_BIG_ENDIAN = 0, 2
_UDATA_COMMENT_MAXLEN = 128

CREATE = codec.NLM_F_CREATE
APPEND = codec.NLM_F_CREATE | codec.NLM_F_APPEND

ELEMENTS_PER_LIST_BYTES = 60_000
"""An attribute's length has 16 bits. A longer list of elements goes into several messages."""


# ---- values ----------------------------------------------------------------------------------


class Verdict(Struct, frozen=True, gc=False):
    """Where a packet goes. `chain` is set for jump and goto."""

    code: int
    chain: str = ""


DROP = Verdict(NF_DROP)
RETURN = Verdict(NFT_RETURN)


class Hook(Struct, frozen=True, gc=False):
    """Where a base chain is attached, and what becomes of packets on which no rule decides."""

    type: str
    number: int
    priority: int
    policy: int = NF_ACCEPT


class TableInfo(Struct, frozen=True, gc=False):
    """A table as dumped."""

    family: int
    name: str
    comment: str
    flags: int = 0


class ChainInfo(Struct, frozen=True, gc=False):
    """A chain as dumped."""

    table: str
    name: str
    hook: Hook | None
    comment: str
    flags: int = 0


class ExpressionInfo(Struct, frozen=True):
    """One expression of a rule as dumped: its name and raw attributes."""

    name: str
    attributes: Mapping[int, bytes]


class RuleInfo(Struct, frozen=True):
    """A rule as dumped."""

    table: str
    chain: str
    handle: int
    expressions: tuple[ExpressionInfo, ...]
    comment: str


class SetInfo(Struct, frozen=True, gc=False):
    """A set or map, as declared and as dumped. `timeout_ms` 0 is none."""

    table: str
    name: str
    flags: int
    key_type: int
    key_length: int
    data_type: int = 0
    data_length: int = 0
    timeout_ms: int = 0
    comment: str = ""
    size: int = 0
    """The most elements it may have, or 0."""
    has_expressions: bool = False
    """Does every element come with expressions, such as a counter or a limit?"""
    typeof: bytes = b""
    """User data that names the expressions its types are taken from, for nft to read."""


class ElementInfo(Struct, frozen=True, gc=False):
    """An element as dumped: key, and data or a verdict for maps. The catch-all has no key."""

    key: bytes
    data: bytes
    verdict: Verdict | None
    comment: str
    has_more: bool = False
    """Has it something else, such as flags, a timeout, or expressions?"""


class ObjectInfo(Struct, frozen=True, gc=False):
    """A named counter, quota, limit and the like, or a flowtable, which has type 0."""

    table: str
    name: str
    type: int = 0


# ---- packing ---------------------------------------------------------------------------------


def userdata(comment: str, kind: int = _UDATA_COMMENT) -> bytes:
    """The list nft keeps its comments in. A longer comment is cut to what nft accepts."""
    raw = comment.encode()[: _UDATA_COMMENT_MAXLEN - 1] + b"\0"
    return bytes((kind, len(raw))) + raw


def _userdata_attr(kind: int, comment: str) -> bytes:
    return attr(kind, userdata(comment)) if comment else b""


def pack_verdict(kind: int, verdict: Verdict) -> bytes:
    """A data attribute holding a verdict."""
    code = attr(NFTA_VERDICT_CODE, struct.pack(">i", verdict.code))
    chain = attr_str(NFTA_VERDICT_CHAIN, verdict.chain) if verdict.chain else b""
    return attr_nested(kind, attr_nested(NFTA_DATA_VERDICT, code, chain))


def pack_value(kind: int, value: bytes) -> bytes:
    """A data attribute holding register contents."""
    return attr_nested(kind, attr(NFTA_DATA_VALUE, value))


def table_body(name: str, comment: str = "", flags: int = 0) -> bytes:
    """Body of a table message."""
    return (
        attr_str(NFTA_TABLE_NAME, name)
        + attr_be32(NFTA_TABLE_FLAGS, flags)
        + _userdata_attr(NFTA_TABLE_USERDATA, comment)
    )


def chain_body(table: str, name: str, hook: Hook | None = None, comment: str = "") -> bytes:
    """Body of a chain message."""
    body = attr_str(NFTA_CHAIN_TABLE, table) + attr_str(NFTA_CHAIN_NAME, name)
    if hook is not None:
        number = attr_be32(NFTA_HOOK_HOOKNUM, hook.number)
        priority = attr(NFTA_HOOK_PRIORITY, struct.pack(">i", hook.priority))
        body += attr_nested(NFTA_CHAIN_HOOK, number, priority)
        body += attr_be32(NFTA_CHAIN_POLICY, hook.policy) + attr_str(NFTA_CHAIN_TYPE, hook.type)
    return body + _userdata_attr(NFTA_CHAIN_USERDATA, comment)


def rules_reference(table: str, chain: str = "") -> bytes:
    """Body that names all rules of a table, or of one of its chains."""
    where = attr_str(NFTA_RULE_TABLE, table)
    return where + attr_str(NFTA_RULE_CHAIN, chain) if chain else where


def set_reference(table: str, name: str = "") -> bytes:
    """Body that names all sets of a table, or one of them."""
    where = attr_str(NFTA_SET_TABLE, table)
    return where + attr_str(NFTA_SET_NAME, name) if name else where


def object_reference(table: str, name: str = "", kind: int = 0) -> bytes:
    """Body that names all objects of a table, or one of them. A flowtable has no kind."""
    where = attr_str(NFTA_OBJ_TABLE, table)
    where += attr_str(NFTA_OBJ_NAME, name) if name else b""
    return where + attr_be32(NFTA_OBJ_TYPE, kind) if kind else where


def expression(name: str, *attributes: bytes) -> bytes:
    """One expression inside a rule."""
    return attr_nested(
        NFTA_LIST_ELEM, attr_str(NFTA_EXPR_NAME, name), attr_nested(NFTA_EXPR_DATA, *attributes)
    )


def rule_body(table: str, chain: str, expressions: Iterable[bytes], comment: str = "") -> bytes:
    """Body of a rule message."""
    return (
        rules_reference(table, chain)
        + attr_nested(NFTA_RULE_EXPRESSIONS, *expressions)
        + _userdata_attr(NFTA_RULE_USERDATA, comment)
    )


def set_body(spec: SetInfo, identity: int) -> bytes:
    """Body of a set message. `identity` is any number unique within the transaction."""
    body = set_reference(spec.table, spec.name) + attr_be32(NFTA_SET_FLAGS, spec.flags)
    body += attr_be32(NFTA_SET_KEY_TYPE, spec.key_type)
    body += attr_be32(NFTA_SET_KEY_LEN, spec.key_length)
    if spec.flags & NFT_SET_MAP:
        body += attr_be32(NFTA_SET_DATA_TYPE, spec.data_type)
        body += attr_be32(NFTA_SET_DATA_LEN, spec.data_length)
    body += attr_be32(NFTA_SET_ID, identity)
    if spec.timeout_ms:
        body += attr_be64(NFTA_SET_TIMEOUT, spec.timeout_ms)
    comment = userdata(spec.comment, _UDATA_SET_COMMENT) if spec.comment else b""
    return body + attr(NFTA_SET_USERDATA, _byte_order(spec) + spec.typeof + comment)


def _byte_order(spec: SetInfo) -> bytes:
    """The byte order in which nft prints keys. A concatenation has none."""
    is_concatenation = bool(spec.key_type >> TYPE_BITS)
    order = _BYTEORDER_INVALID if is_concatenation else _BYTEORDER_BIG_ENDIAN
    return struct.pack("=BBI", _UDATA_SET_KEYBYTEORDER, 4, order)


# ---- elements --------------------------------------------------------------------------------


def elements_reference(table: str, name: str) -> bytes:
    """Body that names all elements of a set."""
    return attr_str(NFTA_SET_ELEM_LIST_TABLE, table) + attr_str(NFTA_SET_ELEM_LIST_SET, name)


def element(key: bytes, data: bytes = b"", comment: str = "") -> bytes:
    """One element. `data` is a packed data attribute of kind NFTA_SET_ELEM_DATA.

    The element without a key is the catch-all.
    """
    return attr_nested(
        NFTA_LIST_ELEM,
        pack_value(NFTA_SET_ELEM_KEY, key)
        if key
        else attr_be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_CATCHALL),
        data,
        _userdata_attr(NFTA_SET_ELEM_USERDATA, comment),
    )


def verdict_element(key: bytes, verdict: Verdict | None, comment: str) -> bytes:
    """The same for a verdict map or a plain set, quickly: only key and comment are packed here."""
    parts = _key_head(len(key)) + key
    if verdict is not None:
        parts += _packed_verdict(verdict)
    if comment:
        parts += attr(NFTA_SET_ELEM_USERDATA, userdata(comment))
    return attr(_ELEMENT, parts)


_ELEMENT = NFTA_LIST_ELEM | NLA_F_NESTED


@lru_cache(maxsize=16)
def _key_head(length: int) -> bytes:
    """What stands before a key's bytes. Keys are whole words, so nothing stands after."""
    return pack_value(NFTA_SET_ELEM_KEY, b"\0" * length)[:-length]


@lru_cache(maxsize=4096)
def _packed_verdict(verdict: Verdict) -> bytes:
    return pack_verdict(NFTA_SET_ELEM_DATA, verdict)


class ElementTemplate:
    """Elements that differ only in key and data bytes of fixed length, without a comment.

    One element on the wire is `head`, the key, `middle`, the data. `bare_head` and the key are one
    without data, as needed for a deletion.
    """

    def __init__(self, key_length: int, data_length: int) -> None:
        data = pack_value(NFTA_SET_ELEM_DATA, b"\0" * data_length)
        packed = element(b"\0" * key_length, data)
        self.size = len(packed)
        self.head = packed[:_HEAD_LENGTH]
        self.middle = packed[_HEAD_LENGTH + key_length :][:_MIDDLE_LENGTH]
        self.bare_head = element(b"\0" * key_length)[:_HEAD_LENGTH]
        self._wire = struct.Struct(f"={_HEAD_LENGTH}s{key_length}s{_MIDDLE_LENGTH}s{data_length}s")
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


_HEAD_LENGTH = 3 * ATTR_HEADER_LENGTH  # element, key, value
_MIDDLE_LENGTH = 2 * ATTR_HEADER_LENGTH  # data, value


def _unflagged(headers: bytes) -> bytes:
    """The same attribute headers without the nested flag."""
    return b"".join(
        struct.pack("=HH", length, kind & ~NLA_F_NESTED)
        for length, kind in struct.iter_unpack("=HH", headers)
    )


def elements_bodies(table: str, name: str, elements: Sequence[bytes]) -> Iterator[bytes]:
    """Bodies of as few element messages as hold the list."""
    head = elements_reference(table, name)
    start, size = 0, 0
    for position, packed in enumerate(elements):
        if size + len(packed) > ELEMENTS_PER_LIST_BYTES:
            yield head + attr_nested(NFTA_SET_ELEM_LIST_ELEMENTS, *elements[start:position])
            start, size = position, 0
        size += len(packed)
    if start < len(elements):
        yield head + attr_nested(NFTA_SET_ELEM_LIST_ELEMENTS, *elements[start:])


def element_key_at(packed: bytes, offset: int) -> bytes | None:
    """Key of the element that covers `offset` of a packed message.

    None if the message is no list of elements or the offset is in none of them.
    """
    if codec.u16(packed[4:6]) & 0xFF not in (NEWSETELEM, DELSETELEM):
        return None
    for kind, start, end in _spans(packed, HEADER_LENGTH + NFGEN_LENGTH, len(packed)):
        if kind == NFTA_SET_ELEM_LIST_ELEMENTS:
            for _, first, last in _spans(packed, start, end):
                if first - ATTR_HEADER_LENGTH <= offset < last:
                    return parse_element(packed[first:last]).key
    return None


def _spans(packed: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Kind, start and end of the payload of each attribute in a part of a message."""
    while start + ATTR_HEADER_LENGTH <= end:
        length = codec.u16(packed[start : start + 2])
        kind = codec.u16(packed[start + 2 : start + 4]) & codec.NLA_TYPE_MASK
        yield kind, start + ATTR_HEADER_LENGTH, start + length
        start += codec.align(length)


# ---- transactions ----------------------------------------------------------------------------


class Refusal(Struct, frozen=True, gc=False):
    """One message of a transaction that the kernel refused."""

    label: str
    errno: int
    text: str
    position: int
    """Position of the message in the transaction."""
    offset: int
    """Where in the message, headers included, the offending attribute starts, or 0."""


class Transaction:
    """Messages that take effect together, each labelled with the object it concerns.

    Before one with `after_readers` takes effect, packets under way must be done that may have read
    what the transactions before it have changed.
    """

    def __init__(self, family: int, *, after_readers: bool = False) -> None:
        self.after_readers = after_readers
        self._head = codec.nfgen(family)
        self._parts: list[bytes] = []
        self.labels: list[str] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, kind: int, body: bytes, label: str, flags: int = 0) -> None:
        """Append one message. Its sequence number is its position, counted from one."""
        packed = codec.message(
            SUBSYSTEM | kind, flags | codec.NLM_F_REQUEST, len(self._parts) + 1, self._head + body
        )
        self._parts.append(packed)
        self.labels.append(printable(label))
        self.size += len(packed)

    def pack(self, *, is_dry_run: bool = False) -> bytes:
        """The datagram. Without its end mark the kernel checks everything and rolls back."""
        mark = codec.nfgen(0, NFNL_SUBSYS_NFTABLES)
        begin = codec.message(NFNL_MSG_BATCH_BEGIN, codec.NLM_F_REQUEST, 0, mark)
        end = codec.message(NFNL_MSG_BATCH_END, codec.NLM_F_REQUEST, 0, mark)
        return b"".join((begin, *self._parts, b"" if is_dry_run else end))

    def element_key_at(self, position: int, offset: int) -> bytes | None:
        """Key of the element that lies at an offset of a message, where there is one."""
        if not offset or not 0 <= position < len(self._parts):
            return None
        return element_key_at(self._parts[position], offset)


# ---- parsing ---------------------------------------------------------------------------------


def name(raw: bytes) -> str:
    """A name up to its NUL. Any other byte is allowed in it and survives the way back."""
    return raw.partition(b"\0")[0].decode(errors="surrogateescape")


def printable(text: str) -> str:
    """The same text for people: other processes may have put any byte into a name."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _userdata_parts(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Kinds and values of what is well-formed: other processes may have written anything."""
    position = 0
    while position + 2 <= len(raw):
        kind, length = raw[position], raw[position + 1]
        yield kind, raw[position + 2 : position + 2 + length]
        position += 2 + length


def _comment(raw: bytes, kind: int = _UDATA_COMMENT) -> str:
    found = (value for found, value in _userdata_parts(raw) if found == kind)
    return text(next(found, b""))


_TYPEOF = (UDATA_SET_KEY_TYPEOF, UDATA_SET_DATA_TYPEOF)


def _typeof(raw: bytes) -> bytes:
    parts = ((kind, value) for kind, value in _userdata_parts(raw) if kind in _TYPEOF)
    return b"".join(bytes((kind, len(value))) + value for kind, value in parts)


def parse_table(message: Message) -> TableInfo:
    """A table out of its dump message."""
    found = parse_attrs(message.body, NFGEN_LENGTH)
    return TableInfo(
        family=message.body[0],
        name=name(found[NFTA_TABLE_NAME]),
        comment=_comment(found.get(NFTA_TABLE_USERDATA, b"")),
        flags=be(found.get(NFTA_TABLE_FLAGS, b"")),
    )


def parse_chain(message: Message) -> ChainInfo:
    """A chain out of its dump message."""
    found = parse_attrs(message.body, NFGEN_LENGTH)
    return ChainInfo(
        table=name(found[NFTA_CHAIN_TABLE]),
        name=name(found[NFTA_CHAIN_NAME]),
        hook=_parse_hook(found) if NFTA_CHAIN_HOOK in found else None,
        comment=_comment(found.get(NFTA_CHAIN_USERDATA, b"")),
        flags=be(found.get(NFTA_CHAIN_FLAGS, b"")),
    )


def _parse_hook(chain: Mapping[int, bytes]) -> Hook:
    place = parse_attrs(chain[NFTA_CHAIN_HOOK])
    return Hook(
        type=name(chain.get(NFTA_CHAIN_TYPE, b"")),
        number=be(place[NFTA_HOOK_HOOKNUM]),
        priority=int.from_bytes(place[NFTA_HOOK_PRIORITY], "big", signed=True),
        policy=be(chain[NFTA_CHAIN_POLICY]) if NFTA_CHAIN_POLICY in chain else NF_ACCEPT,
    )


def parse_rule(message: Message) -> RuleInfo:
    """A rule out of its dump message."""
    found = parse_attrs(message.body, NFGEN_LENGTH)
    listed = iter_attrs(found.get(NFTA_RULE_EXPRESSIONS, b""))
    return RuleInfo(
        table=name(found[NFTA_RULE_TABLE]),
        chain=name(found[NFTA_RULE_CHAIN]),
        handle=be(found.get(NFTA_RULE_HANDLE, b"")),
        expressions=tuple(_parse_expression(raw) for _, raw in listed),
        comment=_comment(found.get(NFTA_RULE_USERDATA, b"")),
    )


def _parse_expression(raw: bytes) -> ExpressionInfo:
    found = parse_attrs(raw)
    return ExpressionInfo(name(found[NFTA_EXPR_NAME]), parse_attrs(found.get(NFTA_EXPR_DATA, b"")))


def parse_set(message: Message) -> SetInfo:
    """A set out of its dump message."""
    found = parse_attrs(message.body, NFGEN_LENGTH)

    def number(kind: int) -> int:
        return be(found.get(kind, b""))

    description = parse_attrs(found.get(NFTA_SET_DESC, b""))
    return SetInfo(
        table=name(found[NFTA_SET_TABLE]),
        name=name(found[NFTA_SET_NAME]),
        flags=number(NFTA_SET_FLAGS),
        key_type=number(NFTA_SET_KEY_TYPE),
        key_length=number(NFTA_SET_KEY_LEN),
        data_type=number(NFTA_SET_DATA_TYPE),
        data_length=number(NFTA_SET_DATA_LEN),
        timeout_ms=number(NFTA_SET_TIMEOUT),
        comment=_comment(found.get(NFTA_SET_USERDATA, b""), _UDATA_SET_COMMENT),
        size=be(description.get(NFTA_SET_DESC_SIZE, b"")),
        has_expressions=NFTA_SET_EXPR in found or NFTA_SET_EXPRESSIONS in found,
        typeof=_typeof(found.get(NFTA_SET_USERDATA, b"")),
    )


def parse_object(message: Message) -> ObjectInfo:
    """An object out of its dump message."""
    found = parse_attrs(message.body, NFGEN_LENGTH)
    kind = be(found.get(NFTA_OBJ_TYPE, b""))
    return ObjectInfo(name(found[NFTA_OBJ_TABLE]), name(found[NFTA_OBJ_NAME]), kind)


def parse_flowtable(message: Message) -> ObjectInfo:
    """A flowtable out of its dump message."""
    found = parse_attrs(message.body, NFGEN_LENGTH)
    return ObjectInfo(name(found[NFTA_FLOWTABLE_TABLE]), name(found[NFTA_FLOWTABLE_NAME]))


def parse_value(raw: bytes) -> bytes | None:
    """The register contents in a data attribute, or None if it holds a verdict."""
    found = parse_attrs(raw)
    return None if NFTA_DATA_VERDICT in found else found.get(NFTA_DATA_VALUE, b"")


def parse_verdict(raw: bytes) -> Verdict | None:
    """The verdict in a data attribute, or None if it holds register contents."""
    return verdict_in(parse_attrs(raw))


def verdict_in(data: Mapping[int, bytes]) -> Verdict | None:
    """The verdict among the attributes of a data attribute."""
    found = parse_attrs(data.get(NFTA_DATA_VERDICT, b""))
    if NFTA_VERDICT_CODE not in found:
        return None
    code = int.from_bytes(found[NFTA_VERDICT_CODE], "big", signed=True)
    return Verdict(code, name(found.get(NFTA_VERDICT_CHAIN, b"")))


def parse_element(raw: bytes) -> ElementInfo:
    """One element of a dumped list."""
    found = parse_attrs(raw)
    key = parse_attrs(found.get(NFTA_SET_ELEM_KEY, b""))
    data = parse_attrs(found.get(NFTA_SET_ELEM_DATA, b""))
    return ElementInfo(
        key=key.get(NFTA_DATA_VALUE, b""),
        data=data.get(NFTA_DATA_VALUE, b""),
        verdict=verdict_in(data),
        comment=_comment(found.get(NFTA_SET_ELEM_USERDATA, b"")),
        # Zeros are padding, or defaults that the kernel writes out.
        has_more=any(any(found[kind]) for kind in found.keys() - _ELEMENT_ATTRIBUTES),
    )


_ELEMENT_ATTRIBUTES = {NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_USERDATA}


def parse_elements(listed: bytes) -> Iterator[ElementInfo]:
    """All elements of a dumped list."""
    return (parse_element(raw) for _, raw in iter_attrs(listed))


def parse_element_list(message: Message) -> bytes:
    """The packed elements in a message of a dump or of a transaction."""
    return parse_attrs(message.body, NFGEN_LENGTH).get(NFTA_SET_ELEM_LIST_ELEMENTS, b"")


# ---- fields of expressions -------------------------------------------------------------------


class Encoding(Struct, Generic[T], frozen=True):
    """How a field of an expression becomes an attribute, and back. None is "not of this form"."""

    pack: Callable[[int, T], bytes]
    parse: Callable[[bytes], T | None]


def _parse_register(raw: bytes) -> int:
    """The kernel dumps every fourth register under its old 16-byte name."""
    number = be(raw)
    is_old = NFT_REG_1 <= number <= NFT_REG_4
    return NFT_REG32_00 + (number - NFT_REG_1) * 4 if is_old else number


def _pack_comparison(kind: int, is_unequal: bool) -> bytes:
    return attr_be32(kind, NFT_CMP_NEQ if is_unequal else NFT_CMP_EQ)


def _parse_comparison(raw: bytes) -> bool | None:
    """There are others, such as "less than"."""
    return {NFT_CMP_EQ: False, NFT_CMP_NEQ: True}.get(be(raw))


NUMBER: Encoding[int] = Encoding(attr_be32, be)
OCTET: Encoding[int] = Encoding(attr_u8, be)
COMPARISON: Encoding[bool] = Encoding(_pack_comparison, _parse_comparison)
REGISTER: Encoding[int] = Encoding(attr_be32, _parse_register)
TEXT: Encoding[str] = Encoding(attr_str, name)
VALUE: Encoding[bytes] = Encoding(pack_value, parse_value)
VERDICT: Encoding[Verdict] = Encoding(pack_verdict, parse_verdict)


# ---- notifications ---------------------------------------------------------------------------


class Notification(Struct, frozen=True, gc=False):
    """One change to an object of a table, as the kernel reports it to its monitors."""

    family: int
    table: str
    kind: int
    name: str
    """The chain or set concerned, empty for the table itself."""
    is_removal: bool


_REMOVALS = frozenset({DELTABLE, DELCHAIN, DELRULE, DELSET, DELSETELEM, DELOBJ, DELFLOWTABLE})
_TABLE_ATTRIBUTE = NFTA_TABLE_NAME  # the same number in messages about any object
_NAME_ATTRIBUTES = {
    NEWCHAIN: NFTA_CHAIN_NAME,
    DELCHAIN: NFTA_CHAIN_NAME,
    NEWRULE: NFTA_RULE_CHAIN,
    DELRULE: NFTA_RULE_CHAIN,
    NEWSET: NFTA_SET_NAME,
    DELSET: NFTA_SET_NAME,
    NEWSETELEM: NFTA_SET_ELEM_LIST_SET,
    DELSETELEM: NFTA_SET_ELEM_LIST_SET,
    NEWOBJ: NFTA_OBJ_NAME,
    DELOBJ: NFTA_OBJ_NAME,
    NEWFLOWTABLE: NFTA_FLOWTABLE_NAME,
    DELFLOWTABLE: NFTA_FLOWTABLE_NAME,
}


def parse_notification(message: Message) -> Notification | None:
    """What a monitor message reports, or None if it is no change to an object."""
    kind = message.type & 0xFF
    is_change = kind in _NAME_ATTRIBUTES or kind in (NEWTABLE, DELTABLE)
    if message.type & ~0xFF != SUBSYSTEM or not is_change:
        return None
    found = parse_attrs(message.body, NFGEN_LENGTH)
    if _TABLE_ATTRIBUTE not in found:
        return None
    concerned = found.get(_NAME_ATTRIBUTES.get(kind, 0), b"")
    table = name(found[_TABLE_ATTRIBUTE])
    return Notification(message.body[0], table, kind, name(concerned), kind in _REMOVALS)


NEW_GENERATION = SUBSYSTEM | NEWGEN
"""The type of the message that follows the changes of a transaction, from the same port id."""


def parse_committer(message: Message) -> str:
    """Which process committed a transaction, from its message of type `NEW_GENERATION`.

    It reads `nft (process 812)`. The number is that of the host's own process namespace.
    """
    found = parse_attrs(message.body, NFGEN_LENGTH)
    process = f"process {be(found.get(NFTA_GEN_PROC_PID, b''))}"
    command = printable(name(found.get(NFTA_GEN_PROC_NAME, b"")))
    return f"{command} ({process})" if command else process
