"""What our table holds with no service at all: base chains, sets, and the rules between them.

Behaviour is upstream's, chain by chain; the order of rules within a chain is part of it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeproxy.facts.address import is_loopback
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import Fragment, Item, Value
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import (
    DROP,
    TABLE,
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Hook,
    Rule,
    SetItem,
    SetSpec,
    Table,
)
from kubeproxy.modes.nftables.names import FamilyLayout, layout_of, pack_address
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.classes import ClassContext, pick_class
from kubeproxy.modes.nftables.rules.pieces import rule

BASE_CHAINS: dict[str, Hook] = {
    "filter-prerouting-pre-dnat": Hook("filter", 0, -110),
    "filter-output-pre-dnat": Hook("filter", 3, -110),
    "filter-input": Hook("filter", 1, 0),
    "filter-forward": Hook("filter", 2, 0),
    "filter-output": Hook("filter", 3, 0),
    "nat-prerouting": Hook("nat", 0, -100),
    "nat-output": Hook("nat", 3, -100),
    "nat-postrouting": Hook("nat", 4, 100),
}

GUARDED_JUMPS: dict[str, tuple[str, ...]] = {
    "filter-input": ("nodeport-endpoints-check", "service-endpoints-check"),
    "filter-forward": ("service-endpoints-check", "cluster-ips-check"),
    "filter-output": ("service-endpoints-check", "cluster-ips-check"),
    "filter-prerouting-pre-dnat": ("firewall-check",),
    "filter-output-pre-dnat": ("firewall-check",),
}
"""Only new connections: established ones must survive the loss of their endpoint."""

PLAIN_JUMPS: dict[str, str] = {
    "nat-prerouting": "services",
    "nat-output": "services",
    "nat-postrouting": "masquerading",
}

SCAFFOLD_CHAINS = frozenset(
    (
        "masquerading",
        "cluster-ips-check",
        names.REJECT_CHAIN,
        "service-endpoints-check",
        "nodeport-endpoints-check",
        "firewall-check",
        "services",
    )
)
"""The regular chains that always exist."""

COMMON_CLASSES = range(1, 33)
"""Numbers of endpoints whose class always exists.

A new rule makes the kernel check every jump of the table again, 20 ms or more with 10,000
services; so a service that scales within these bounds must not be the one that brings a rule.
"""

_MAP = 0x8
_VERDICT_TYPE = 0xFFFFFF00
_PROTOCOL_TYPE, _SERVICE_TYPE, _MARK_TYPE = 12, 13, 19
# A 32-bit index would be an `integer`, but nft 1.0.6 aborts on that in a concatenation.


def scaffold(node: NodeFacts, mark: int) -> Fragment:
    """All items of an idle proxy."""
    layout = layout_of(node.family)
    items: dict[Item, Value] = {TABLE: Table()}
    items |= {SetItem(name): spec for name, spec in set_specs(layout).items()}
    items |= {ChainItem(name): _base_chain(name, hook) for name, hook in BASE_CHAINS.items()}
    items |= {ChainItem(name): chain for name, chain in _regular_chains(layout, node, mark)}
    context = ClassContext(layout, node.detector, mark)
    for count in COMMON_CLASSES:
        items.update(pick_class(context, count).chains)
    if not node.node_ports_match_all:
        items |= _node_port_addresses(layout, node)
    return items


def _concat(*types: int) -> int:
    """nft's number for a concatenation: six bits for each field."""
    packed = 0
    for number in types:
        packed = packed << 6 | number
    return packed


def set_specs(layout: FamilyLayout) -> dict[str, SetSpec]:
    """The sets and maps that always exist."""
    address, length = layout.address_type, layout.address_length
    port = (_PROTOCOL_TYPE, _SERVICE_TYPE)
    service_type, node_port_type = _concat(address, *port), _concat(*port)
    specs = {
        names.CLUSTER_IPS: SetSpec(address, length),
        names.HAIRPIN: SetSpec(_concat(address, address, *port), 2 * length + 8),
    }
    for name in (names.NO_ENDPOINT_SERVICES, names.FIREWALL_IPS, names.SERVICE_IPS):
        specs[name] = SetSpec(service_type, length + 8, _MAP, _VERDICT_TYPE)
    for name in (names.NO_ENDPOINT_NODE_PORTS, names.SERVICE_NODE_PORTS):
        specs[name] = SetSpec(node_port_type, 8, _MAP, _VERDICT_TYPE)
    return specs | {name: _pool_spec(layout, name) for name in names.POOL_MAPS}


def node_port_ips_spec(layout: FamilyLayout) -> SetSpec:
    """The set that exists only while node ports are restricted to some addresses."""
    return SetSpec(layout.address_type, layout.address_length)


