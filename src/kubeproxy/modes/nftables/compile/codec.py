"""Our rules, chains and sets as nf_tables attributes, and back. Pure.

A table: each row names the attribute that carries a field, and its encoding. Packing and parsing
read the same rows, so that what we wrote and what the kernel dumps compare as equal values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import Encoding, T
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import Chain, SetSpec
from kubeproxy.modes.nftables.rules import expressions as exprs
from kubeproxy.modes.nftables.rules.expressions import Expr, Rule, Unknown
from kubeproxy.modes.nftables.rules.typeof import canonical_type


class Row(Struct, frozen=True):
    """One attribute of an expression.

    `read` yields what the attribute holds for one of our expressions. `field` is what a parsed
    attribute sets; without it the attribute is only compared with what `read` yields.
    """

    attribute: int
    pack: Callable[[Expr], bytes]
    parse: Callable[[bytes], object]
    read: Callable[[Expr], object]
    field: str = ""
    is_optional: bool = False
    is_implied: bool = False
    """Is it as good as there when it is left out?"""

    def agrees(self, built: Expr, value: object) -> bool:
        """Does one of our expressions mean what was parsed?"""
        return (self.is_implied and value is None) or self.read(built) == value


def _field(attribute: int, encoding: Encoding[T], name: str) -> Row:
    """An attribute that carries a field."""
    read: Callable[[Expr], T] = attrgetter(name)
    return Row(
        attribute, lambda found: encoding.pack(attribute, read(found)), encoding.parse, read, name
    )


def _optional(attribute: int, encoding: Encoding[T], name: str) -> Row:
    """An attribute that is left out while its field is None."""
    read: Callable[[Expr], T | None] = attrgetter(name)

    def pack(found: Expr) -> bytes:
        value = read(found)
        return b"" if value is None else encoding.pack(attribute, value)

    return Row(attribute, pack, encoding.parse, read, name, is_optional=True)


def _derived(attribute: int, encoding: Encoding[T], name: str) -> Row:
    """An attribute that follows from fields which other attributes carry."""
    read: Callable[[Expr], T] = attrgetter(name)
    return Row(attribute, lambda found: encoding.pack(attribute, read(found)), encoding.parse, read)


def _implied(attribute: int, encoding: Encoding[T], name: str) -> Row:
    """An attribute that we leave out, for which the kernel then takes what a field says."""
    read: Callable[[Expr], T] = attrgetter(name)
    return Row(attribute, lambda _: b"", encoding.parse, read, is_optional=True, is_implied=True)


def _constant(attribute: int, encoding: Encoding[T], value: T) -> Row:
    """An attribute that always has this value."""
    packed = encoding.pack(attribute, value)
    return Row(attribute, lambda _: packed, encoding.parse, lambda _: value)


class Format(Struct, frozen=True):
    """One kind of expression: the kernel's name for it, our class, and its attributes.

    An expression that has an attribute without a row is none of ours, unless the attribute holds
    nothing but zeros: kernels write out defaults, and later ones know of more.
    """

    name: str
    build: Callable[..., Expr]
    rows: tuple[Row, ...]

    def covers(self, attributes: Mapping[int, bytes]) -> bool:
        """Does every attribute have a row that can tell it from another value?"""
        known = {row.attribute for row in self.rows}
        return not any(any(attributes[kind]) for kind in attributes.keys() - known)


_FORMATS = (
    Format(
        "immediate",
        exprs.ImmediateVerdict,
        (
            _constant(nft.NFTA_IMMEDIATE_DREG, nft.REGISTER, nft.NFT_REG_VERDICT),
            _field(nft.NFTA_IMMEDIATE_DATA, nft.VERDICT, "verdict"),
        ),
    ),
    Format(
        "immediate",
        exprs.Immediate,
        (
            _field(nft.NFTA_IMMEDIATE_DREG, nft.REGISTER, "register"),
            _field(nft.NFTA_IMMEDIATE_DATA, nft.VALUE, "value"),
        ),
    ),
    Format(
        "payload",
        exprs.Payload,
        (
            _field(nft.NFTA_PAYLOAD_DREG, nft.REGISTER, "register"),
            _field(nft.NFTA_PAYLOAD_BASE, nft.NUMBER, "base"),
            _field(nft.NFTA_PAYLOAD_OFFSET, nft.NUMBER, "offset"),
            _field(nft.NFTA_PAYLOAD_LEN, nft.NUMBER, "length"),
        ),
    ),
    Format(
        "meta",
        exprs.MetaSet,
        (
            _field(nft.NFTA_META_KEY, nft.NUMBER, "key"),
            _field(nft.NFTA_META_SREG, nft.REGISTER, "register"),
        ),
    ),
    Format(
        "meta",
        exprs.MetaLoad,
        (
            _field(nft.NFTA_META_DREG, nft.REGISTER, "register"),
            _field(nft.NFTA_META_KEY, nft.NUMBER, "key"),
        ),
    ),
    Format(
        "ct",
        exprs.Ct,
        (
            _field(nft.NFTA_CT_DREG, nft.REGISTER, "register"),
            _field(nft.NFTA_CT_KEY, nft.NUMBER, "key"),
        ),
    ),
    Format(
        "cmp",
        exprs.Compare,
        (
            _field(nft.NFTA_CMP_SREG, nft.REGISTER, "register"),
            _field(nft.NFTA_CMP_OP, nft.COMPARISON, "is_unequal"),
            _field(nft.NFTA_CMP_DATA, nft.VALUE, "value"),
        ),
    ),
    Format(
        "bitwise",
        exprs.Bitwise,
        (
            _field(nft.NFTA_BITWISE_SREG, nft.REGISTER, "register"),
            _derived(nft.NFTA_BITWISE_DREG, nft.REGISTER, "register"),
            _derived(nft.NFTA_BITWISE_LEN, nft.NUMBER, "length"),
            _field(nft.NFTA_BITWISE_MASK, nft.VALUE, "mask"),
            _field(nft.NFTA_BITWISE_XOR, nft.VALUE, "xor"),
        ),
    ),
    Format(
        "lookup",
        exprs.Lookup,
        (
            _field(nft.NFTA_LOOKUP_SET, nft.TEXT, "set"),
            _field(nft.NFTA_LOOKUP_SREG, nft.REGISTER, "register"),
            _optional(nft.NFTA_LOOKUP_DREG, nft.REGISTER, "result"),
        ),
    ),
    Format(
        "fib",
        exprs.Fib,
        (
            _field(nft.NFTA_FIB_DREG, nft.REGISTER, "register"),
            _constant(nft.NFTA_FIB_RESULT, nft.NUMBER, nft.NFT_FIB_RESULT_ADDRTYPE),
            _field(nft.NFTA_FIB_FLAGS, nft.NUMBER, "flags"),
        ),
    ),
    Format(
        "numgen",
        exprs.Numgen,
        (
            _field(nft.NFTA_NG_DREG, nft.REGISTER, "register"),
            _field(nft.NFTA_NG_MODULUS, nft.NUMBER, "modulus"),
            _field(nft.NFTA_NG_TYPE, nft.NUMGEN_TYPE, "is_in_turn"),
            _constant(nft.NFTA_NG_OFFSET, nft.NUMBER, 0),
        ),
    ),
    Format(
        "hash",
        exprs.Hash,
        (
            _field(nft.NFTA_HASH_SREG, nft.REGISTER, "source"),
            _field(nft.NFTA_HASH_DREG, nft.REGISTER, "register"),
            _field(nft.NFTA_HASH_LEN, nft.NUMBER, "length"),
            _field(nft.NFTA_HASH_MODULUS, nft.NUMBER, "modulus"),
            _field(nft.NFTA_HASH_SEED, nft.NUMBER, "seed"),
            _constant(nft.NFTA_HASH_TYPE, nft.NUMBER, nft.NFT_HASH_JENKINS),
        ),
    ),
    Format(
        "nat",
        exprs.Dnat,
        (
            _constant(nft.NFTA_NAT_TYPE, nft.NUMBER, nft.NFT_NAT_DNAT),
            _field(nft.NFTA_NAT_FAMILY, nft.NUMBER, "family"),
            _field(nft.NFTA_NAT_REG_ADDR_MIN, nft.REGISTER, "address"),
            _implied(nft.NFTA_NAT_REG_ADDR_MAX, nft.REGISTER, "address"),
            _field(nft.NFTA_NAT_REG_PROTO_MIN, nft.REGISTER, "port"),
            _implied(nft.NFTA_NAT_REG_PROTO_MAX, nft.REGISTER, "port"),
            # The kernel adds these flags itself when both registers are given, and dumps them.
            _constant(
                nft.NFTA_NAT_FLAGS,
                nft.NUMBER,
                nft.NF_NAT_RANGE_MAP_IPS | nft.NF_NAT_RANGE_PROTO_SPECIFIED,
            ),
        ),
    ),
    Format(
        "masq",
        exprs.Masquerade,
        (_constant(nft.NFTA_MASQ_FLAGS, nft.NUMBER, nft.NF_NAT_RANGE_PROTO_RANDOM_FULLY),),
    ),
    Format(
        "reject",
        exprs.Reject,
        (
            _constant(nft.NFTA_REJECT_TYPE, nft.NUMBER, nft.NFT_REJECT_ICMP_UNREACH),
            _field(nft.NFTA_REJECT_ICMP_CODE, nft.OCTET, "code"),
        ),
    ),
    Format(
        "dynset",
        exprs.Dynset,
        (
            _field(nft.NFTA_DYNSET_SET_NAME, nft.TEXT, "set"),
            _constant(nft.NFTA_DYNSET_OP, nft.NUMBER, nft.NFT_DYNSET_OP_UPDATE),
            _field(nft.NFTA_DYNSET_SREG_KEY, nft.REGISTER, "register"),
        ),
    ),
)

_BY_CLASS = {form.build: form for form in _FORMATS}
_BY_NAME: dict[str, list[Format]] = {}
for _form in _FORMATS:
    _BY_NAME.setdefault(_form.name, []).append(_form)


def pack_expression(expression: Expr) -> bytes:
    """One expression in the kernel's form."""
    form = _BY_CLASS[type(expression)]
    return nft.expression(form.name, *(row.pack(expression) for row in form.rows))


