"""The iptables rules that match sets: a constant number of rules for any number of services. Pure.

A rule that matches a set exists only while the set has an entry. Every service port that adds an
entry therefore claims the rule as well: it comes with the first of them and goes with the last, and
the ledger's claims are all the counting there is. The order inside a chain is the order of ranks,
as upstream writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import LocalDetector
from kubeproxy.modes.ipvs.names import (
    FILTER,
    IPVS_OUT_FILTER,
    LOAD_BALANCER,
    MARK_MASQ,
    NAT,
    NODE_PORT,
    POSTROUTING,
    PROXY_FIREWALL,
    SERVICES,
    SET_COMMENTS,
    SOURCE_RANGES,
    SetName,
    set_name,
)
from kubeproxy.modes.netfilter.items import Rules, Section, rules
from kubeproxy.modes.netfilter.rules.matches import from_local_pods

SectionRules: TypeAlias = Mapping[Section, Rules]


class _Place(Struct, frozen=True, gc=False):
    """Where one rule that matches a set stands, and what it does: without a target, it counts."""

    table: str
    chain: str
    rank: int
    protocol: str
    direction: str
    target: str = ""


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
    SetName.NO_ENDPOINTS: _Place(NAT, SERVICES, 5, "", "dst,dst"),
    SetName.SOURCE_REFUSED: _Place(FILTER, SOURCE_RANGES, 25, "", "dst,dst"),
}
"""Sets that one rule each matches. Those of cluster and external IPs follow below."""

_EXTERNAL_ACCEPTS = (
    "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT",
    "-m addrtype --dst-type LOCAL -j ACCEPT",
)


@lru_cache(maxsize=8)
def set_rules(
    family: Family, detector: LocalDetector, *, masquerade_all: bool
) -> Mapping[SetName, SectionRules]:
    """For each set the rules that exist while it has an entry."""
    found: dict[SetName, dict[Section, Rules]] = {name: {} for name in SetName}
    for name, section, specs in _sections(family, detector, masquerade_all):
        found[name][section] = rules(section.chain, specs)
    return found


def _sections(
    family: Family, detector: LocalDetector, masquerade_all: bool
) -> Iterator[tuple[SetName, Section, tuple[str, ...]]]:
    for name, place in _PLACES.items():
        protocol = f"-p {place.protocol} " if place.protocol else ""
        target = f" -j {place.target}" if place.target else ""
        rule = f"{protocol}{match_set(family, name, place.direction)}{target}"
        yield name, Section(place.table, place.chain, (), place.rank), (rule,)
    to_cluster_ip = _cluster_ip_rule(family, detector, masquerade_all)
    yield SetName.CLUSTER_IP, Section(NAT, SERVICES, (), 30), (to_cluster_ip,)
    external = match_set(family, SetName.EXTERNAL_IP, "dst,dst")
    external_rules = (f"{external} -j {MARK_MASQ}", *(f"{external} {a}" for a in _EXTERNAL_ACCEPTS))
    yield SetName.EXTERNAL_IP, Section(NAT, SERVICES, (), 40), external_rules
    local = match_set(family, SetName.EXTERNAL_IP_LOCAL, "dst,dst")
    local_rules = tuple(f"{local} {accept}" for accept in _EXTERNAL_ACCEPTS)
    yield SetName.EXTERNAL_IP_LOCAL, Section(NAT, SERVICES, (), 50), local_rules
    for name, rank, refused in (
        (SetName.DENIED_SOURCES, 1, _denied(family)),
        (SetName.GUARDED, 3, _not_allowed(family)),
    ):
        yield name, Section(FILTER, PROXY_FIREWALL, (), rank + 1), (f"{refused} -j DROP",)
        counted = f"{refused} {match_set_bare(family, SetName.GUARD_REFUSED, 'dst,dst')}"
        yield SetName.GUARD_REFUSED, Section(FILTER, PROXY_FIREWALL, (), rank), (counted,)
    for rank, name in ((70, SetName.CLUSTER_IP), (80, SetName.LOAD_BALANCER)):
        accept = f"{match_set_bare(family, name, 'dst,dst')} -j ACCEPT"
        yield name, Section(NAT, SERVICES, (), rank), (accept,)


_NEW = "-m conntrack --ctstate NEW"
"""Lists of sources are about new connections; open ones go on."""


def _denied(family: Family) -> str:
    """Matches packets from sources that may not connect."""
    return f"{_NEW} {match_set(family, SetName.DENIED_SOURCES, 'dst,dst,src')}"


def _not_allowed(family: Family) -> str:
    """Matches packets to services of which the source is not among those that may connect."""
    allowed = set_name(family, SetName.ALLOWED_SOURCES)
    guarded = match_set(family, SetName.GUARDED, "dst,dst")
    return f"{_NEW} {guarded} -m set ! --match-set {allowed} dst,dst,src"


def match_set_bare(family: Family, name: SetName, direction: str) -> str:
    """The match of a set, for the rules that upstream writes without a comment."""
    return f"-m set --match-set {set_name(family, name)} {direction}"


def match_set(family: Family, name: SetName, direction: str) -> str:
    """The match of a set, with the comment that explains the set."""
    comment = f'-m comment --comment "{SET_COMMENTS[name]}"'
    return f"{comment} {match_set_bare(family, name, direction)}"


def _cluster_ip_rule(family: Family, detector: LocalDetector, masquerade_all: bool) -> str:
    """The rule that decides what is masqueraded on its way to a cluster IP."""
    direction, condition = "dst,dst", ""
    if not masquerade_all:
        if detector.is_implemented:
            condition = f" ! {from_local_pods(detector)}"
        else:
            # The node picks the service address itself as source; that must not leave it.
            direction = "src,dst"
    return f"{match_set(family, SetName.CLUSTER_IP, direction)}{condition} -j {MARK_MASQ}"


def out_filter(family: Family, address: str, protocol: int, port: int) -> SectionRules:
    """The rule that keeps the node itself from a load balancer address whose ranges exclude it.

    The node would connect with the address itself as source, which the source ranges never match.
    """
    section = Section(FILTER, IPVS_OUT_FILTER, (address, str(protocol), f"{port:05}"))
    # Spelled as iptables-save prints it: `rules.recognise` reads the numbers back.
    rule = (
        f"-s {address}/{family.bits} -m ipvs --vproto {protocol} --vaddr {address} "
        f"--vport {port} -j DROP"
    )
    return {section: rules(IPVS_OUT_FILTER, (rule,))}
