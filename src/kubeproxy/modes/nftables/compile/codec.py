"""Our expressions and declarations as nf_tables attributes, and back.

A table: each row says which attribute carries which field, in which form. Encoding and decoding
read the same rows, so what we wrote and what the kernel dumps compare as equal values. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache

from msgspec import Struct

from kubeproxy.kernel.netlink.codec import NLA_F_NESTED, attr, attr_be32, attr_str, be, text
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.nftables import items as types
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import Chain, Expr, Rule, SetSpec, Unknown

Field = int | bytes | str | bool | types.Verdict | None


class Form(Struct, frozen=True):
    """How a field becomes an attribute, and back."""

    pack: Callable[[int, Field], bytes]
    parse: Callable[[bytes], Field]


class Row(Struct, frozen=True):
    """One attribute: the field it carries, or the constant it must have."""

    attribute: int
    form: Form
    field: str = ""
    constant: Field = None


class Layout(Struct, frozen=True):
    """One kind of expression."""

    name: str
    build: Callable[..., Expr]
    rows: tuple[Row, ...]


def _pack_number(kind: int, value: Field) -> bytes:
    return attr_be32(kind, int(value) if isinstance(value, int) else 0)


def _pack_octet(kind: int, value: Field) -> bytes:
    return attr(kind, bytes((value,)) if isinstance(value, int) else b"")


def _pack_text(kind: int, value: Field) -> bytes:
    return attr_str(kind, str(value))


def _pack_bytes(kind: int, value: Field) -> bytes:
    return nft.pack_value(kind, value if isinstance(value, bytes) else b"")


def _pack_verdict(kind: int, value: Field) -> bytes:
    if not isinstance(value, types.Verdict):
        raise TypeError(f"not a verdict: {value!r}")
    return nft.pack_verdict(kind, nft.Verdict(value.code, value.chain))


def _parse_bytes(raw: bytes) -> Field:
    data = nft.parse_data(raw)
    return data if isinstance(data, bytes) else None


def _parse_verdict(raw: bytes) -> Field:
    data = nft.parse_data(raw)
    return types.Verdict(data.code, data.chain) if isinstance(data, nft.Verdict) else None


def _parse_register(raw: bytes) -> Field:
    """The kernel dumps every fourth register under its old 16-byte name."""
    number = be(raw)
    return number * 4 + 4 if 1 <= number <= 4 else number


NUMBER = Form(_pack_number, be)
OCTET = Form(_pack_octet, be)
REGISTER = Form(_pack_number, _parse_register)
TEXT = Form(_pack_text, text)
BYTES = Form(_pack_bytes, _parse_bytes)
VERDICT = Form(_pack_verdict, _parse_verdict)
FLAG = Form(_pack_number, lambda raw: bool(be(raw)))


def _lookup(set_name: str, register: int, result: int) -> Expr:
    return types.Lookup(set_name, register, result)


def _match(set_name: str, register: int) -> Expr:
    return types.Lookup(set_name, register)


def _bitwise(register: int, _result: int, _length: int, mask: bytes, xor: bytes) -> Expr:
    return types.Bitwise(register, mask, xor)


LAYOUTS: dict[str, Layout] = {
    "Decide": Layout(
        "immediate",
        types.Decide,
        (Row(1, NUMBER, constant=0), Row(2, VERDICT, "verdict")),
    ),
    "Immediate": Layout(
        "immediate", types.Immediate, (Row(1, REGISTER, "register"), Row(2, BYTES, "value"))
    ),
    "Payload": Layout(
        "payload",
        types.Payload,
        (
            Row(1, REGISTER, "register"),
            Row(2, NUMBER, "base"),
            Row(3, NUMBER, "offset"),
            Row(4, NUMBER, "length"),
        ),
    ),
    "MetaSet": Layout("meta", types.MetaSet, (Row(2, NUMBER, "key"), Row(3, REGISTER, "register"))),
    "MetaLoad": Layout(
        "meta", types.MetaLoad, (Row(1, REGISTER, "register"), Row(2, NUMBER, "key"))
    ),
    "Ct": Layout("ct", types.Ct, (Row(1, REGISTER, "register"), Row(2, NUMBER, "key"))),
    "Compare": Layout(
        "cmp",
        lambda register, is_unequal, value: types.Compare(register, value, is_unequal),
        (Row(1, REGISTER, "register"), Row(2, FLAG, "is_unequal"), Row(3, BYTES, "value")),
    ),
    "Bitwise": Layout(
        "bitwise",
        _bitwise,
        (
            Row(1, REGISTER, "register"),
            Row(2, REGISTER, "register"),
            Row(3, NUMBER, "length"),
            Row(4, BYTES, "mask"),
            Row(5, BYTES, "xor"),
        ),
    ),
    "Lookup": Layout(
        "lookup",
        _lookup,
        (Row(1, TEXT, "set"), Row(2, REGISTER, "register"), Row(3, REGISTER, "result")),
    ),
    "Match": Layout("lookup", _match, (Row(1, TEXT, "set"), Row(2, REGISTER, "register"))),
    "Fib": Layout(
        "fib",
        types.Fib,
        (
            Row(1, REGISTER, "register"),
            Row(2, NUMBER, constant=3),
            Row(3, NUMBER, "flags"),
        ),
    ),
    "Numgen": Layout(
        "numgen",
        types.Numgen,
        (
            Row(1, REGISTER, "register"),
            Row(2, NUMBER, "modulus"),
            Row(3, NUMBER, constant=1),
            Row(4, NUMBER, constant=0),
        ),
    ),
    "Dnat": Layout(
        "nat",
        types.Dnat,
        (
            Row(1, NUMBER, constant=1),
            Row(2, NUMBER, "family"),
            Row(3, REGISTER, "address"),
            Row(5, REGISTER, "port"),
            Row(7, NUMBER, constant=3),  # both are given; the kernel adds this itself
        ),
    ),
    "Masquerade": Layout("masq", types.Masquerade, (Row(1, NUMBER, constant=0x10),)),
    "Reject": Layout("reject", types.Reject, (Row(1, NUMBER, constant=0), Row(2, OCTET, "code"))),
    "Dynset": Layout(
        "dynset",
        types.Dynset,
        (Row(1, TEXT, "set"), Row(3, NUMBER, constant=1), Row(4, REGISTER, "register")),
    ),
}


def _layout_of(expression: Expr) -> Layout:
    if isinstance(expression, types.Lookup) and expression.result is None:
        return LAYOUTS["Match"]
    return LAYOUTS[type(expression).__name__]


def _field(expression: Expr, name: str) -> Field:
    if name == "length" and isinstance(expression, types.Bitwise):
        return len(expression.mask)
    value: Field = getattr(expression, name)
    return value


def encode_expression(expression: Expr) -> bytes:
    """One expression as the kernel wants it."""
    layout = _layout_of(expression)
    return nft.expression(
        layout.name,
        *(
            row.form.pack(
                row.attribute, _field(expression, row.field) if row.field else row.constant
            )
            for row in layout.rows
        ),
    )


def decode_expression(found: nft.Expression) -> Expr:
    """One dumped expression; `Unknown` when it is none that we would write."""
    for layout in _CANDIDATES.get(found.name, ()):
        values = _values(layout, found.attributes)
        if values is not None:
            built = layout.build(*values)
            if _says_all(built, layout, values, found.attributes):
                return built
    return Unknown(found.name, tuple(sorted(found.attributes.items())))


def _values(layout: Layout, attributes: Mapping[int, bytes]) -> list[Field] | None:
    values: list[Field] = []
    for row in layout.rows:
        raw = attributes.get(row.attribute)
        value = None if raw is None else row.form.parse(raw)
        if value is None or (not row.field and value != row.constant):
            return None
        if row.field:
            values.append(value)
    return values


_LOOKUP_RESULT, _LOOKUP_FLAGS = 3, 5


def _says_all(
    built: Expr, layout: Layout, values: list[Field], attributes: Mapping[int, bytes]
) -> bool:
    """Does our expression say all that the kernel's does?"""
    if isinstance(built, types.Lookup):
        is_inverted = bool(be(attributes.get(_LOOKUP_FLAGS, b"")))
        if is_inverted or (built.result is None) == (_LOOKUP_RESULT in attributes):
            return False
    fields = (row.field for row in layout.rows if row.field)
    return all(_field(built, field) == value for field, value in zip(fields, values, strict=True))