def parse_expression(found: nft.ExpressionInfo) -> Expr:
    """One dumped expression, `Unknown` if we would never write it."""
    for form in _BY_NAME.get(found.name, ()):
        built = _parse_as(form, found.attributes)
        if built is not None:
            return built
    return Unknown(found.name, tuple(sorted(found.attributes.items())))


def _parse_as(form: Format, attributes: Mapping[int, bytes]) -> Expr | None:
    """Our expression of this kind, or None if it would not mean the same as the attributes."""
    if not form.covers(attributes):
        return None
    values: list[object] = []
    for row in form.rows:
        raw = attributes.get(row.attribute)
        value = None if raw is None else row.parse(raw)
        if value is None and not row.is_optional:
            return None
        values.append(value)
    pairs = list(zip(form.rows, values, strict=True))
    built = form.build(**{row.field: value for row, value in pairs if row.field})
    return built if all(row.agrees(built, value) for row, value in pairs) else None


def rule_body(chain: str, rule: Rule) -> bytes:
    """A rule message's body."""
    # Nothing is remembered: class chains are written once, and rules of one Service are like no
    # others.
    packed = map(pack_expression, rule.expressions)
    return nft.rule_body(names.TABLE_NAME, chain, packed, rule.comment)


def parse_rule(found: nft.RuleInfo) -> Rule:
    """A dumped rule as ours."""
    expressions = list(map(parse_expression, found.expressions))
    for place, expression in enumerate(expressions):
        if isinstance(expression, exprs.Hash) and place:
            expressions[place - 1 : place + 1] = _canonical_hash(expressions[place - 1], expression)
    return Rule(tuple(expressions), found.comment)


