"""Objects and elements as the kernel takes them. Pure.

Integers inside nf_tables attributes are big endian. Register contents are bytes in whatever order
the expression produces, and pass through here unchanged.
"""

# ruff: noqa: F403, F405 - every number has the kernel's own name, and they are many

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from kubeproxy.kernel.netlink.codec import (
    ATTR_HEADER_LENGTH,
    NLA_F_NESTED,
    attr,
    attr_be32,
    attr_be64,
    attr_nested,
    attr_str,
)
from kubeproxy.kernel.nftables.numbers import *
from kubeproxy.kernel.nftables.values import Hook, SetInfo, Verdict


def userdata(comment: str, kind: int = UDATA_COMMENT) -> bytes:
    """The list nft keeps its comments in. A longer comment is cut to what nft accepts."""
    raw = comment.encode()[: UDATA_COMMENT_MAXLEN - 1] + b"\0"
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


def expression(name: str, *attributes: bytes, kind: int = NFTA_LIST_ELEM) -> bytes:
    """One expression inside a rule, or, as an attribute of that kind, of a set."""
    return attr_nested(
        kind, attr_str(NFTA_EXPR_NAME, name), attr_nested(NFTA_EXPR_DATA, *attributes)
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
    if spec.counts:
        body += expression(COUNTER, kind=NFTA_SET_EXPR)
    comment = userdata(spec.comment, UDATA_SET_COMMENT) if spec.comment else b""
    return body + attr(NFTA_SET_USERDATA, _byte_order(spec) + spec.typeof + comment)


def _byte_order(spec: SetInfo) -> bytes:
    """The byte order in which nft prints keys. A concatenation has none."""
    is_concatenation = bool(spec.key_type >> TYPE_BITS)
    order = BYTEORDER_INVALID if is_concatenation else BYTEORDER_BIG_ENDIAN
    return struct.pack("=BBI", UDATA_SET_KEYBYTEORDER, 4, order)


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


def key_element(key: bytes) -> bytes:
    """An element that only names its key, for a deletion or a question. Without one: catch-all."""
    return _bare_head(len(key)) + key if key and len(key) % 4 == 0 else element(key)


@lru_cache(maxsize=16)
def _bare_head(length: int) -> bytes:
    return element(b"\0" * length)[:_HEAD_LENGTH]


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


@lru_cache(maxsize=256)
def _packed_verdict(verdict: Verdict) -> bytes:
    return pack_verdict(NFTA_SET_ELEM_DATA, verdict)


class ElementTemplate:
    """Elements that differ only in key and data bytes of fixed length, without a comment.

    One element on the wire is `head`, the key, `middle`, the data. `bare_head` and the key are one
    without data, as needed for a deletion.
    """

    def __init__(self, key_length: int, data_length: int) -> None:
        self.key_length, self.data_length = key_length, data_length
        data = pack_value(NFTA_SET_ELEM_DATA, b"\0" * data_length)
        packed = element(b"\0" * key_length, data)
        self.size = len(packed)
        self.head = packed[:_HEAD_LENGTH]
        self.middle = packed[_HEAD_LENGTH + key_length :][:_MIDDLE_LENGTH]
        self.bare_head = element(b"\0" * key_length)[:_HEAD_LENGTH]
        self._wire = struct.Struct(f"={_HEAD_LENGTH}s{key_length}s{_MIDDLE_LENGTH}s{data_length}s")
        # The kernel leaves the nested flag out when it dumps.
        self._shapes = {(self.head, self.middle), (_unflagged(self.head), _unflagged(self.middle))}

    def parse(self, listed: bytes) -> tuple[tuple[bytes, ...], tuple[bytes, ...]] | None:
        """Keys and data of a whole dumped list, or None if some element has another shape."""
        if not listed:
            return (), ()
        if len(listed) % self.size:
            return None
        # By column: no step of Python for each element.
        heads, keys, middles, data = zip(*self._wire.iter_unpack(listed), strict=True)
        return (keys, data) if self._shapes.issuperset(zip(heads, middles, strict=True)) else None


_HEAD_LENGTH = 3 * ATTR_HEADER_LENGTH  # element, key, value
_MIDDLE_LENGTH = 2 * ATTR_HEADER_LENGTH  # data, value


def _unflagged(headers: bytes) -> bytes:
    """The same attribute headers without the nested flag."""
    return b"".join(
        struct.pack("=HH", length, kind & ~NLA_F_NESTED)
        for length, kind in struct.iter_unpack("=HH", headers)
    )


def elements_list(elements: Iterable[bytes]) -> bytes:
    """The attribute that holds packed elements."""
    return attr_nested(NFTA_SET_ELEM_LIST_ELEMENTS, *elements)


def elements_bodies(table: str, name: str, elements: Sequence[bytes]) -> Iterator[bytes]:
    """Bodies of a few element messages that hold the list."""
    head = elements_reference(table, name)
    at_once = ELEMENTS_PER_LIST_BYTES // max(map(len, elements), default=1)
    for start in range(0, len(elements), at_once):
        yield head + elements_list(elements[start : start + at_once])
