"""Taking rules and chains of ours out of a table again, all at once and nothing else.

The pure part composes one commit per table: jumps are detached, chains emptied, then deleted, so
nothing is ever half removed. A chain that somebody else's rule still leads to cannot be deleted;
it is left empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kubeproxy.backends.netfilter.canonical import canonical_rule
from kubeproxy.backends.netfilter.items import Jump
from kubeproxy.backends.netfilter.text import TableText, chain_line, parse_save
from kubeproxy.backends.netfilter.xtables import Xtables
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family

Compose = Callable[[TableText], str]
"""Restore input that removes what is ours in a table; empty if nothing is."""


def removal_input(table: TableText, chains: Sequence[str], jumps: Iterable[Jump]) -> str:
    """Restore input that removes these of our chains and jumps, as far as they are there. Pure."""
    removed = {
        (jump.chain, canonical_rule(f"-A {jump.chain} {jump.rule}")): jump
        for jump in jumps
        if jump.table == table.name
    }
    ours = set(chains)
    present: set[tuple[str, str]] = set()
    used: set[str] = set()
    for chain in table.rules.keys() - ours:
        for line in table.lines(chain):
            key = (chain, canonical_rule(line))
            if key in removed:
                present.add(key)
            else:
                used.add(line.rpartition(" -j ")[2].partition(" ")[0])
    detached = [f"-D {j.chain} {j.rule}\n" for key, j in removed.items() if key in present]
    if not chains and not detached:
        return ""
    deleted = [f"-X {chain}\n" for chain in chains if chain not in used]
    parts = (f"*{table.name}\n", *map(chain_line, chains), *detached, *deleted, "COMMIT\n")
    return "".join(parts)


async def save_tables(tables: Xtables, names: Iterable[str]) -> dict[str, TableText]:
    """These tables as they are now; one that does not exist is empty."""
    saved = {name: TableText(name) for name in names}
    for name in saved:
        saved |= {table.name: table for table in parse_save(await tables.save(name))}
    return saved


async def clean_families(
    names: Sequence[str],
    compose: Compose,
    *,
    has_evidence: Callable[[Iterable[TableText]], bool] = lambda _: True,
) -> list[str]:
    """Clean both families as far as their tools are there; what went wrong, in words.

    Nothing is touched where `has_evidence` finds nothing of ours: other modes have chains of the
    same names.
    """
    problems: list[str] = []
    for family in Family:
        tables = Xtables(family)
        try:
            if not await tables.is_present():
                continue
            saved = await save_tables(tables, names)
        except KernelError as error:
            problems.append(f"{family.value}: {error}")
            continue
        if has_evidence(saved.values()):
            problems += [p for name in names for p in await _clean(tables, compose(saved[name]))]
    return problems


async def _clean(tables: Xtables, text: str) -> list[str]:
    try:
        if text:
            await tables.restore(text)
    except KernelError as error:
        return [f"{tables.family.value}: {text.partition(chr(10))[0]}: {error}"]
    return []
