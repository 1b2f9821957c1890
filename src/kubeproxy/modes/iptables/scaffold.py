"""What exists with no service at all: fixed chains, their rules, and the jumps that lead to them.

The tables below follow upstream row by row; their order is the order of insertion, and since
every jump goes to the top, the last row of a chain ends up first.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from kubeproxy.facts.address import is_loopback
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import Item, Value
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.options import Settings
from kubeproxy.modes.iptables.rules.recognise import group, identify
from kubeproxy.modes.iptables.rules.respell import respell
from kubeproxy.modes.netfilter.items import (
    Chain,
    ChainState,
    GuestChain,
    GuestRules,
    Jump,
    Position,
    Scope,
    Section,
    SharedChain,
    rules,
)

_NEW = "-m conntrack --ctstate NEW "
_VISIBLE = "kubernetes externally-visible service portals"

_JUMPS = (
    ("filter", "INPUT", _NEW, _VISIBLE, names.EXTERNAL_SERVICES),
    ("filter", "FORWARD", _NEW, _VISIBLE, names.EXTERNAL_SERVICES),
    ("filter", "INPUT", "", "kubernetes health check service ports", names.NODE_PORTS),
    ("filter", "FORWARD", _NEW, "kubernetes service portals", names.SERVICES),
    ("filter", "OUTPUT", _NEW, "kubernetes service portals", names.SERVICES),
    ("filter", "FORWARD", "", "kubernetes forwarding rules", names.FORWARD),
    ("filter", "INPUT", _NEW, "kubernetes load balancer firewall", names.PROXY_FIREWALL),
    ("filter", "OUTPUT", _NEW, "kubernetes load balancer firewall", names.PROXY_FIREWALL),
    ("filter", "FORWARD", _NEW, "kubernetes load balancer firewall", names.PROXY_FIREWALL),
    ("nat", "OUTPUT", "", "kubernetes service portals", names.SERVICES),
    ("nat", "PREROUTING", "", "kubernetes service portals", names.SERVICES),
    ("nat", "POSTROUTING", "", "kubernetes postrouting rules", names.POSTROUTING),
)  # fmt: skip

OWN_JUMPS = tuple(
    Jump(table, chain, f'{match}-m comment --comment "{comment}" -j {target}')
    for table, chain, match, comment, target in _JUMPS
)
KUBELET_JUMPS = tuple(
    Jump("filter", chain, f"-j {names.KUBELET_FIREWALL}") for chain in ("INPUT", "OUTPUT")
)
"""The kubelet makes the same two jumps and the same chain; neither side ever removes them."""

FILTER_SHARED = (
    names.SERVICES,
    names.EXTERNAL_SERVICES,
    names.NODE_PORTS,
    names.PROXY_FIREWALL,
)
NAT_SHARED = (names.SERVICES, names.NODE_PORTS)

SCOPE = Scope(
    tables=("filter", "nat"),
    chains={
        "filter": frozenset({names.FORWARD}),
        "nat": frozenset({names.POSTROUTING, names.MARK_MASQ}),
    },
    shared_chains={"filter": frozenset(FILTER_SHARED), "nat": frozenset(NAT_SHARED)},
    guest_chains={"filter": frozenset({names.KUBELET_FIREWALL})},
    prefixes={"nat": names.SERVICE_CHAIN_PREFIXES},
    jumps=tuple((jump, Position.FIRST) for jump in (*OWN_JUMPS, *KUBELET_JUMPS)),
    identify=identify,
    group=group,
    respell=respell,
)

LAST = 1
"""Rank of the sections that stand behind those of all services."""


def scaffold_items(node: NodeFacts, settings: Settings) -> dict[Item, Value]:
    """The items of the scaffold, in the order upstream writes them."""
    items: dict[Item, Value] = {}
    for chain in FILTER_SHARED:
        items[SharedChain("filter", chain)] = ChainState.KNOWN
    items[Chain("filter", names.FORWARD)] = rules(names.FORWARD, _forward(settings))
    items[GuestChain("filter", names.KUBELET_FIREWALL)] = _kubelet_firewall(node, settings)
    for chain in NAT_SHARED:
        items[SharedChain("nat", chain)] = ChainState.KNOWN
    items[Chain("nat", names.POSTROUTING)] = rules(names.POSTROUTING, _postrouting(settings))
    items[Chain("nat", names.MARK_MASQ)] = rules(
        names.MARK_MASQ, [f"-j MARK --or-mark {settings.mark}"]
    )
    last = list(_to_node_ports(node, settings))
    if last:
        items[Section("nat", names.SERVICES, (), LAST)] = rules(names.SERVICES, last)
    items |= dict(SCOPE.jumps)
    return items


def _kubelet_firewall(node: NodeFacts, settings: Settings) -> GuestRules:
    """Martians: packets from elsewhere to the loopback network, which route_localnet lets in."""
    if not settings.serves_localhost(node):
        return GuestRules()
    rule = (
        '-m comment --comment "block incoming localnet connections" '
        "-d 127.0.0.0/8 ! -s 127.0.0.0/8 "
        "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
    )
    return GuestRules(rules(names.KUBELET_FIREWALL, [rule]).text)


def _forward(settings: Settings) -> Iterator[str]:
    features, mark = settings.features, settings.mark
    if not features.is_tcp_liberal:
        counter = (
            f"-m nfacct --nfacct-name {names.INVALID_COUNTER} "
            if features.has_invalid_counter
            else ""
        )
        yield f"-m conntrack --ctstate INVALID {counter}-j DROP"
    yield (
        f'-m comment --comment "kubernetes forwarding rules" -m mark --mark {mark}/{mark} -j ACCEPT'
    )
    yield (
        '-m comment --comment "kubernetes forwarding conntrack rule" '
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    )


def _postrouting(settings: Settings) -> Iterator[str]:
    mark = settings.mark
    fully = " --random-fully" if settings.features.has_random_fully else ""
    yield f"-m mark ! --mark {mark}/{mark} -j RETURN"
    # The mark must not survive into another traversal, for instance through a tunnel.
    yield f"-j MARK --xor-mark {mark}"
    yield (f'-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE{fully}')


def _to_node_ports(node: NodeFacts, settings: Settings) -> Iterator[str]:
    comment = f"-m comment --comment {names.NODE_PORTS_LAST}"
    localhost = settings.serves_localhost(node)
    if node.node_ports_match_all:
        yield (
            f"{comment} -m addrtype --dst-type LOCAL {_not_loopback(settings.family, localhost)}"
            f"-j {names.NODE_PORTS}"
        )
        return
    for address in sorted(node.node_port_addresses, key=ip_address):
        if localhost or not is_loopback(address):
            yield f"{comment} -d {address} -j {names.NODE_PORTS}"


def _not_loopback(family: Family, localhost: bool) -> str:
    if family is Family.IPV6:
        return "! -d ::1/128 "
    return "" if localhost else "! -d 127.0.0.0/8 "
