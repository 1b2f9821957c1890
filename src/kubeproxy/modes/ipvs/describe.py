"""What the mode would install, for people: as ipvsadm, ipset and iptables would print it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from kubeproxy.facts.address import family_of, join_host_port
from kubeproxy.facts.ids import Protocol
from kubeproxy.kernel.ipset.wire import SetHead, SetType
from kubeproxy.kernel.ipvs.wire import (
    IP_VS_SVC_F_PERSISTENT,
    IP_VS_SVC_F_SCHED_FALLBACK,
    IP_VS_SVC_F_SCHED_MH_PORT,
)
from kubeproxy.modes.base import Owner, items_of
from kubeproxy.modes.ipvs.items import (
    BoundAddress,
    Fragment,
    IpSet,
    Item,
    Presence,
    ServerSpec,
    ServiceLink,
    SetEntry,
    Value,
    VirtualServer,
)
from kubeproxy.modes.ipvs.names import FILTER, NAT, OWN_CHAINS, SHARED_CHAINS
from kubeproxy.modes.ipvs.scaffold import JUMPS
from kubeproxy.modes.netfilter.items import Chain, Rules, Section, SharedChain
from kubeproxy.modes.netfilter.rules.text import chain_line

_SERVICE_OPTIONS = {Protocol.TCP: "-t", Protocol.UDP: "-u", Protocol.SCTP: "--sctp-service"}
_PROTOCOLS = {protocol.number: protocol for protocol in Protocol}


def describe(fragments: Mapping[Owner, Fragment]) -> str:
    """Four sections, each sorted. Without the scaffold's fragment its chains are not declared."""
    items: dict[Item, Value] = {}
    for owner in sorted(fragments, reverse=True):
        items |= fragments[owner]
    sections: tuple[tuple[str, Callable[[Fragment], Iterable[str]]], ...] = (
        ("virtual servers", server_lines),
        ("sets", set_lines),
        ("addresses", address_lines),
        ("iptables rules", rule_lines),
    )
    return "\n".join(
        f"# {title}\n" + "".join(f"{line}\n" for line in lines(items)) for title, lines in sections
    )


_SCHEDULER_FLAGS = ((IP_VS_SVC_F_SCHED_FALLBACK, "fallback"), (IP_VS_SVC_F_SCHED_MH_PORT, "port"))


def server_lines(items: Fragment) -> list[str]:
    """Virtual servers and real servers as `ipvsadm -Sn` prints them."""
    servers = items_of(items, VirtualServer, ServerSpec)
    return sorted(line for server, spec in servers.items() for line in _server_lines(server, spec))


def _server_lines(server: VirtualServer, spec: ServerSpec) -> Iterator[str]:
    option = _SERVICE_OPTIONS[_PROTOCOLS[server.protocol]]
    place = f"{option} {join_host_port(server.address, server.port)}"
    persistence = f" -p {spec.timeout_seconds}" if spec.flags & IP_VS_SVC_F_PERSISTENT else ""
    words = [word for flag, word in _SCHEDULER_FLAGS if spec.flags & flag]
    hashing = f" -b {','.join(f'{spec.scheduler}-{word}' for word in words)}" if words else ""
    yield f"-A {place} -s {spec.scheduler}{persistence}{hashing}"
    for real in spec.real_servers:
        yield f"-a {place} -r {join_host_port(*real.place)} -m -w {real.weight}"


def set_lines(items: Fragment) -> list[str]:
    """Sets and entries as `ipset save` prints them."""
    sets = [_set_line(item.name, head) for item, head in items_of(items, IpSet, SetHead).items()]
    entries = items_of(items, SetEntry, Presence)
    lines = (f"add {entry.set_name} {format_entry(entry)}" for entry in entries)
    return sorted(sets) + sorted(lines)


def _set_line(name: str, head: SetHead) -> str:
    if head.type == SetType.PORT:
        return f"create {name} {head.type} range 0-65535"
    family = "inet6" if head.is_ipv6 else "inet"
    counters = " counters" if head.counts else ""
    return f"create {name} {head.type} family {family} maxelem 65536{counters}"


def format_entry(entry: SetEntry) -> str:
    """An entry as ipset prints it, without its set."""
    parts = [entry.address] if entry.address else []
    if entry.port:
        protocol = f"{_PROTOCOLS[entry.protocol].lower_name}:" if entry.protocol else ""
        parts.append(f"{protocol}{entry.port}")
    if entry.second:
        is_network = entry.prefix_length not in (0, family_of(entry.second).bits)
        parts.append(f"{entry.second}/{entry.prefix_length}" if is_network else entry.second)
    return ",".join(parts)


def address_lines(items: Fragment) -> list[str]:
    """The link, and the addresses on it."""
    links = [f"link {link.name} type dummy" for link in items_of(items, ServiceLink, Presence)]
    bound = [item.address for item in items_of(items, BoundAddress, Presence)]
    return links + sorted(f"{address}/{family_of(address).bits}" for address in bound)


def rule_lines(items: Fragment) -> Iterator[str]:
    """Restore input: each table's chains with their rules in order, then the jumps."""
    for table in (NAT, FILTER):
        yield f"*{table}"
        names = sorted(OWN_CHAINS[table] | SHARED_CHAINS[table])
        declared = (
            n for n in names if not {Chain(table, n), SharedChain(table, n)}.isdisjoint(items)
        )
        yield from (chain_line(name).rstrip("\n") for name in declared)
        for name in names:
            yield from chain_rules(items, table, name)
        for jump, _ in JUMPS:
            if jump.table == table and jump in items:
                yield f"-I {jump.chain} {jump.rule}"
        yield "COMMIT"


def chain_rules(items: Fragment, table: str, chain: str) -> list[str]:
    """The rules of one chain in order."""
    whole = items_of(items, Chain, Rules).get(Chain(table, chain))
    if whole is not None:
        return whole.lines()
    sections = {
        section.order: held
        for section, held in items_of(items, Section, Rules).items()
        if (section.table, section.chain) == (table, chain)
    }
    return [line for order in sorted(sections) for line in sections[order].lines()]
