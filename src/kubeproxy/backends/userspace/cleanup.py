"""Removing everything of the userspace mode, and nothing else.

Only rules outlive the process; sockets went with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.backends.netfilter.canonical import canonical_rule
from kubeproxy.backends.netfilter.text import TableText, chain_line, parse_save
from kubeproxy.backends.netfilter.xtables import Xtables
from kubeproxy.backends.userspace.scaffold import SCOPE
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family


def cleanup_input(table: TableText) -> str:
    """Restore input that detaches, empties and deletes what is ours in a table; empty if none is.

    Everything goes in one commit, so nothing is ever half removed.
    """
    chains = sorted(chain for chain in table.policies if SCOPE.shares(table.name, chain))
    detached = [
        f"-D {jump.chain} {jump.rule}\n"
        for jump, _ in SCOPE.jumps
        if jump.table == table.name and _has_rule(table, jump.chain, jump.rule)
    ]
    if not chains and not detached:
        return ""
    return "".join(
        (
            f"*{table.name}\n",
            *map(chain_line, chains),
            *detached,
            *(f"-X {chain}\n" for chain in chains),
            "COMMIT\n",
        )
    )


def _has_rule(table: TableText, chain: str, rule: str) -> bool:
    wanted = canonical_rule(f"-A {chain} {rule}")
    return any(canonical_rule(line) == wanted for line in table.lines(chain))


async def cleanup() -> Sequence[str]:
    """Clean both families, as far as their tools are there; what went wrong, in words."""
    problems: list[str] = []
    for family in Family:
        tables = Xtables(family)
        if await tables.is_present():
            problems += await _cleanup_family(tables)
    return problems


async def _cleanup_family(tables: Xtables) -> list[str]:
    problems = []
    for name in SCOPE.tables:
        try:
            saved = {table.name: table for table in parse_save(await tables.save(name))}
            text = cleanup_input(saved.get(name, TableText(name)))
            if text:
                await tables.restore(text)
        except KernelError as error:
            problems.append(f"{tables.family.value} table {name}: {error}")
    return problems
