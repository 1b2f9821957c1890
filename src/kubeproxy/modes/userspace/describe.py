"""What fragments would install, for people: sockets as comments, rules as restore input. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeproxy.facts.address import join_host_port
from kubeproxy.modes.base import SCAFFOLD, Owner, items_of
from kubeproxy.modes.netfilter.items import Jump, Position, Rules, Section
from kubeproxy.modes.netfilter.rules.text import chain_line
from kubeproxy.modes.userspace import names
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.items import Claim, Fragment, Listener, Uncarried


def describe(fragments: Mapping[Owner, Fragment]) -> str:
    """Comments for listeners and claims, then both tables as iptables-restore would read them.

    Without the scaffold's fragment its chains are not declared: that would empty them.
    """
    items = {item: value for owner in sorted(fragments) for item, value in fragments[owner].items()}
    jumps = items_of(items, Jump, Position)
    sections = items_of(items, Section, Rules)
    lines = ["# a proxy port is chosen when it is bound; 0 stands for one not bound yet\n"]
    lines += (f"# {line}\n" for line in socket_lines(items))
    for table, chains in names.CHAINS.items():
        lines.append(f"*{table}\n")
        lines += map(chain_line, chains if SCAFFOLD in fragments else ())
        for jump, position in jumps.items():
            if jump.table == table:
                command = "-I" if position is Position.FIRST else "-A"
                lines.append(f"{command} {jump.chain} {jump.rule}\n")
        for chain in chains:
            lines += _rules_of(sections, table, chain)
        lines.append("COMMIT\n")
    return "".join(lines)


def socket_lines(items: Fragment) -> Iterator[str]:
    """One line for each listener, claim and service port that is not carried, in order."""
    balances = items_of(items, Listener, Balance)
    for item, value in items.items():
        if isinstance(item, Listener):
            balance = balances[item]
            targets = ", ".join(join_host_port(*target) for target in balance.targets) or "nobody"
            seconds = balance.affinity_seconds
            affinity = f", affinity {seconds} s" if seconds else ""
            yield f"listener {item.owner} ({item.pool.value}): {targets}{affinity}"
        elif isinstance(item, Claim):
            where = join_host_port(item.address or "*", item.port)
            yield f"claim {where}/{item.protocol.value} for {value}"
        elif isinstance(item, Uncarried):
            yield f"not carried {item.owner}: {value}"


def _rules_of(sections: Mapping[Section, Rules], table: str, chain: str) -> Iterator[str]:
    """The rules of one chain, section by section as they stand in it."""
    for section in sorted(sections, key=lambda section: section.order):
        if (section.table, section.chain) == (table, chain):
            yield sections[section].text
