"""Lists of sources of one service port, between dispatch and its endpoints. Pure.

    map service-ips { 10.96.0.10 . tcp . 80 : goto guard-ABCDEFGH-shop/web/tcp/http }

    chain guard-ABCDEFGH-shop/web/tcp/http {
            ip saddr 10.1.2.0/24 drop
            ip saddr 10.0.0.0/8 goto admit-chain
            drop
    }
    chain admit-chain {
            ip daddr . meta l4proto . th dport vmap @admitted-services
            meta l4proto . th dport vmap @admitted-nodeports
    }
    map admitted-services { 10.96.0.10 . tcp . 80 : goto pick-3 }

All frontends of a service port share its chain, and the chain names no endpoints: when their number
changes, one element changes, as for any other service. The second dispatch comes with the first
service port that needs it and goes with the last.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeproxy.facts.address import merge_cidrs
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    ChainKind,
    Element,
    ElementItem,
    Fragment,
    Item,
    Value,
)
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.rules.pieces import Piece, rule
from kubeproxy.plan.types import Guard, ServicePlan

_ADMITTED = {
    names.SERVICE_IPS: names.ADMITTED_SERVICES,
    names.SERVICE_NODE_PORTS: names.ADMITTED_NODE_PORTS,
}
"""By dispatch map: the one by which packets are dispatched once they are admitted."""


def guard_items(
    plan: ServicePlan, guard: Guard, items: Fragment, layout: FamilyLayout
) -> dict[Item, Value]:
    """What a service port's items become, and what comes with them, where it has a guard."""
    name = names.GUARD_CHAIN_PREFIX + names.base_name(names.service_port_name(plan.id))
    found: dict[Item, Value] = {}
    for item, value in items.items():
        match item, value:
            case ElementItem(dispatch, key), Element() if dispatch in _ADMITTED:
                found[ElementItem(_ADMITTED[dispatch], key)] = value
                verdict = nft.Verdict(nft.NFT_GOTO, name)
                found[item] = Element(verdict, value.comment)
    if found:
        chain = Chain(ChainKind.SERVICE_ENTRY, tuple(_guard_rules(guard, layout)))
        found[ChainItem(name)] = chain
        found |= _admit_chain_items(layout)
    return found


def _guard_rules(guard: Guard, layout: FamilyLayout) -> Iterator[Rule]:
    admit, deny = rules.goto(names.ADMIT_CHAIN), rules.verdict(nft.DROP)
    for cidr in merge_cidrs(guard.denied, layout.family):
        yield _from(cidr, deny, layout)
    allowed = guard.allowed
    if allowed is None:
        yield rule(admit)
        return
    for cidr in merge_cidrs(allowed, layout.family):
        yield _from(cidr, admit, layout)
    yield rule(deny)


def _from(cidr: str, then: Piece, layout: FamilyLayout) -> Rule:
    return rule(rules.in_network(layout, layout.source_offset, cidr), then)


def _admit_chain_items(layout: FamilyLayout) -> dict[Item, Value]:
    listed = (
        rule(rules.service_key(layout), rules.verdict_map(names.ADMITTED_SERVICES)),
        rule(rules.node_port_key(), rules.verdict_map(names.ADMITTED_NODE_PORTS)),
    )
    return {ChainItem(names.ADMIT_CHAIN): Chain(ChainKind.CLASS_ENTRY, listed)}