def _canonical_hash(load: Expr, found: exprs.Hash) -> tuple[Expr, Expr]:
    """The same with the register that we use for what is hashed.

    Which one it is means nothing, as long as it is behind the key: nft, which loads its printout,
    takes another.
    """
    if not isinstance(load, exprs.Payload) or load.register != found.source:
        return load, found
    if load.register <= found.register:
        return load, found
    register = found.register + 1
    return replace(load, register=register), replace(found, source=register)


def chain_body(name: str, chain: Chain) -> bytes:
    """A chain message's body, without rules."""
    return nft.chain_body(names.TABLE_NAME, name, chain.hook, names.COMMENTS.get(name, ""))


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
            counts=spec.counts,
            typeof=spec.typeof,
        ),
        identity,
    )


def parse_set(found: nft.SetInfo) -> SetSpec:
    """A dumped set's declaration. The size of a verdict is the kernel's own, so it is left out."""
    is_verdict = found.data_type == nft.NFT_DATA_VERDICT
    return SetSpec(
        key_type=canonical_type(found.key_type),
        key_length=found.key_length,
        flags=found.flags,
        data_type=found.data_type,
        data_length=0 if is_verdict else found.data_length,
        timeout_ms=found.timeout_ms,
        # The kernel bounds sets that packets fill, if we do not.
        size=0 if found.flags & nft.NFT_SET_EVAL else found.size,
        counts=found.counts,
        has_expressions=found.has_expressions,
        typeof=found.typeof if found.name in names.POOL_MAPS else b"",
    )


INDEX = struct.Struct("=I")
"""The index in a pool's key: what `numgen` yields, in host order."""