_CANDIDATES: dict[str, list[Layout]] = {}
for _entry in LAYOUTS.values():
    _CANDIDATES.setdefault(_entry.name, []).append(_entry)


@lru_cache(maxsize=8192)
def rule_tail(rule: Rule) -> tuple[bytes, ...]:
    """The packed expressions of a rule; class chains repeat the same ones."""
    return tuple(encode_expression(expression) for expression in rule.expressions)


def rule_body(chain: str, rule: Rule) -> bytes:
    """A rule message's body."""
    return nft.rule_body(names.TABLE_NAME, chain, rule_tail(rule), rule.comment)


def decode_rule(found: nft.RuleInfo) -> Rule:
    """A dumped rule as ours."""
    return Rule(tuple(decode_expression(e) for e in found.expressions), found.comment)


def chain_body(name: str, chain: Chain) -> bytes:
    """A chain message's body, without rules."""
    base = chain.hook
    hook = None if base is None else nft.Hook(base.type, base.number, base.priority)
    return nft.chain_body(names.TABLE_NAME, name, hook, names.COMMENTS.get(name, ""))


def set_body(name: str, spec: SetSpec, identity: int) -> bytes:
    """A set message's body."""
    return nft.set_body(
        nft.SetInfo(
            table=names.TABLE_NAME,
            name=name,
            flags=spec.flags,
            key_type=spec.key_type,
            key_length=spec.key_length,
            data_type=spec.data_type,
            data_length=spec.data_length,
            timeout_ms=spec.timeout_ms,
            comment=names.COMMENTS.get(name, ""),
        ),
        identity,
    )


