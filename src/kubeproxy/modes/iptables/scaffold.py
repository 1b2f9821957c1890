"""What exists with no service at all: fixed chains, their rules, and the jumps that lead to them.

The tables below follow upstream row by row. Their order is the order of insertion, and since
every jump goes to the top, the last row of a chain ends up first. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from kubeproxy.facts.address import is_loopback
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.items import Fragment, Item, Value
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.iptables.rules.recognise import group, identify
from kubeproxy.modes.iptables.rules.respell import respell
from kubeproxy.modes.netfilter.items import (
    KNOWN,
    Chain,
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
"""The kubelet creates the same two jumps and the same chain. Neither program removes them."""

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
    mode="iptables",
    rival="ipvs",
)

LAST_SECTION = Section("nat", names.SERVICES, (), names.LAST)
"""The rules that lead to node ports, behind those of all services."""


def scaffold(node: NodeFacts, options: Options) -> Fragment:
    """The items of the scaffold, in the order upstream writes them."""
    items: dict[Item, Value] = {}
    for chain in FILTER_SHARED:
        items[SharedChain("filter", chain)] = KNOWN
    items[Chain("filter", names.FORWARD)] = rules(names.FORWARD, _forward(options))
    items[GuestChain("filter", names.KUBELET_FIREWALL)] = _kubelet_firewall(node, options)
    for chain in NAT_SHARED:
        items[SharedChain("nat", chain)] = KNOWN
    items[Chain("nat", names.POSTROUTING)] = rules(names.POSTROUTING, _postrouting(options))
    items[Chain("nat", names.MARK_MASQ)] = rules(
        names.MARK_MASQ, [f"-j MARK --or-mark {options.mark}"]
    )
    last = list(_to_node_ports(node, options))
    if last:
        items[LAST_SECTION] = rules(names.SERVICES, last)
    items.update(SCOPE.jumps)
    return items


def _kubelet_firewall(node: NodeFacts, options: Options) -> GuestRules:
    """Drop martians: packets from elsewhere to the loopback network, which route_localnet admits.

    The kubelet writes the same rule, unless its configuration forbids it.
    """
    if not options.serves_localhost(node):
        return GuestRules()
    rule = (
        '-m comment --comment "block incoming localnet connections" '
        "-d 127.0.0.0/8 ! -s 127.0.0.0/8 "
        "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
    )
    return GuestRules(rules(names.KUBELET_FIREWALL, [rule]).text)


def _forward(options: Options) -> Iterator[str]:
    features, mark = options.features, options.mark
    # Conntrack calls packets outside the window invalid and does not translate them back. A client
    # that gets one from an address it never spoke to resets the connection (kubernetes 74839).
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


def _postrouting(options: Options) -> Iterator[str]:
    mark = options.mark
    fully = " --random-fully" if options.features.has_random_fully else ""
    yield f"-m mark ! --mark {mark}/{mark} -j RETURN"
    # The mark must not survive into another traversal, for instance through a tunnel.
    yield f"-j MARK --xor-mark {mark}"
    yield f'-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE{fully}'


def _to_node_ports(node: NodeFacts, options: Options) -> Iterator[str]:
    comment = f"-m comment --comment {names.NODE_PORTS_LAST}"
    localhost = options.serves_localhost(node)
    if node.node_ports_match_all:
        but = "" if localhost else f"! -d {node.family.loopback_cidr} "
        yield f"{comment} -m addrtype --dst-type LOCAL {but}-j {names.NODE_PORTS}"
        return
    for address in sorted(node.node_port_addresses, key=ip_address):
        if localhost or not is_loopback(address):
            yield f"{comment} -d {address} -j {names.NODE_PORTS}"
