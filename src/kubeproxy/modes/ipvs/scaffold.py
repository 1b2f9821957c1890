"""What exists with no service at all: the link, empty sets, fixed rules and their jumps. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import SERVICE_LINK, LocalDetector, NodeFacts
from kubeproxy.modes.ipvs.items import PRESENT, Fragment, IpSet, Item, ServiceLink, Value
from kubeproxy.modes.ipvs.names import (
    COUNTING_SETS,
    FILTER,
    FORWARD,
    GUARD_SETS,
    IPVS_FILTER,
    IPVS_OUT_FILTER,
    LOAD_BALANCER,
    MARK_MASQ,
    NAT,
    NODE_PORT,
    OWN_CHAINS,
    POSTROUTING,
    PROXY_FIREWALL,
    SERVICES,
    SHARED_CHAINS,
    SOURCE_RANGES,
    SetName,
    set_head,
    set_name,
)
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.rules.recognise import recogniser
from kubeproxy.modes.ipvs.rules.sets import (
    SectionRules,
    match_set,
    match_set_bare,
    set_rules,
)
from kubeproxy.modes.netfilter.items import (
    KNOWN,
    Chain,
    Jump,
    Position,
    Scope,
    Section,
    SharedChain,
    rules,
)
from kubeproxy.modes.netfilter.names import OLD_CHAINS, PORTAL_CHAINS

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
"""In upstream's order. Each is put in front of what is there, so the last row comes first."""

JUMPS = tuple(
    (Jump(table, chain, f'-m comment --comment "{comment}" -j {target}'), Position.FIRST)
    for table, chain, target, comment in _JUMPS
)


def scaffold(node: NodeFacts, options: Options) -> Fragment:
    """The items that exist as long as the mode runs."""
    family = node.family
    items: dict[Item, Value] = {ServiceLink(SERVICE_LINK): PRESENT}
    left_out = GUARD_SETS if options.counts_refused else (*GUARD_SETS, *COUNTING_SETS)
    for name in SetName:
        if name not in left_out:
            items[IpSet(set_name(family, name))] = set_head(family, name)
    items |= dict(JUMPS)
    for table, names in SHARED_CHAINS.items():
        items |= {SharedChain(table, name): KNOWN for name in names}
    items.update(_fixed_sections(family, options).items())
    for table, chain, specs in _own_chains(family, options):
        items[Chain(table, chain)] = rules(chain, specs)
    return items


def _fixed_sections(family: Family, options: Options) -> SectionRules:
    """Rules between those of services, in chains that both share."""
    mark = options.mark
    fully = " --random-fully" if options.has_random_fully else ""
    return {
        section: rules(section.chain, specs)
        for section, specs in (
            (Section(NAT, SERVICES, (), 10), (f"-s {family.loopback_cidr} -j RETURN",)),
            (Section(NAT, SERVICES, (), 60), (f"-m addrtype --dst-type LOCAL -j {NODE_PORT}",)),
            (Section(NAT, LOAD_BALANCER, (), 20), (f"-j {MARK_MASQ}",)),
            (
                Section(NAT, POSTROUTING, (), 20),
                (
                    f"-m mark ! --mark {mark}/{mark} -j RETURN",
                    # The mark must not survive into another traversal, such as through a tunnel.
                    f"-j MARK --xor-mark {mark}",
                    '-m comment --comment "kubernetes service traffic requiring SNAT" '
                    f"-j MASQUERADE{fully}",
                ),
            ),
            (Section(FILTER, SOURCE_RANGES, (), 30), ("-j DROP",)),
        )
    }


def _own_chains(family: Family, options: Options) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Table, chain and rules of the chains in which services have no rules."""
    mark = options.mark
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
    health = match_set(family, SetName.HEALTH_CHECK_NODE_PORT, "dst")
    yield FILTER, NODE_PORT, (f"{health} -j ACCEPT",)
    yield FILTER, IPVS_FILTER, tuple(_access_filter(family, options))


def _access_filter(family: Family, options: Options) -> Iterator[str]:
    """What may be reached on a service address: its service ports, not the host's own ports."""
    for name in (
        SetName.LOAD_BALANCER,
        SetName.CLUSTER_IP,
        SetName.EXTERNAL_IP,
        SetName.EXTERNAL_IP_LOCAL,
    ):
        yield f"{match_set_bare(family, name, 'dst,dst')} -j RETURN"
    yield f"{match_set_bare(family, SetName.HEALTH_CHECK_NODE_PORT, 'dst')} -j RETURN"
    if not options.host_ports_on_cluster_ips:
        addresses = match_set_bare(family, SetName.IPVS_IPS, "dst")
        yield f"-m conntrack --ctstate NEW {addresses} -j REJECT"


def scope(family: Family) -> Scope:
    """What of iptables is this mode's, and how its rules are recognised."""
    # Only the sets and targets count, which are the same in every configuration.
    services = set_rules(family, LocalDetector(), masquerade_all=False)
    return Scope(
        tables=(NAT, FILTER),
        chains=OWN_CHAINS,
        shared_chains=SHARED_CHAINS,
        prefixes={},
        jumps=JUMPS,
        identify=recogniser((*services.values(), _fixed_sections(family, Options()))),
        mode="ipvs",
        rival="iptables",
        # Our nat chain accepts what is for a service address, which ends the table for a packet.
        # That must not happen before the address is bound, which comes last. So as long as the
        # rules of another mode stand, they decide.
        follows=PORTAL_CHAINS | OLD_CHAINS[NAT],
    )