def decode_set(found: nft.SetInfo) -> SetSpec:
    """A dumped set's declaration; the size of a verdict is the kernel's own affair."""
    is_verdict = found.data_type == nft.VERDICT_DATA
    return SetSpec(
        key_type=found.key_type,
        key_length=found.key_length,
        flags=found.flags,
        data_type=found.data_type,
        data_length=0 if is_verdict else found.data_length,
        timeout_ms=found.timeout_ms,
    )


def pack_element(key: bytes, verdict: types.Verdict | None, comment: str) -> bytes:
    """An element to add; only key and comment are packed anew each time."""
    parts = _key_head(len(key)) + key
    if verdict is not None:
        parts += _packed_verdict(verdict)
    if comment:
        parts += attr(_ELEMENT_USERDATA, nft.userdata(comment))
    return attr(_LIST_ELEMENT, parts)


_LIST_ELEMENT = 1 | NLA_F_NESTED
_ELEMENT_USERDATA = 6


@lru_cache(maxsize=16)
def _key_head(length: int) -> bytes:
    """What stands before a key's bytes; keys are whole words, so nothing stands after."""
    return nft.pack_value(1, b"\0" * length)[:-length]


@lru_cache(maxsize=4096)
def _packed_verdict(verdict: types.Verdict) -> bytes:
    return nft.pack_verdict(2, nft.Verdict(verdict.code, verdict.chain))


INDEX = struct.Struct("=I")
"""The index in a pool's key: what `numgen` yields, in host order."""
