"""Rules and sets survive the way to the wire and back; foreign ones are recognised."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.builders import endpoint, node, plans, service

from kpctl.trace.tracers import rendered
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink.codec import (
    Message,
    attr,
    attr_be32,
    attr_str,
    iter_messages,
    parse_attrs,
)
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.items import Chain
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.rules import expressions as exprs
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.scaffold import scaffold, set_specs


def all_rules(family: Family) -> set[Rule]:
    on = node(family, service_cidrs=["10.96.0.0/12" if family is Family.IPV4 else "fd00::/108"])
    address = "10.244.1.1" if family is Family.IPV4 else "fd00:244::1"
    cluster_ip = "10.96.0.10" if family is Family.IPV4 else "fd00:96::a"
    pods = [endpoint(address, local=True)]
    found: set[Rule] = set()
    for seconds in (0, 60):
        facts = service(
            cluster_ip=cluster_ip, node_port=30000, external_local=True, affinity_seconds=seconds
        )
        items, _ = rendered(plans(facts, pods, on), on, mode="nftables")
        for value in items.values():
            if isinstance(value, Chain):
                found.update(value.rules)
    return found


def parse(transaction: nft.Transaction) -> list[Message]:
    return list(iter_messages(transaction.pack()))[1:-1]


@pytest.mark.parametrize("family", list(Family))
def test_every_rule_we_write_reads_back_equal(family: Family) -> None:
    """Equality with the kernel's dump is what makes a restart silent."""
    for rule in all_rules(family):
        transaction = nft.Transaction(layout_of(family).number)
        transaction.add(nft.NEWRULE, codec.rule_body("services", rule), "rule")
        assert codec.parse_rule(nft.parse_rule(parse(transaction)[0])) == rule


@pytest.mark.parametrize("family", list(Family))
def test_every_set_reads_back_equal(family: Family) -> None:
    for name, spec in set_specs(layout_of(family)).items():
        transaction = nft.Transaction(2)
        transaction.add(nft.NEWSET, codec.set_body(name, spec, 1), "set")
        assert codec.parse_set(nft.parse_set(parse(transaction)[0])) == spec


def decoded(name: str, *attributes: bytes) -> exprs.Expr:
    transaction = nft.Transaction(2)
    body = nft.rule_body("t", "c", [nft.expression(name, *attributes)])
    transaction.add(nft.NEWRULE, body, "rule")
    (found,) = nft.parse_rule(parse(transaction)[0]).expressions
    return codec.parse_expression(found)


def test_old_register_names_are_the_same_registers() -> None:
    """The kernel dumps register 12 as 2."""
    assert decoded("meta", attr_be32(1, 2), attr_be32(2, 16)) == exprs.MetaLoad(12, 16)


def test_an_inverted_lookup_is_not_ours() -> None:
    """It would otherwise look like its opposite."""
    parts = (attr_str(1, "cluster-ips"), attr_be32(2, 8))
    assert decoded("lookup", *parts) == exprs.Lookup("cluster-ips", 8)
    assert isinstance(decoded("lookup", *parts, attr_be32(5, 1)), exprs.Unknown)


def test_a_bitwise_between_two_registers_is_not_ours() -> None:
    value = nft.pack_value(4, b"\0\0\0\1") + nft.pack_value(5, b"\0\0\0\0")
    parts = (attr_be32(1, 8), attr_be32(2, 9), attr_be32(3, 4), value)
    assert isinstance(decoded("bitwise", *parts), exprs.Unknown)


def test_foreign_expressions_compare_unequal_to_ours() -> None:
    """A rule of another process is noticed, whatever it does."""
    assert decoded("counter") == exprs.Unknown("counter", ())


def expressions(family: Family) -> set[exprs.Expr]:
    """Every expression that any rule of ours has."""
    scaffolded = scaffold(node(family), Options()).values()
    chains = [value for value in scaffolded if isinstance(value, Chain)]
    rules = {rule for chain in chains for rule in chain.rules} | all_rules(family)
    return {expression for rule in rules for expression in rule.expressions}


def on_the_wire(expression: exprs.Expr) -> nft.ExpressionInfo:
    transaction = nft.Transaction(2)
    body = nft.rule_body("t", "c", [codec.pack_expression(expression)])
    transaction.add(nft.NEWRULE, body, "rule")
    (found,) = nft.parse_rule(parse(transaction)[0]).expressions
    return found


def flipped(raw: bytes) -> Iterator[bytes]:
    """The same bytes with one bit changed, each of them in turn."""
    for position in range(len(raw)):
        for bit in range(8):
            yield raw[:position] + bytes([raw[position] ^ 1 << bit]) + raw[position + 1 :]


NESTED = {("immediate", 2), ("cmp", 3), ("bitwise", 4), ("bitwise", 5)}


def content(raw: bytes) -> dict[int, object]:
    """What nested attributes hold, without padding and without flags in their headers."""
    found: dict[int, object] = {}
    for kind, value in parse_attrs(raw).items():
        verdict = parse_attrs(value)
        chain = verdict.get(2, b"").partition(b"\0")[0]
        found[kind] = (verdict.get(1), chain) if kind == 2 else value
    return found


@pytest.mark.parametrize("family", list(Family))
def test_any_other_value_of_an_attribute_is_another_expression(family: Family) -> None:
    """A foreign edit, be it of one bit, is noticed: `!=` is not `<`."""
    for expression in expressions(family):
        found = on_the_wire(expression)
        assert codec.parse_expression(found) == expression
        for kind, raw in found.attributes.items():
            for other in flipped(raw):
                if (found.name, kind) in NESTED and content(other) == content(raw):
                    continue
                edited = nft.ExpressionInfo(found.name, {**found.attributes, kind: other})
                assert codec.parse_expression(edited) != expression, (expression, kind, other)
            left_out = {k: v for k, v in found.attributes.items() if k != kind}
            edited = nft.ExpressionInfo(found.name, left_out)
            assert codec.parse_expression(edited) != expression, (expression, kind)


@pytest.mark.parametrize("family", list(Family))
def test_any_other_attribute_is_another_expression(family: Family) -> None:
    """A timeout, a direction, an upper bound; but zeros are a default that is written out."""
    for expression in expressions(family):
        found = on_the_wire(expression)
        for kind in range(1, 24):
            if kind in found.attributes:
                continue
            more = nft.ExpressionInfo(found.name, {**found.attributes, kind: b"\0\0\0\x05"})
            assert codec.parse_expression(more) != expression, (expression, kind)
    for default in (b"", b"\0\0\0\0", b"\0" * 8):
        assert decoded("cmp", *_CMP, attr(9, default)) == exprs.Compare(8, b"\6")


_CMP = (attr_be32(1, 8), attr_be32(2, 0), nft.pack_value(3, b"\6"))


@pytest.mark.parametrize("operator", [2, 3, 4, 5])
def test_other_comparisons_are_not_ours(operator: int) -> None:
    """Less, less or equal, greater, greater or equal."""
    parts = (attr_be32(1, 8), attr_be32(2, operator), nft.pack_value(3, b"\6"))
    assert isinstance(decoded("cmp", *parts), exprs.Unknown)


def test_scaffold_rules_are_all_encodable() -> None:
    """No expression without a row in the table."""
    for value in scaffold(node(), Options()).values():
        if isinstance(value, Chain):
            for rule in value.rules:
                assert codec.rule_body("c", rule)
