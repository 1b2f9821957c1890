"""The mode's iptables rules: a constant number, which match sets that hold the services. Pure.

A rule that matches a set exists only while the set has an entry. Every service port that adds an
entry therefore claims the rule as well: it comes with the first of them and goes with the last,
without anybody counting. Order inside a chain is the order of ranks, as upstream writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import DetectorKind, LocalDetector
from kubeproxy.modes.base import Fragment, Item, Value
from kubeproxy.modes.ipvs.names import SET_COMMENTS, SetName, set_name
from kubeproxy.modes.netfilter.items import (
    Chain,
    ChainState,
    Jump,
    Order,
    Position,
    Scope,
    Section,
    SharedChain,
    rules,
)

NAT = "nat"
FILTER = "filter"

SERVICES = "KUBE-SERVICES"
POSTROUTING = "KUBE-POSTROUTING"
NODE_PORT = "KUBE-NODE-PORT"
LOAD_BALANCER = "KUBE-LOAD-BALANCER"
MARK_MASQ = "KUBE-MARK-MASQ"
FORWARD = "KUBE-FORWARD"
PROXY_FIREWALL = "KUBE-PROXY-FIREWALL"
SOURCE_RANGES = "KUBE-SOURCE-RANGES-FIREWALL"
IPVS_FILTER = "KUBE-IPVS-FILTER"
IPVS_OUT_FILTER = "KUBE-IPVS-OUT-FILTER"

OWN_CHAINS = {NAT: frozenset({MARK_MASQ}), FILTER: frozenset({FORWARD, NODE_PORT, IPVS_FILTER})}
SHARED_CHAINS = {
    NAT: frozenset({SERVICES, POSTROUTING, NODE_PORT, LOAD_BALANCER}),
    FILTER: frozenset({PROXY_FIREWALL, SOURCE_RANGES, IPVS_OUT_FILTER}),
}

_JUMPS = (
    (NAT, "OUTPUT", SERVICES, "kubernetes service portals"),
    (NAT, "PREROUTING", SERVICES, "kubernetes service portals"),
    (NAT, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
    (FILTER, "FORWARD", FORWARD, "kubernetes forwarding rules"),
    (FILTER, "INPUT", NODE_PORT, "kubernetes health check rules"),
    (FILTER, "INPUT", PROXY_FIREWALL, "kube-proxy firewall rules"),
    (FILTER, "FORWARD", PROXY_FIREWALL, "kube-proxy firewall rules"),
    (FILTER, "INPUT", IPVS_FILTER, "kubernetes ipvs access filter"),
    (FILTER, "OUTPUT", IPVS_OUT_FILTER, "kubernetes ipvs access filter"),
)
"""Each is put in front of what is there, in this order."""

JUMPS = tuple(
    (Jump(table, chain, f'-m comment --comment "{comment}" -j {target}'), Position.FIRST)
    for table, chain, target, comment in _JUMPS
)


class RuleSettings(Struct, frozen=True, gc=False):
    """What the rules depend on."""

    family: Family
    detector: LocalDetector = LocalDetector()
    masquerade_all: bool = False
    mark: str = "0x00004000"
    has_random_fully: bool = True
    allows_host_ports: bool = False


class _Place(Struct, frozen=True, gc=False):
    """One rule driven by a set, in the order of ranks inside its chain."""

    table: str
    chain: str
    rank: int
    protocol: str
    direction: str
    target: str


_PLACES: Mapping[SetName, _Place] = {
    SetName.LOOP_BACK: _Place(NAT, POSTROUTING, 10, "", "dst,dst,src", "MASQUERADE"),
    SetName.LOAD_BALANCER: _Place(NAT, SERVICES, 20, "", "dst,dst", LOAD_BALANCER),
    SetName.LOAD_BALANCER_LOCAL: _Place(NAT, LOAD_BALANCER, 10, "", "dst,dst", "RETURN"),
    SetName.NODE_PORT_LOCAL_TCP: _Place(NAT, NODE_PORT, 10, "tcp", "dst", "RETURN"),
    SetName.NODE_PORT_TCP: _Place(NAT, NODE_PORT, 20, "tcp", "dst", MARK_MASQ),
    SetName.NODE_PORT_LOCAL_UDP: _Place(NAT, NODE_PORT, 30, "udp", "dst", "RETURN"),
    SetName.NODE_PORT_UDP: _Place(NAT, NODE_PORT, 40, "udp", "dst", MARK_MASQ),
    SetName.NODE_PORT_LOCAL_SCTP: _Place(NAT, NODE_PORT, 50, "sctp", "dst,dst", "RETURN"),
    SetName.NODE_PORT_SCTP: _Place(NAT, NODE_PORT, 60, "sctp", "dst,dst", MARK_MASQ),
    SetName.LOAD_BALANCER_FW: _Place(FILTER, PROXY_FIREWALL, 10, "", "dst,dst", SOURCE_RANGES),
    SetName.LOAD_BALANCER_SOURCE_CIDR: _Place(
        FILTER, SOURCE_RANGES, 10, "", "dst,dst,src", "RETURN"
    ),
    SetName.LOAD_BALANCER_SOURCE_IP: _Place(FILTER, SOURCE_RANGES, 20, "", "dst,dst,src", "RETURN"),
}

_EXTERNAL_ACCEPTS = (
    "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT",
    "-m addrtype --dst-type LOCAL -j ACCEPT",
)

SectionSpecs: TypeAlias = Iterator[tuple[Section, tuple[str, ...]]]


@lru_cache(maxsize=8)
def set_fragments(settings: RuleSettings) -> Mapping[SetName, Fragment]:
    """For each set the rules that exist while it has an entry."""
    found: dict[SetName, Fragment] = {name: {} for name in SetName}
    for name, section, specs in _set_sections(settings):
        found[name] = {**found[name], section: rules(section.chain, specs)}
    return found


def _set_sections(settings: RuleSettings) -> Iterator[tuple[SetName, Section, tuple[str, ...]]]:
    for name, place in _PLACES.items():
        section = Section(place.table, place.chain, (), place.rank)
        yield name, section, (_driven_rule(settings.family, name, place),)
    yield SetName.CLUSTER_IP, Section(NAT, SERVICES, (), 30), (_cluster_ip_rule(settings),)
    external = _match(settings.family, SetName.EXTERNAL_IP, "dst,dst")
    external_rules = (f"{external} -j {MARK_MASQ}", *(f"{external} {a}" for a in _EXTERNAL_ACCEPTS))
    yield SetName.EXTERNAL_IP, Section(NAT, SERVICES, (), 40), external_rules
    local = _match(settings.family, SetName.EXTERNAL_IP_LOCAL, "dst,dst")
    local_rules = tuple(f"{local} {accept}" for accept in _EXTERNAL_ACCEPTS)
    yield SetName.EXTERNAL_IP_LOCAL, Section(NAT, SERVICES, (), 50), local_rules
    for rank, name in ((70, SetName.CLUSTER_IP), (80, SetName.LOAD_BALANCER)):
        accept = f"{_bare_match(settings.family, name, 'dst,dst')} -j ACCEPT"
        yield name, Section(NAT, SERVICES, (), rank), (accept,)


def _bare_match(family: Family, name: SetName, direction: str) -> str:
    return f"-m set --match-set {set_name(family, name)} {direction}"


def _match(family: Family, name: SetName, direction: str) -> str:
    return f'-m comment --comment "{SET_COMMENTS[name]}" {_bare_match(family, name, direction)}'


def _driven_rule(family: Family, name: SetName, place: _Place) -> str:
    protocol = f"-p {place.protocol} " if place.protocol else ""
    return f"{protocol}{_match(family, name, place.direction)} -j {place.target}"


def _cluster_ip_rule(settings: RuleSettings) -> str:
    """Who is masqueraded on the way to a cluster IP."""
    direction = "dst,dst"
    condition = ""
    if not settings.masquerade_all:
        if settings.detector.is_implemented:
            condition = f" {_not_local(settings.detector)}"
        else:
            # The node picks the service address itself as source; that must not leave it.
            direction = "src,dst"
    match = _match(settings.family, SetName.CLUSTER_IP, direction)
    return f"{match}{condition} -j {MARK_MASQ}"


def _not_local(detector: LocalDetector) -> str:
    if detector.kind is DetectorKind.CIDR:
        return f"! -s {detector.value}"
    if detector.kind is DetectorKind.BRIDGE:
        return f"! -i {detector.value}"
    return f"! -i {detector.value}+"


def scaffold_rules(settings: RuleSettings) -> Fragment:
    """Chains, jumps and the rules that exist with no service at all."""
    items: dict[Item, Value] = dict(JUMPS)
    for table, names in SHARED_CHAINS.items():
        items |= {SharedChain(table, name): ChainState.KNOWN for name in names}
    for section, specs in _fixed_sections(settings):
        items[section] = rules(section.chain, specs)
    for table, chain, specs in _own_chains(settings):
        items[Chain(table, chain)] = rules(chain, specs)
    return items


def _fixed_sections(settings: RuleSettings) -> SectionSpecs:
    loopback = "127.0.0.0/8" if settings.family is Family.IPV4 else "::1/128"
    mark = settings.mark
    fully = " --random-fully" if settings.has_random_fully else ""
    snat = '-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE'
    yield Section(NAT, SERVICES, (), 10), (f"-s {loopback} -j RETURN",)
    yield Section(NAT, SERVICES, (), 60), (f"-m addrtype --dst-type LOCAL -j {NODE_PORT}",)
    yield Section(NAT, LOAD_BALANCER, (), 20), (f"-j {MARK_MASQ}",)
    yield (
        Section(NAT, POSTROUTING, (), 20),
        (
            f"-m mark ! --mark {mark}/{mark} -j RETURN",
            f"-j MARK --xor-mark {mark}",
            f"{snat}{fully}",
        ),
    )
    yield Section(FILTER, SOURCE_RANGES, (), 30), ("-j DROP",)


def _own_chains(settings: RuleSettings) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    mark, family = settings.mark, settings.family
    yield NAT, MARK_MASQ, (f"-j MARK --or-mark {mark}",)
    yield (
        FILTER,
        FORWARD,
        (
            '-m comment --comment "kubernetes forwarding rules" '
            f"-m mark --mark {mark}/{mark} -j ACCEPT",
            '-m comment --comment "kubernetes forwarding conntrack rule" '
            "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        ),
    )
    health = _match(family, SetName.HEALTH_CHECK_NODE_PORT, "dst")
    yield FILTER, NODE_PORT, (f"{health} -j ACCEPT",)
    yield FILTER, IPVS_FILTER, tuple(_access_filter(settings))


def _access_filter(settings: RuleSettings) -> Iterator[str]:
    """What may be reached on a service address: its service ports, not the host's own ports."""
    family = settings.family
    for name in (
        SetName.LOAD_BALANCER,
        SetName.CLUSTER_IP,
        SetName.EXTERNAL_IP,
        SetName.EXTERNAL_IP_LOCAL,
    ):
        yield f"{_bare_match(family, name, 'dst,dst')} -j RETURN"
    yield f"{_bare_match(family, SetName.HEALTH_CHECK_NODE_PORT, 'dst')} -j RETURN"
    if not settings.allows_host_ports:
        addresses = _bare_match(family, SetName.IPVS_IPS, "dst")
        yield f"-m conntrack --ctstate NEW {addresses} -j REJECT"


