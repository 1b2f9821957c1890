"""Remove the chains and jumps of a mode, and nothing else.

Promise: one commit per table detaches the jumps, empties the chains and deletes them, so nothing
is ever half removed. A chain to which a rule of another program leads cannot be deleted; it is
left empty and reported. Leaves to others: which chains and jumps are a mode's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.modes.netfilter.items import Jump
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule
from kubeproxy.modes.netfilter.rules.text import TableText, chain_line, parse_save
from kubeproxy.modes.netfilter.sinks.variant import variants_in_use
from kubeproxy.modes.netfilter.sinks.xtables import Xtables


class Removal(Struct, frozen=True):
    """What a mode wants removed.

    `compose` returns the restore input that removes what is ours in a table, or an empty text if
    nothing is ours. Nothing is touched unless `has_evidence` finds a sign of the mode, because
    other modes have chains of the same names.
    """

    tables: tuple[str, ...]
    compose: Callable[[TableText], str]
    has_evidence: Callable[[Iterable[TableText]], bool] = lambda _: True


def removal_input(table: TableText, chains: Sequence[str], jumps: Iterable[Jump]) -> str:
    """Restore input that removes these chains, which exist, and those of the jumps that exist.

    Empty if there is nothing to remove. Pure.
    """
    removed = {
        (jump.chain, canonical_rule(f"-A {jump.chain} {jump.rule}")): jump
        for jump in jumps
        if jump.table == table.name
    }
    ours = set(chains)
    present: set[tuple[str, str]] = set()
    used: set[str] = set()  # targets of foreign rules; -X of such a chain would be refused
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
    """Read these tables. One that does not exist is empty."""
    saved = {name: TableText(name) for name in names}
    for name in saved:
        saved |= {table.name: table for table in parse_save(await tables.save(name))}
    return saved


async def clean_families(removal: Removal) -> list[str]:
    """Clean every family whose tools work here, in both variants of the tools.

    Return what went wrong, in words.
    """
    problems: list[str] = []
    for family in Family:
        for variant in await variants_in_use(family):
            tables = Xtables(family, ToolOptions(variant=variant))
            if await tables.is_present():
                problems += await clean_tables(tables, removal)
    return problems


async def clean_tables(tables: Xtables, removal: Removal) -> list[str]:
    """Clean one family. Return what went wrong, in words."""
    try:
        saved = await save_tables(tables, removal.tables)
    except KernelError as error:
        return [f"{tables.family.value}: {error}"]
    if not removal.has_evidence(saved.values()):
        return []
    problems: list[str] = []
    for name in removal.tables:
        where = f"{tables.family.value} table {name}"
        problems += [f"{where}: {p}" for p in await _clean(tables, removal.compose(saved[name]))]
    return problems


async def _clean(tables: Xtables, text: str) -> list[str]:
    """Run one removal. Return why it failed, or which chains are left."""
    if not text:
        return []
    try:
        await tables.restore(text)
    except KernelError as error:
        return [str(error)]
    lines = text.splitlines()
    kept = {line[1:].split()[0] for line in lines if line.startswith(":")} - {
        line.removeprefix("-X ") for line in lines if line.startswith("-X ")
    }
    return [f"{chain} is empty now but stays: a foreign rule leads to it" for chain in sorted(kept)]
