"""What our table holds with no service at all: base chains, sets, and the rules between them.

What happens to packets is what upstream's chains do, one by one; the order of rules within a chain
is part of it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubeproxy.facts.address import is_loopback, pack_address
from kubeproxy.facts.node import NodeFacts
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import (
    TABLE,
    Chain,
    ChainItem,
    ChainKind,
    Element,
    ElementItem,
    Fragment,
    Item,
    SetItem,
    SetSpec,
    Table,
    Value,
)
from kubeproxy.modes.nftables.names import FamilyLayout, layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.classes import ClassContext, pick_class
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.rules.pieces import Piece, rule
from kubeproxy.modes.nftables.rules.refused import (
    COUNTING_SETS,
    counting_rules,
    deny_chain_items,
    drop_chain_items,
)
from kubeproxy.modes.nftables.rules.typeof import typeof_userdata
from kubeproxy.plan.types import Verdict

_GUARDED_JUMPS: dict[str, tuple[str, ...]] = {
    "filter-input": (names.NODE_PORT_ENDPOINTS_CHECK, names.SERVICE_ENDPOINTS_CHECK),
    "filter-forward": (names.SERVICE_ENDPOINTS_CHECK, names.CLUSTER_IPS_CHECK),
    "filter-output": (names.SERVICE_ENDPOINTS_CHECK, names.CLUSTER_IPS_CHECK),
    "filter-prerouting-pre-dnat": (names.FIREWALL_CHECK,),
    "filter-output-pre-dnat": (names.FIREWALL_CHECK,),
}
"""Only new connections: established ones must survive the loss of their endpoint."""

_PLAIN_JUMPS: dict[str, str] = {
    "nat-prerouting": names.SERVICES,
    "nat-output": names.SERVICES,
    "nat-postrouting": names.MASQUERADING,
}

COMMON_CLASSES = range(1, 33)
"""Numbers of endpoints whose class always exists.

A new rule makes the kernel check every jump of the table again, 20 ms or more with 10,000
services; so a service that scales within these bounds must not be the one that brings a rule.
"""

_INDEX_TYPE = nft.TYPE_MARK
# A 32-bit index is an `integer`, and nft knows so by `rules.typeof`. But a version that does not
# understand that would abort on an integer in a concatenation, while it prints a mark.


def scaffold(node: NodeFacts, options: Options) -> Fragment:
    """All items of an idle proxy."""
    layout, mark = layout_of(node.family), options.masquerade_mark
    items: dict[Item, Value] = {TABLE: Table()}
    items |= {SetItem(name): spec for name, spec in set_specs(layout).items()}
    if options.counts_refused:
        items |= {SetItem(name): spec for name, spec in counting_set_specs(layout).items()}
        items |= drop_chain_items(layout) | deny_chain_items(layout)
    items |= {ChainItem(name): _base_chain(name) for name in names.BASE_CHAINS}
    for name, listed in _scaffold_rules(layout, node, options):
        items[ChainItem(name)] = Chain(ChainKind.SCAFFOLD, tuple(listed))
    context = ClassContext(layout, node.detector, mark)
    for count in COMMON_CLASSES:
        items.update(pick_class(context, count).chains)
    if not node.node_ports_match_all:
        items |= _node_port_addresses(layout, node)
    return items


# ---- sets ------------------------------------------------------------------------------------


def _concat(*types: int) -> int:
    """nft's number for a concatenation."""
    packed = 0
    for number in types:
        packed = packed << nft.TYPE_BITS | number
    return packed


def set_specs(layout: FamilyLayout) -> dict[str, SetSpec]:
    """The sets and maps that always exist."""
    address, length = layout.address_type, layout.address_length
    specs = {
        names.CLUSTER_IPS: SetSpec(address, length),
        names.HAIRPIN: SetSpec(_concat(address, address, *_PORT), 2 * length + 8),
    }
    verdicts = (nft.NFT_SET_MAP, nft.NFT_DATA_VERDICT)
    for name in (names.NO_ENDPOINT_SERVICES, names.FIREWALL_IPS, names.SERVICE_IPS):
        specs[name] = SetSpec(*_service_key(layout), *verdicts)
    for name in (names.NO_ENDPOINT_NODE_PORTS, names.SERVICE_NODE_PORTS):
        specs[name] = SetSpec(*_NODE_PORT_KEY, *verdicts)
    return specs | {name: _pool_spec(layout, name) for name in names.POOL_MAPS}


def counting_set_specs(layout: FamilyLayout) -> dict[str, SetSpec]:
    """The sets that exist only while refused packets are counted."""
    keys = {False: _service_key(layout), True: _NODE_PORT_KEY}
    return {
        counting.name: SetSpec(*keys[counting.is_of_node_ports], counts=True)
        for counting in COUNTING_SETS
    }


def admitted_set_specs(layout: FamilyLayout) -> dict[str, SetSpec]:
    """The maps that exist only while a service port has lists of sources."""
    verdicts = (nft.NFT_SET_MAP, nft.NFT_DATA_VERDICT)
    return {
        names.ADMITTED_SERVICES: SetSpec(*_service_key(layout), *verdicts),
        names.ADMITTED_NODE_PORTS: SetSpec(*_NODE_PORT_KEY, *verdicts),
    }


