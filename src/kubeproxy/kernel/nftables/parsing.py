"""What the kernel dumps, as values. Pure. Other processes may have put anything there."""

# ruff: noqa: F403, F405 - every number has the kernel's own name, and they are many

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache

from kubeproxy.kernel.netlink.codec import (
    ATTR_HEADER_LENGTH,
    HEADER_LENGTH,
    NFGEN_LENGTH,
    Message,
    be,
    iter_attrs,
    parse_attrs,
    text,
)
from kubeproxy.kernel.nftables.numbers import *
from kubeproxy.kernel.nftables.values import (
    ChainInfo,
    ElementInfo,
    ExpressionInfo,
    Hook,
    ObjectInfo,
    RuleInfo,
    SetInfo,
    TableInfo,
    Verdict,
)


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


def _comment(raw: bytes, kind: int = UDATA_COMMENT) -> str:
    if len(raw) > 2 and raw[0] == kind and raw[1] == len(raw) - 2:  # nothing else is there
        return text(raw[2:])
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
    expressions = found.get(NFTA_SET_EXPR) or found.get(NFTA_SET_EXPRESSIONS)
    counts = NFTA_SET_EXPR in found and _is_counter(found[NFTA_SET_EXPR])
    return SetInfo(
        table=name(found[NFTA_SET_TABLE]),
        name=name(found[NFTA_SET_NAME]),
        flags=number(NFTA_SET_FLAGS),
        key_type=number(NFTA_SET_KEY_TYPE),
        key_length=number(NFTA_SET_KEY_LEN),
        data_type=number(NFTA_SET_DATA_TYPE),
        data_length=number(NFTA_SET_DATA_LEN),
        timeout_ms=number(NFTA_SET_TIMEOUT),
        comment=_comment(found.get(NFTA_SET_USERDATA, b""), UDATA_SET_COMMENT),
        size=be(description.get(NFTA_SET_DESC_SIZE, b"")),
        counts=counts,
        has_expressions=bool(expressions) and not counts,
        typeof=_typeof(found.get(NFTA_SET_USERDATA, b"")),
        count=be(found[NFTA_SET_COUNT]) if NFTA_SET_COUNT in found else None,
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
    data, verdict = _parse_data(found.get(NFTA_SET_ELEM_DATA, b""))
    packets = _counted(found[NFTA_SET_ELEM_EXPR]) if NFTA_SET_ELEM_EXPR in found else None
    known = _ELEMENT_ATTRIBUTES if packets is None else _COUNTING_ATTRIBUTES
    return ElementInfo(
        key=_sole_value(found.get(NFTA_SET_ELEM_KEY, b"")),
        data=data,
        verdict=verdict,
        comment=_comment(found.get(NFTA_SET_ELEM_USERDATA, b"")),
        # Zeros are padding, or defaults that the kernel writes out.
        has_more=not found.keys() <= known and any(any(found[k]) for k in found.keys() - known),
        packets=packets,
    )


def _sole_value(raw: bytes) -> bytes:
    """The register contents in an attribute that mostly holds nothing else."""
    if raw[:ATTR_HEADER_LENGTH] == _VALUE_HEADERS.get(len(raw)):
        return raw[ATTR_HEADER_LENGTH:]
    return parse_attrs(raw).get(NFTA_DATA_VALUE, b"")


_VALUE_HEADERS = {size: struct.pack("=HH", size, NFTA_DATA_VALUE) for size in range(5, 64)}


@lru_cache(maxsize=256)
def _parse_data(raw: bytes) -> tuple[bytes, Verdict | None]:
    """Data and verdict of an element. Most of a map lead to a few chains."""
    found = parse_attrs(raw)
    return found.get(NFTA_DATA_VALUE, b""), verdict_in(found)


_ELEMENT_ATTRIBUTES = {NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_USERDATA}
_COUNTING_ATTRIBUTES = {*_ELEMENT_ATTRIBUTES, NFTA_SET_ELEM_EXPR}


def _is_counter(raw: bytes) -> bool:
    return _parse_expression(raw).name == COUNTER


def _counted(raw: bytes) -> int | None:
    """Packets in an element's expression, or None if that is no counter."""
    found = _parse_expression(raw)
    return be(found.attributes.get(NFTA_COUNTER_PACKETS, b"")) if found.name == COUNTER else None


def parse_elements(listed: bytes) -> Iterator[ElementInfo]:
    """All elements of a dumped list."""
    return (parse_element(raw) for _, raw in iter_attrs(listed))


def found_element(packed: bytes, reference: bytes) -> bytes | None:
    """The packed element in a reply, envelope included, to a question about one key.

    The reply names its set as the question does (`reference`). None if it is another message.
    """
    end = HEADER_LENGTH + NFGEN_LENGTH + len(reference)
    is_about_it = packed[HEADER_LENGTH + NFGEN_LENGTH : end] == reference
    return packed[end + ATTR_HEADER_LENGTH :] if is_about_it else None


def parse_element_list(message: Message) -> bytes:
    """The packed elements in a message of a dump or of a transaction."""
    return parse_attrs(message.body, NFGEN_LENGTH).get(NFTA_SET_ELEM_LIST_ELEMENTS, b"")
