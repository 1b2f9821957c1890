"""Packets that the table refuses, counted by service port, where that is asked for. Pure.

    chain reject-chain {
            ip daddr . meta l4proto . th dport @rejected-services
            meta l4proto . th dport @rejected-nodeports
            reject
    }

A packet that is refused is looked up once more, in sets whose elements have counters. So no other
packet pays for it, and the maps by which packets are refused stay as they are without counters:
the kernel cannot add one to a set that exists, and upstream's proxy has maps of the same names.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from kubeproxy.facts.ids import Protocol
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.base import (
    NO_ENDPOINTS,
    NO_LOCAL_ENDPOINTS,
    OUTSIDE_SOURCE_RANGES,
    REFUSED_BY_ANNOTATION,
    RefusedPackets,
)
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
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import Verdict

_PROTOCOLS = {protocol.number: protocol for protocol in Protocol}
_FIELD = 4
"""The bytes of a protocol or port in a key."""


class CountingSet(Struct, frozen=True, gc=False):
    """A set whose elements count: what is done to the packets, and why."""

    name: str
    action: Verdict
    reason: str
    is_of_node_ports: bool = False


COUNTING_SETS = (
    CountingSet(names.REJECTED_SERVICES, Verdict.REJECT, NO_ENDPOINTS),
    CountingSet(names.REJECTED_NODE_PORTS, Verdict.REJECT, NO_ENDPOINTS, True),
    CountingSet(names.DROPPED_SERVICES, Verdict.DROP, NO_LOCAL_ENDPOINTS),
    CountingSet(names.DROPPED_NODE_PORTS, Verdict.DROP, NO_LOCAL_ENDPOINTS, True),
    CountingSet(names.FIREWALLED_SERVICES, Verdict.DROP, OUTSIDE_SOURCE_RANGES),
    CountingSet(names.DENIED_SERVICES, Verdict.DROP, REFUSED_BY_ANNOTATION),
    CountingSet(names.DENIED_NODE_PORTS, Verdict.DROP, REFUSED_BY_ANNOTATION, True),
)

COUNTING_NAMES = frozenset(counting.name for counting in COUNTING_SETS)

_FOR_WANT_OF_ENDPOINTS = {
    names.NO_ENDPOINT_SERVICES: {
        Verdict.REJECT: names.REJECTED_SERVICES,
        Verdict.DROP: names.DROPPED_SERVICES,
    },
    names.NO_ENDPOINT_NODE_PORTS: {
        Verdict.REJECT: names.REJECTED_NODE_PORTS,
        Verdict.DROP: names.DROPPED_NODE_PORTS,
    },
}
"""By map that refuses and by what it does: the set that counts."""

_OF_GUARDS = {
    names.ADMITTED_SERVICES: names.DENIED_SERVICES,
    names.ADMITTED_NODE_PORTS: names.DENIED_NODE_PORTS,
}
"""By map that lists of sources guard: the set that counts whom they refuse."""

_TO_DROP_CHAIN = nft.Verdict(nft.NFT_GOTO, names.DROP_CHAIN)


def drops(verdict: nft.Verdict | None) -> bool:
    """Does an element with this verdict drop packets?"""
    return verdict in (nft.DROP, _TO_DROP_CHAIN)


def counting_rules(layout: FamilyLayout, action: Verdict) -> tuple[Rule, ...]:
    """The rules that count a packet before it is refused like this for want of endpoints."""
    services, node_ports = (sets[action] for sets in _FOR_WANT_OF_ENDPOINTS.values())
    return (
        _look_up(rules.service_key(layout), services),
        _look_up(rules.node_port_key(), node_ports),
    )


def _look_up(key: Piece, name: str) -> Rule:
    """A look-up that decides nothing: an element that matches has counted."""
    return rule(key, rules.in_set(name))


def drop_chain_items(layout: FamilyLayout) -> dict[Item, Value]:
    """The chain that counts and drops. Without counters the verdict of an element drops."""
    listed = (*counting_rules(layout, Verdict.DROP), rule(rules.verdict(nft.DROP)))
    return {ChainItem(names.DROP_CHAIN): Chain(ChainKind.CLASS_ENTRY, listed)}


def deny_chain_items(layout: FamilyLayout) -> dict[Item, Value]:
    """The chain that counts and drops what lists of sources refuse."""
    listed = (
        _look_up(rules.service_key(layout), names.DENIED_SERVICES),
        _look_up(rules.node_port_key(), names.DENIED_NODE_PORTS),
        rule(rules.verdict(nft.DROP)),
    )
    return {ChainItem(names.DENY_CHAIN): Chain(ChainKind.CLASS_ENTRY, listed)}


def counting_items(items: Fragment, layout: FamilyLayout) -> dict[Item, Value]:
    """What a service port's items become, and what comes with them, where its refusals count."""
    found: dict[Item, Value] = {}
    for item, value in items.items():
        match item, value:
            case ElementItem(name, key), Element(verdict, comment):
                found |= _counting_elements(name, key, verdict, comment)
            case ChainItem(name), Chain(kind, listed) if names.is_firewall_chain(name):
                count = _look_up(rules.service_key(layout), names.FIREWALLED_SERVICES)
                found[item] = Chain(kind, (*listed[:-1], count, listed[-1]))
            case ChainItem(name), Chain(kind, listed) if names.is_guard_chain(name):
                found[item] = Chain(kind, tuple(map(_counting_drop, listed)))
    return found


def _counting_drop(dropping: Rule) -> Rule:
    """The rule of a guard, with the chain that counts in place of a drop."""
    matches, verdict = dropping.expressions[:-1], dropping.expressions[-1:]
    if verdict != rules.verdict(nft.DROP):
        return dropping
    return rule(matches, rules.goto(names.DENY_CHAIN))


def _counting_elements(
    name: str, key: bytes, verdict: nft.Verdict | None, comment: str
) -> dict[Item, Value]:
    counting = Element(comment=comment)
    if name == names.FIREWALL_IPS:
        return {ElementItem(names.FIREWALLED_SERVICES, key): counting}
    if name in _OF_GUARDS:
        return {ElementItem(_OF_GUARDS[name], key): counting}
    if name not in _FOR_WANT_OF_ENDPOINTS:
        return {}
    action = Verdict.DROP if drops(verdict) else Verdict.REJECT
    found: dict[Item, Value] = {ElementItem(_FOR_WANT_OF_ENDPOINTS[name][action], key): counting}
    if action is Verdict.DROP:
        found[ElementItem(name, key)] = Element(_TO_DROP_CHAIN, comment)
    return found


class Counted(Struct, frozen=True, gc=False):
    """Packets that one element has counted."""

    counting: CountingSet
    key: bytes
    packets: int


def refused_of(counted: Iterable[Counted], frontends: Frontends) -> list[RefusedPackets]:
    """The same by service port, of those that still exist."""
    found = []
    for each in counted:
        address, protocol, port = _split(each.key)
        known = _PROTOCOLS.get(protocol)
        plan = frontends.find(known, address + port) if known else None
        if plan is not None:
            action, reason = each.counting.action.value, each.counting.reason
            found.append(RefusedPackets(plan.id, action, reason, each.packets))
    return found


def _split(key: bytes) -> tuple[bytes, int, bytes]:
    """Address (none in the key of a node port), protocol number and packed port of a key."""
    address, rest = key[: -2 * _FIELD], key[-2 * _FIELD :]
    return address, rest[0], rest[_FIELD : _FIELD + 2]
