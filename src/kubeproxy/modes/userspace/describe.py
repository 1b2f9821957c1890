"""What fragments would install, for people: sockets as comments, rules as restore input. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeproxy.facts.address import join_host_port
from kubeproxy.modes.base import Fragment, Item, Owner, Value
from kubeproxy.modes.netfilter.items import Jump, Position, Rules, Section
from kubeproxy.modes.netfilter.rules.text import chain_line
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.items import Claim, Listener
from kubeproxy.modes.userspace.scaffold import FILTER_CHAINS, NAT_CHAINS


def describe_fragments(fragments: Mapping[Owner, Fragment]) -> str:
    items = {item: value for owner in sorted(fragments) for item, value in fragments[owner].items()}
    lines = ["# a proxy port is chosen when it is bound; 0 stands for one not bound yet\n"]
    lines += _sockets(items)
    for table, chains in (("nat", NAT_CHAINS), ("filter", FILTER_CHAINS)):
        lines.append(f"*{table}\n")
        lines += map(chain_line, chains)
        lines += _jumps(items, table)
        for chain in chains:
            lines += _sections(items, table, chain)
        lines.append("COMMIT\n")
    return "".join(lines)


def _sockets(items: Mapping[Item, Value]) -> Iterator[str]:
    for item, value in items.items():
        if isinstance(item, Listener) and isinstance(value, Balance):
            targets = ", ".join(join_host_port(*target) for target in value.targets) or "nobody"
            affinity = f", affinity {value.affinity_seconds} s" if value.affinity_seconds else ""
            yield f"# listener {item.owner} ({item.pool.value}): {targets}{affinity}\n"
        elif isinstance(item, Claim):
            where = join_host_port(item.address or "*", item.port)
            yield f"# claim {where}/{item.protocol.value} for {value}\n"


def _jumps(items: Mapping[Item, Value], table: str) -> Iterator[str]:
    for item, value in items.items():
        if isinstance(item, Jump) and item.table == table:
            command = "-I" if value is Position.FIRST else "-A"
            yield f"{command} {item.chain} {item.rule}\n"


def _sections(items: Mapping[Item, Value], table: str, chain: str) -> Iterator[str]:
    found = [
        (item.order, value.text)
        for item, value in items.items()
        if isinstance(item, Section) and isinstance(value, Rules)
        if (item.table, item.chain) == (table, chain)
    ]
    for _, text in sorted(found):
        yield text