def _pool_spec(layout: FamilyLayout, name: str) -> SetSpec:
    address, length = layout.address_type, layout.address_length
    index = (_PROTOCOL_TYPE, _SERVICE_TYPE, _MARK_TYPE)
    data_type = _concat(address, _SERVICE_TYPE)
    if name in (names.SERVICE_ENDPOINTS, names.LOCAL_ENDPOINTS):
        return SetSpec(_concat(address, *index), length + 12, _MAP, data_type, length + 4)
    return SetSpec(_concat(*index), 12, _MAP, data_type, length + 4)


def _base_chain(name: str, hook: Hook) -> Chain:
    if name in PLAIN_JUMPS:
        return Chain((rule(rules.jumps(PLAIN_JUMPS[name])),), hook)
    targets = GUARDED_JUMPS[name]
    return Chain(tuple(rule(rules.state_new(), rules.jumps(t)) for t in targets), hook)


def _regular_chains(
    layout: FamilyLayout, node: NodeFacts, mark: int
) -> Iterator[tuple[str, Chain]]:
    by_service = rules.service_key(layout)
    yield "masquerading", Chain(tuple(_masquerading(layout, mark)))
    yield "cluster-ips-check", Chain(tuple(_cluster_ips_check(layout, node)))
    yield names.REJECT_CHAIN, Chain((rule(rules.reject(layout)),))
    no_endpoints = rule(by_service, rules.verdict_map(names.NO_ENDPOINT_SERVICES))
    yield "service-endpoints-check", Chain((no_endpoints,))
    yield "nodeport-endpoints-check", Chain((_node_port_check(layout, node),))
    yield "firewall-check", Chain((rule(by_service, rules.verdict_map(names.FIREWALL_IPS)),))
    yield "services", Chain(tuple(_services(layout, node, mark)))


def _masquerading(layout: FamilyLayout, mark: int) -> Iterator[Rule]:
    yield rule(rules.mark_has(mark), rules.mark_xor(mark), rules.masquerade())
    yield rule(
        rules.status_dnat(),
        rules.hairpin_key(layout),
        rules.in_set(names.HAIRPIN),
        rules.masquerade(),
    )


def _cluster_ips_check(layout: FamilyLayout, node: NodeFacts) -> Iterator[Rule]:
    yield rule(
        rules.destination(layout),
        rules.in_set(names.CLUSTER_IPS),
        rules.reject(layout),
        comment="Reject traffic to invalid ports of ClusterIPs",
    )
    # One rule for each network rather than one anonymous set: there are very few.
    for cidr in sorted(node.service_cidrs):
        yield rule(
            rules.in_network(layout, layout.destination_offset, cidr),
            rules.decides(DROP),
            comment="Drop traffic to unallocated ClusterIPs",
        )


def _to_node_port_address(layout: FamilyLayout, node: NodeFacts) -> rules.Exprs:
    """Is the packet for an address that serves node ports?"""
    if node.node_ports_match_all:
        return rules.not_loopback(layout)
    return (rules.destination(layout), rules.in_set(names.NODE_PORT_IPS))


def _node_port_check(layout: FamilyLayout, node: NodeFacts) -> Rule:
    return rule(
        _to_node_port_address(layout, node),
        rules.node_port_key(),
        rules.verdict_map(names.NO_ENDPOINT_NODE_PORTS),
    )


def _services(layout: FamilyLayout, node: NodeFacts, mark: int) -> Iterator[Rule]:
    to_cluster_ip = (rules.destination(layout), rules.in_set(names.CLUSTER_IPS))
    if node.masquerade_all:
        comment = "masquerade all clusterIP traffic"
        yield rule(to_cluster_ip, rules.mark_or(mark), comment=comment)
    elif node.detector.is_implemented:
        outside = rules.from_local_pod(layout, node.detector, negated=True)
        comment = "masquerade clusterIP traffic from outside cluster"
        yield rule(to_cluster_ip, outside, rules.mark_or(mark), comment=comment)
    yield rule(rules.service_key(layout), rules.verdict_map(names.SERVICE_IPS))
    own = rules.is_local(rules.FIB_DESTINATION) if node.node_ports_match_all else ()
    yield rule(
        own,
        _to_node_port_address(layout, node),
        rules.node_port_key(),
        rules.verdict_map(names.SERVICE_NODE_PORTS),
    )


def _node_port_addresses(layout: FamilyLayout, node: NodeFacts) -> dict[Item, Value]:
    """The addresses that accept node ports; loopback is never among them in this mode."""
    accepted = (a for a in node.node_port_addresses if not is_loopback(a))
    items: dict[Item, Value] = {SetItem(names.NODE_PORT_IPS): node_port_ips_spec(layout)}
    return items | {ElementItem(names.NODE_PORT_IPS, pack_address(a)): Element() for a in accepted}
