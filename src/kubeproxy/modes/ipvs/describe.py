"""What the mode would install, for people: as ipvsadm, ipset and iptables would print it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from kubeproxy.facts.address import join_host_port
from kubeproxy.modes.base import Fragment, Item, Owner, Value
from kubeproxy.modes.ipvs.items import (
    HASH_PORT,
    PERSISTENT,
    BoundAddress,
    IpSet,
    ServerSpec,
    ServiceLink,
    SetEntry,
    SetKind,
    SetSpec,
    VirtualServer,
)
from kubeproxy.modes.ipvs.rules.chains import FILTER, JUMPS, NAT, OWN_CHAINS, SHARED_CHAINS
from kubeproxy.modes.netfilter.items import Chain, Jump, Rules, Section
from kubeproxy.modes.netfilter.rules.text import chain_line

_OPTION = {6: "-t", 17: "-u", 132: "--sctp-service"}
_PROTOCOL = {6: "tcp", 17: "udp", 132: "sctp"}


def describe(fragments: Mapping[Owner, Fragment]) -> str:
    """Four sections, each sorted."""
    items: dict[Item, Value] = {}
    for owner in sorted(fragments, reverse=True):
        items |= fragments[owner]
    sections: tuple[tuple[str, Callable[[Mapping[Item, Value]], Iterable[str]]], ...] = (
        ("virtual servers", server_lines),
        ("sets", set_lines),
        ("addresses", address_lines),
        ("iptables rules", rule_lines),
    )
    return "\n".join(
        f"# {title}\n" + "".join(f"{line}\n" for line in lines(items)) for title, lines in sections
    )


def server_lines(items: Mapping[Item, Value]) -> list[str]:
    """As `ipvsadm -Sn` prints virtual servers and real servers."""
    lines: list[str] = []
    for server, spec in items.items():
        if isinstance(server, VirtualServer) and isinstance(spec, ServerSpec):
            lines += _server_lines(server, spec)
    return sorted(lines)


def _server_lines(server: VirtualServer, spec: ServerSpec) -> Iterator[str]:
    place = f"{_OPTION[server.protocol]} {join_host_port(server.address, server.port)}"
    persistence = f" -p {spec.timeout_seconds}" if spec.flags & PERSISTENT else ""
    hashing = " -b mh-port" if spec.flags & HASH_PORT else ""
    yield f"-A {place} -s {spec.scheduler}{persistence}{hashing}"
    for real in spec.destinations:
        where = join_host_port(real.address, real.port)
        yield f"-a {place} -r {where} -m -w {real.weight}"


def set_lines(items: Mapping[Item, Value]) -> list[str]:
    """As `ipset save` prints sets and entries."""
    sets = [
        _set_line(item.name, spec)
        for item, spec in items.items()
        if isinstance(item, IpSet) and isinstance(spec, SetSpec)
    ]
    entries = [_entry_line(item) for item in items if isinstance(item, SetEntry)]
    return sorted(sets) + sorted(entries)


def _set_line(name: str, spec: SetSpec) -> str:
    if spec.kind == SetKind.PORT:
        return f"create {name} {spec.kind} range 0-65535"
    family = "inet6" if spec.is_ipv6 else "inet"
    return f"create {name} {spec.kind} family {family} maxelem 65536"


def _entry_line(entry: SetEntry) -> str:
    parts = [entry.address] if entry.address else []
    if entry.port:
        protocol = f"{_PROTOCOL[entry.protocol]}:" if entry.protocol else ""
        parts.append(f"{protocol}{entry.port}")
    if entry.second:
        bits = 128 if ":" in entry.second else 32
        is_network = entry.prefix_length not in (0, bits)
        parts.append(f"{entry.second}/{entry.prefix_length}" if is_network else entry.second)
    return f"add {entry.set_name} {','.join(parts)}"


def address_lines(items: Mapping[Item, Value]) -> list[str]:
    links = [f"link {item.name} type dummy" for item in items if isinstance(item, ServiceLink)]
    bound = [item.address for item in items if isinstance(item, BoundAddress)]
    return links + sorted(f"{a}/{128 if ':' in a else 32}" for a in bound)


def rule_lines(items: Mapping[Item, Value]) -> Iterator[str]:
    """As restore input: each table's chains with their rules in order, then the jumps."""
    for table in (NAT, FILTER):
        yield f"*{table}"
        names = sorted(OWN_CHAINS[table] | SHARED_CHAINS[table])
        yield from (chain_line(name).rstrip("\n") for name in names)
        for name in names:
            yield from chain_rules(items, table, name)
        for jump, _ in JUMPS:
            if jump.table == table and jump in items:
                yield _jump_line(jump)
        yield "COMMIT"


def chain_rules(items: Mapping[Item, Value], table: str, chain: str) -> list[str]:
    """The rules of one chain in order."""
    whole = items.get(Chain(table, chain))
    if isinstance(whole, Rules):
        return whole.lines()
    sections = [
        (item.order, value)
        for item, value in items.items()
        if isinstance(item, Section) and (item.table, item.chain) == (table, chain)
    ]
    sections.sort(key=lambda pair: pair[0])
    return [line for _, value in sections if isinstance(value, Rules) for line in value.lines()]


def _jump_line(jump: Jump) -> str:
    return f"-I {jump.chain} {jump.rule}"