def out_filter(family: Family, address: str, protocol: int, port: int) -> Fragment:
    """Keeps the node itself from a load balancer address whose ranges exclude it.

    The node would connect with the address itself as source, which the source ranges never match.
    Spelled the way iptables-save prints it.
    """
    section = Section(FILTER, IPVS_OUT_FILTER, (address, str(protocol), f"{port:05}"))
    spec = (
        f"-s {address}/{family.bits} -m ipvs --vproto {protocol} --vaddr {address} "
        f"--vport {port} -j DROP"
    )
    return {section: rules(IPVS_OUT_FILTER, (spec,))}


_SET = re.compile(r"--match-set (\S+) ")
_TARGET = re.compile(r"-j (\S+)")
_OUT_FILTER = re.compile(r"--vproto (\d+) --vaddr (\S+) --vport (\d+) ")


def scope(family: Family) -> Scope:
    """What of iptables is this mode's, and how its rules are recognised."""
    ranks = _known_ranks(family)

    def identify(table: str, chain: str, line: str) -> Order | None:
        if chain == IPVS_OUT_FILTER:
            found = _OUT_FILTER.search(line)
            return (0, (found[2], found[1], f"{int(found[3]):05}")) if found else None
        return ranks.get((table, chain, *_signature(line)))

    return Scope(
        tables=(NAT, FILTER),
        chains=OWN_CHAINS,
        shared_chains=SHARED_CHAINS,
        prefixes={},
        jumps=JUMPS,
        identify=identify,
    )


def _signature(line: str) -> tuple[str, str]:
    """The set a rule matches and where it leads: enough to know which of ours it is."""
    matched, target = _SET.search(line), _TARGET.search(line)
    return (matched[1] if matched else "", target[1] if target else "")


def _known_ranks(family: Family) -> Mapping[tuple[str, str, str, str], Order]:
    settings = RuleSettings(family)
    sections = [(section, specs) for _, section, specs in _set_sections(settings)]
    return {
        (section.table, section.chain, *_signature(spec)): section.order
        for section, specs in (*sections, *_fixed_sections(settings))
        for spec in specs
    }
