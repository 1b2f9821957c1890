"""Remove the chains and jumps of a mode, and nothing else.

Two occasions: `--cleanup`, which removes everything, and another mode that has taken over, which
keeps what it uses itself. Promise: one commit per table empties chains and deletes them, when the
jumps are gone or together with them, so no packet meets anything half removed. A chain to which a
rule of another program leads cannot be deleted; it is left empty and reported. Leaves to others:
which chains and jumps are a mode's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import Running
from kubeproxy.modes.netfilter.items import Jump, Scope
from kubeproxy.modes.netfilter.names import CONTESTED, old_name
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule
from kubeproxy.modes.netfilter.rules.text import TableText, chain_line, parse_save
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.signs import Place, find_signs, look, tools_at, used_places
from kubeproxy.modes.netfilter.sinks.variant import variants_in_use
from kubeproxy.modes.netfilter.sinks.xtables import Tables, Xtables


class Removal(Struct, frozen=True):
    """What a mode wants removed: its chains in a table that was read, and its jumps.

    When all modes are cleaned up, nothing is touched unless `has_evidence` finds a sign of the
    mode, because other modes have chains of the same names.
    """

    mode: str
    tables: tuple[str, ...]
    chains: Callable[[TableText], Sequence[str]]
    jumps: tuple[Jump, ...]
    has_evidence: Callable[[Iterable[TableText]], bool] = lambda _: True

    def compose(self, table: TableText) -> str:
        """Restore input that removes all of it from a table; empty if nothing is there."""
        return removal_input(table, self.chains(table), self.jumps)


def with_old_names(jumps: Iterable[Jump]) -> tuple[Jump, ...]:
    """Jumps, and the same to chains that were renamed when another mode took over."""
    listed = tuple(jumps)
    renamed = (
        Jump(jump.table, jump.chain, old_name(jump.rule))
        for jump in listed
        if jump.rule.rpartition(" ")[2] in CONTESTED.get(jump.table, ())
    )
    return (*listed, *renamed)


def removal_input(table: TableText, chains: Sequence[str], jumps: Iterable[Jump]) -> str:
    """Restore input that removes these chains, which exist, and those of the jumps that exist.

    Empty if there is nothing to remove. Pure.
    """
    present, used = _leading_rules(table, chains, jumps)
    deleted = _deleting(chains, used)
    return _input(table, (*map(chain_line, chains), *map(_detaching, present), *deleted))


def _leading_rules(
    table: TableText, chains: Sequence[str], jumps: Iterable[Jump]
) -> tuple[list[Jump], frozenset[str]]:
    """Those of the jumps that exist, and the targets of all other rules outside of these chains."""
    wanted = {
        (jump.chain, canonical_rule(f"-A {jump.chain} {jump.rule}")): jump
        for jump in jumps
        if jump.table == table.name
    }
    entrances = {chain for chain, _ in wanted}
    present: dict[Jump, None] = {}
    used: set[str] = set()
    for chain in table.rules.keys() - set(chains):
        for line in table.lines(chain):
            jump = wanted.get((chain, canonical_rule(line))) if chain in entrances else None
            if jump is not None:
                present[jump] = None
            else:
                used.add(line.rpartition(" -j ")[2].partition(" ")[0])
    return [jump for jump in wanted.values() if jump in present], frozenset(used)


def _detaching(jump: Jump) -> str:
    return f"-D {jump.chain} {jump.rule}\n"


def _deleting(chains: Sequence[str], used: frozenset[str]) -> list[str]:
    """Lines that delete these chains, but those that a foreign rule leads to: they are in use."""
    return [f"-X {chain}\n" for chain in chains if chain not in used]


def _input(table: TableText, lines: Sequence[str]) -> str:
    return "".join((f"*{table.name}\n", *lines, "COMMIT\n")) if lines else ""


async def save_tables(tables: Tables, names: Iterable[str]) -> dict[str, TableText]:
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


async def retire_rules(
    removal: Removal, running: Running, *, stays: frozenset[str] = frozenset()
) -> list[str]:
    """Remove a mode's rules wherever it shows, except what the running mode wants.

    Chains of `stays` stay, with their jumps. Return what went wrong, in words.
    """
    used = used_places(running.backends)
    problems: list[str] = []
    for place, modes in find_signs(used).items():
        if removal.mode in modes and _may_retire(removal, running, place, used):
            tables = used[place].tables if place in used else await tools_at(place)
            kept = used[place].scope if place in used else None
            problems += await _retire_at(tables, place, removal, Kept(kept, stays))
            if place in used:
                used[place].signs = {"": look(place)}
    return problems


def _may_retire(
    removal: Removal, running: Running, place: Place, used: Mapping[Place, NetfilterSink]
) -> bool:
    """Rules of the running mode itself go only where it now uses the other variant of the tools."""
    if removal.mode != running.mode:
        return True
    return place not in used and Place(place.family, not place.is_nft) in used


class Kept(Struct, frozen=True):
    """What of a mode's rules stays: chains and jumps of the running mode, and these chains."""

    scope: Scope | None = None
    chains: frozenset[str] = frozenset()

    def has_chain(self, table: str, chain: str) -> bool:
        return chain in self.chains or (self.scope is not None and self.scope.has(table, chain))

    def has_jump(self, jump: Jump) -> bool:
        if jump.rule.rpartition(" ")[2] in self.chains:
            return True
        return self.scope is not None and any(jump == kept for kept, _ in self.scope.jumps)


def retirement_inputs(table: TableText, removal: Removal, kept: Kept) -> Iterator[str]:
    """Restore inputs that detach, then remove, what is not kept. Pure.

    Detaching comes first: removing 55,000 chains takes iptables-nft 20 s, in which packets would
    still meet rules that are not kept up to date.
    """
    chains = [c for c in removal.chains(table) if not kept.has_chain(table.name, c)]
    jumps = [jump for jump in removal.jumps if not kept.has_jump(jump)]
    present, used = _leading_rules(table, chains, jumps)
    yield _input(table, [_detaching(jump) for jump in present])
    yield _input(table, [*map(chain_line, chains), *_deleting(chains, used)])


async def _retire_at(tables: Tables, place: Place, removal: Removal, kept: Kept) -> list[str]:
    try:
        saved = await save_tables(tables, removal.tables)
    except KernelError as error:
        return [f"{place.family.value}: {error}{_remedy(str(error), place)}"]
    problems: list[str] = []
    for name, table in saved.items():
        for text in retirement_inputs(table, removal, kept):
            found = await _clean(tables, text)
            problems += [f"{place.family.value} table {name}: {problem}" for problem in found]
    return problems


def _remedy(error: str, place: Place) -> str:
    """What to do about an error of the tool that only another mode needs, if there is a remedy."""
    if place.is_nft or "Permission denied" not in error:
        return ""
    return "; iptables-legacy needs the capability CAP_NET_RAW"


async def _clean(tables: Tables, text: str) -> list[str]:
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