def known_set_specs(layout: FamilyLayout) -> dict[str, SetSpec]:
    """Every set that is not one service's, whether or not it exists in this configuration."""
    node_ports = {names.NODE_PORT_IPS: node_port_ips_spec(layout)}
    others = counting_set_specs(layout) | admitted_set_specs(layout)
    return set_specs(layout) | others | node_ports


_PORT = (nft.TYPE_INET_PROTOCOL, nft.TYPE_INET_SERVICE)
_NODE_PORT_KEY = (_concat(*_PORT), 8)
"""Type and length of a node port's key."""


def _service_key(layout: FamilyLayout) -> tuple[int, int]:
    return _concat(layout.address_type, *_PORT), layout.address_length + 8


def node_port_ips_spec(layout: FamilyLayout) -> SetSpec:
    """The set that exists only while node ports are restricted to some addresses."""
    return SetSpec(layout.address_type, layout.address_length)


def _pool_spec(layout: FamilyLayout, name: str) -> SetSpec:
    address, length = layout.address_type, layout.address_length
    index = (nft.TYPE_INET_PROTOCOL, nft.TYPE_INET_SERVICE, _INDEX_TYPE)
    data_type = _concat(address, nft.TYPE_INET_SERVICE)
    if name in (names.SERVICE_POOLS, names.LOCAL_POOLS):
        key_type, key_length = _concat(address, *index), length + 12
    else:
        key_type, key_length = _concat(*index), 12
    return SetSpec(
        key_type,
        key_length,
        nft.NFT_SET_MAP,
        data_type,
        length + 4,
        typeof=typeof_userdata(key_type, data_type),
    )


def _node_port_addresses(layout: FamilyLayout, node: NodeFacts) -> dict[Item, Value]:
    """The addresses that accept node ports. Loopback is never among them in this mode."""
    accepted = (a for a in node.node_port_addresses if not is_loopback(a))
    items: dict[Item, Value] = {SetItem(names.NODE_PORT_IPS): node_port_ips_spec(layout)}
    return items | {ElementItem(names.NODE_PORT_IPS, pack_address(a)): Element() for a in accepted}


# ---- chains ----------------------------------------------------------------------------------


def _base_chain(name: str) -> Chain:
    hook = names.BASE_CHAINS[name]
    if name in _PLAIN_JUMPS:
        return Chain(ChainKind.BASE, (rule(rules.jump(_PLAIN_JUMPS[name])),), hook)
    targets = _GUARDED_JUMPS[name]
    guarded = tuple(rule(rules.state_new(), rules.jump(target)) for target in targets)
    return Chain(ChainKind.BASE, guarded, hook)


def _scaffold_rules(
    layout: FamilyLayout, node: NodeFacts, options: Options
) -> Iterator[tuple[str, Iterable[Rule]]]:
    mark = options.masquerade_mark
    counting = counting_rules(layout, Verdict.REJECT) if options.counts_refused else ()
    by_service = rules.service_key(layout)
    no_endpoints = rule(by_service, rules.verdict_map(names.NO_ENDPOINT_SERVICES))
    firewall = rule(by_service, rules.verdict_map(names.FIREWALL_IPS))
    yield names.MASQUERADING, _masquerading(layout, mark)
    yield names.CLUSTER_IPS_CHECK, _cluster_ips_check(layout, node)
    yield names.REJECT_CHAIN, (*counting, rule(rules.reject(layout)))
    yield names.SERVICE_ENDPOINTS_CHECK, (no_endpoints,)
    yield names.NODE_PORT_ENDPOINTS_CHECK, (_node_port_check(layout, node),)
    yield names.FIREWALL_CHECK, (firewall,)
    yield names.SERVICES, _services(layout, node, mark)


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
            rules.verdict(nft.DROP),
            comment="Drop traffic to unallocated ClusterIPs",
        )


def _to_node_port_address(layout: FamilyLayout, node: NodeFacts) -> Piece:
    """Is the packet for an address that serves node ports?"""
    if node.node_ports_match_all:
        return rules.not_loopback(layout)
    return rules.destination(layout) + rules.in_set(names.NODE_PORT_IPS)


def _node_port_check(layout: FamilyLayout, node: NodeFacts) -> Rule:
    return rule(
        _to_node_port_address(layout, node),
        rules.node_port_key(),
        rules.verdict_map(names.NO_ENDPOINT_NODE_PORTS),
    )


def _services(layout: FamilyLayout, node: NodeFacts, mark: int) -> Iterator[Rule]:
    to_cluster_ip = rules.destination(layout) + rules.in_set(names.CLUSTER_IPS)
    if node.masquerade_all:
        comment = "masquerade all clusterIP traffic"
        yield rule(to_cluster_ip, rules.mark_or(mark), comment=comment)
    elif node.detector.is_implemented:
        outside = rules.from_local_pod(layout, node.detector, negated=True)
        comment = "masquerade clusterIP traffic from outside cluster"
        yield rule(to_cluster_ip, outside, rules.mark_or(mark), comment=comment)
    yield rule(rules.service_key(layout), rules.verdict_map(names.SERVICE_IPS))
    to_this_node = rules.is_destination_local() if node.node_ports_match_all else ()
    yield rule(
        to_this_node,
        _to_node_port_address(layout, node),
        rules.node_port_key(),
        rules.verdict_map(names.SERVICE_NODE_PORTS),
    )
