"""Which rules of other programs stand before ours in the built-in chains of iptables.

A packet meets them first, so one of them may drop it, accept it or translate it before any Service
is looked up. What stands behind our jumps is left out: it can do nothing about a Service's packet
that ours has not seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeproxy.modes.base import Other
from kubeproxy.modes.netfilter.items import Scope
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule
from kubeproxy.modes.netfilter.rules.text import TableText, parse_save
from kubeproxy.modes.netfilter.sinks.xtables import Tables

_PRIORITIES = {"mangle": -150, "filter": 0}
_HOOKS = {
    "PREROUTING": "prerouting",
    "INPUT": "input",
    "FORWARD": "forward",
    "OUTPUT": "output",
    "POSTROUTING": "postrouting",
}


async def other_rules(tables: Tables, scope: Scope) -> list[Other]:
    """The rules before ours, table by table. Raises KernelError."""
    found: list[Other] = []
    for name in scope.tables:
        for table in parse_save(await tables.save(name)):
            found += rules_before_ours(table, scope)
    return found


def rules_before_ours(table: TableText, scope: Scope) -> Iterator[Other]:
    """What stands before the last of our jumps in each chain that has one."""
    for chain in dict.fromkeys(jump.chain for jump, _ in scope.jumps if jump.table == table.name):
        ours = {
            canonical_rule(f"-A {chain} {jump.rule}")
            for jump, _ in scope.jumps
            if (jump.table, jump.chain) == (table.name, chain)
        }
        lines = table.lines(chain)
        last = max((n for n, line in enumerate(lines) if canonical_rule(line) in ours), default=-1)
        for line in lines[:last]:
            if canonical_rule(line) not in ours:
                yield Other(
                    hook=_HOOKS.get(chain, chain),
                    priority=_priority(table.name, chain),
                    what=f"iptables -t {table.name} {line}",
                )


def _priority(table: str, chain: str) -> int:
    """Source addresses are translated last (NF_IP_PRI_NAT_SRC), destinations early."""
    if table == "nat":
        return 100 if chain in ("POSTROUTING", "INPUT") else -100
    return _PRIORITIES.get(table, 0)
