"""The sink for iptables items: reads ours, orders changes, applies a batch as one restore.

One batch is one table and one `iptables-restore`, hence atomic: what it refuses left no trace.
Everything sent is safe to send again (a chain line empties a chain that exists, sections are
compared with what is believed), so a batch that is repeated after a doubtful end does no harm.

Recognised as ours: the chains of the mode's `Scope`, by name or prefix, and its jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from kubeproxy.modes.base import Batch, Change, Item, Value
from kubeproxy.modes.netfilter.compile import refusals as refusal
from kubeproxy.modes.netfilter.compile.restore import compose, size_of, split
from kubeproxy.modes.netfilter.compile.shared import SharedContent
from kubeproxy.modes.netfilter.items import (
    Chain,
    ChainGroup,
    ChainState,
    GroupRules,
    GuestChain,
    GuestRules,
    Jump,
    Rules,
    Scope,
    Section,
    SharedChain,
)
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule
from kubeproxy.modes.netfilter.rules.text import TableText, parse_save
from kubeproxy.modes.netfilter.sinks.xtables import Tables

LEGACY_BATCH_LINES = 1_000_000
"""iptables-legacy replaces the whole table with every call: the fewer calls, the better."""
NFT_BATCH_LINES = 5_000
"""iptables-nft is quadratic in the chains of one call; about a thousand chains is its best."""


class RestoreStatistics(Struct):
    """What the metrics tell about restores."""

    rules: dict[str, int] = {}
    written: dict[str, int] = {}
    failures: int = 0


class NetfilterSink:
    """Iptables state of one family and mode."""

    item_types: tuple[type, ...] = (
        Chain,
        ChainGroup,
        SharedChain,
        Section,
        GuestChain,
        Jump,
    )

    def __init__(
        self,
        tables: Tables,
        scope: Scope,
        *,
        name: str = "iptables",
        before_read: Callable[[], object] | None = None,
    ) -> None:
        """`before_read` prepares what rules rely on beside the tables."""
        self.name = name
        self._before_read = before_read
        self.statistics = RestoreStatistics()
        self._tables = tables
        self._scope = scope
        self._shared: dict[tuple[str, str], SharedContent] = {}
        self._was_in_doubt = False

    async def read(self) -> Mapping[Item, Value]:
        """Everything in the kernel that is ours by the scope."""
        if self._before_read is not None:
            self._before_read()
        found: dict[Item, Value] = {}
        self._shared = {}
        for name in self._scope.tables:
            text = self._scope.respell(await self._tables.save(name))
            saved = {table.name: table for table in parse_save(text)}
            items = self._read_table(saved.get(name, TableText(name)))
            self.statistics.rules[name] = sum(map(_rule_count, items.values()))
            found |= items
        return found

    def _read_table(self, table: TableText) -> dict[Item, Value]:
        found: dict[Item, Value] = {}
        scope = self._scope
        groups = scope.group({chain: table.rules.get(chain, "") for chain in table.policies})
        found |= _read_groups(table, groups)
        for chain in table.policies:
            if chain in groups:
                continue
            if scope.shares(table.name, chain):
                found |= self._read_shared(table, chain)
            elif scope.owns(table.name, chain):
                found[Chain(table.name, chain)] = Rules(table.rules.get(chain, ""))
            elif scope.is_guest_of(table.name, chain):
                held = GuestRules(table.rules.get(chain, ""), is_read=True)
                found[GuestChain(table.name, chain)] = held
        return found | self._read_jumps(table)

    def _read_shared(self, table: TableText, chain: str) -> dict[Item, Value]:
        content = _recognise(table, chain, self._scope)
        if content is None:
            return {SharedChain(table.name, chain): ChainState.UNKNOWN}
        self._shared[table.name, chain] = content
        found: dict[Item, Value] = {SharedChain(table.name, chain): ChainState.KNOWN}
        for (rank, key), text in content.sections():
            found[Section(table.name, chain, key, rank)] = Rules(text)
        return found

    def _read_jumps(self, table: TableText) -> dict[Item, Value]:
        wanted = [(jump, place) for jump, place in self._scope.jumps if jump.table == table.name]
        present = {
            chain: set(map(canonical_rule, table.lines(chain)))
            for chain in {jump.chain for jump, _ in wanted}
        }
        return {
            jump: place
            for jump, place in wanted
            if canonical_rule(f"-A {jump.chain} {jump.rule}") in present[jump.chain]
        }

    def compile(self, changes: Sequence[Change]) -> Iterator[Batch]:
        """Batches of one table each."""
        limit = NFT_BATCH_LINES if self._tables.is_nft else LEGACY_BATCH_LINES
        for table, batch in split(changes, self._scope, limit):
            yield Batch(tuple(batch), table, size=sum(map(size_of, batch)))

    async def apply(self, batch: Batch) -> None:
        """One restore. Positions in shared chains are worked out here, from what is believed."""
        table = str(batch.payload)
        composed = compose(table, batch.changes, self._shared, self._scope)
        try:
            await self._tables.restore(composed.text)
        except refusal.RestoreRefused as refused:
            self.statistics.failures += 1
            error = refusal.explain(refused, composed.text, batch.changes, self._was_in_doubt)
            self._was_in_doubt = refusal.is_doubt(error)
            raise error from refused
        self._was_in_doubt = False
        self._shared |= composed.shared
        self._count(table, batch.changes)

    def _count(self, table: str, changes: Sequence[Change]) -> None:
        rules, written = self.statistics.rules, self.statistics.written
        added = sum(_rule_count(change.new) for change in changes)
        removed = sum(_rule_count(change.old) for change in changes if change.old is not None)
        rules[table] = rules.get(table, 0) + added - removed
        written[table] = written.get(table, 0) + added

    def take_written(self, table: str) -> int:
        """Rules written to a table since the last call."""
        return self.statistics.written.pop(table, 0)


def _read_groups(table: TableText, groups: Mapping[str, str]) -> dict[Item, Value]:
    chains: dict[str, dict[str, str]] = {}
    for chain, group in groups.items():
        chains.setdefault(group, {})[chain] = table.rules.get(chain, "")
    return {ChainGroup(table.name, group): GroupRules(found) for group, found in chains.items()}


def _recognise(table: TableText, chain: str, scope: Scope) -> SharedContent | None:
    """A shared chain's sections, if every rule is recognised and they stand in order."""
    sections: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    last = None
    for line in table.lines(chain):
        order = scope.identify(table.name, chain, line)
        if order is None or (last is not None and order < last):
            return None
        sections.setdefault(order, []).append(f"{line}\n")
        last = order
    return SharedContent(tuple(sections), ["".join(lines) for lines in sections.values()])


def _rule_count(value: object) -> int:
    return value.count if isinstance(value, (Rules, GroupRules, GuestRules)) else 0
