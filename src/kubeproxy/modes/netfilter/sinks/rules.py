"""The sink for iptables items: reads what is ours, compiles changes, applies a batch.

One batch is one table and one `iptables-restore`, hence atomic: a restore that is refused changes
nothing. What is ours, and which order is safe, are decided by pure code (`compile.reading`,
`compile.batches`, `compile.restore`). This module runs the tool and keeps what it learns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from kubeproxy.errors import Drifted, KernelError
from kubeproxy.modes.base import Batch
from kubeproxy.modes.netfilter.compile.batches import split
from kubeproxy.modes.netfilter.compile.changes import RuleChange
from kubeproxy.modes.netfilter.compile.reading import (
    SetAside,
    lines_before,
    read_table,
    set_aside,
)
from kubeproxy.modes.netfilter.compile.refusals import RestoreRefused, explain
from kubeproxy.modes.netfilter.compile.restore import (
    NOTHING_ELSE,
    RestoreInput,
    Surroundings,
    compose,
)
from kubeproxy.modes.netfilter.compile.shared import NO_CONTENT, SharedContent
from kubeproxy.modes.netfilter.items import (
    Chain,
    ChainGroup,
    GuestChain,
    Jump,
    RuleItem,
    RuleValue,
    Scope,
    Section,
    SharedChain,
)
from kubeproxy.modes.netfilter.names import signs_in
from kubeproxy.modes.netfilter.rules.text import TableText, parse_save
from kubeproxy.modes.netfilter.sinks.xtables import Tables

LEGACY_BATCH_LINES = 1_000_000
"""iptables-legacy reads and replaces the whole table with every call, so fewer calls are better."""
NFT_BATCH_LINES = 5_000
"""iptables-nft is quadratic in the chains of one call: 14 s for 11,000 chains, more than 200 s for
55,000. In restores of about a thousand chains each the 55,000 take 8 to 11 s."""


_TRIAL = """*{table}
:KUBE-PROXY-TRIAL - [0:0]
-A KUBE-PROXY-TRIAL -m comment --comment "is any rule accepted" -j RETURN
-D KUBE-PROXY-TRIAL -m comment --comment "is any rule accepted" -j RETURN
-X KUBE-PROXY-TRIAL
COMMIT
"""
"""A rule as every Service has it, gone again when the table is committed."""


class RestoreStatistics(Struct):
    """Figures about restores, for the metrics; rules are counted by table."""

    rules: dict[str, int] = {}
    written: dict[str, int] = {}
    failures: int = 0

    def count(self, restore: RestoreInput) -> None:
        """Account for a restore that succeeded."""
        table, added = restore.table, restore.added
        self.rules[table] = self.rules.get(table, 0) + added - restore.removed
        self.written[table] = self.written.get(table, 0) + added


class NetfilterSink:
    """Iptables state of one family and mode.

    Beside the ledger the sink holds a belief of its own: what each shared chain contains, line by
    line and in order (`_shared`). To insert a rule it must know how many lines stand in front of
    it, and to delete one, how it was spelled. The ledger cannot hold this: it has one value per
    item, knows neither chains nor the order of sections, and takes two spellings of a rule for
    equal.

    `read` resets the belief to what the kernel holds; `apply` moves it on after a restore that
    succeeded, and only then. It is wrong once another program edits a chain of ours. A deletion
    that does not find its rule makes the tool refuse the restore, `apply` raises Drifted, and the
    engine reads again. An insertion may land a few lines off until the next full read.

    Because positions follow from the belief, `compile` composes each batch when it is asked for,
    which is after the one before has been applied. A batch that must be sent again has to be
    compiled again: the same payload twice would insert a section twice.
    """

    item_types: tuple[type, ...] = (Chain, ChainGroup, SharedChain, Section, GuestChain, Jump)
    is_transactional = True

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
        self.statistics = RestoreStatistics()
        self._before_read = before_read
        self.scope = scope
        self.read_seconds = 0.0
        """How long the last reading of the tables took."""
        self.tables = tables
        self.signs: dict[str, frozenset[str]] = {}
        """By table: the modes that showed in it when it was last read."""
        self._surroundings: dict[str, Surroundings] = {}
        self.sets_aside = False
        """Are chains of another mode that have our names renamed, rather than rewritten?"""
        self._shared: dict[tuple[str, str], SharedContent] = {}
        self._drift_suspected = False
        self._has_succeeded = False
        """Has a restore succeeded since the last that was refused?"""

    async def read(self) -> Mapping[RuleItem, RuleValue]:
        """Everything in the kernel that is ours by the scope."""
        started = time.monotonic()
        if self._before_read is not None:
            self._before_read()
        found: dict[RuleItem, RuleValue] = {}
        former, self._shared, self.signs = self._shared, {}, {}
        for name in self.scope.tables:
            is_empty = await self.tables.is_empty(name)
            text = "" if is_empty else self.scope.respell(await self.tables.save(name))
            saved = {table.name: table for table in parse_save(text)}
            own = read_table(self._own_view(saved.get(name, TableText(name))), self.scope)
            self.statistics.rules[name] = own.rule_count
            self._shared |= {
                chain: content.reusing(former.get(chain, NO_CONTENT))
                for chain, content in own.shared.items()
            }
            found |= own.items()
        self.read_seconds = time.monotonic() - started
        return found

    def _own_view(self, table: TableText) -> TableText:
        """The table without what another mode has under our names; take note of what else it holds.

        Nothing is renamed yet: that is done right before our own chains are written (`apply`).
        """
        self.signs[table.name] = signs_in(table.name, table.policies)
        view = set_aside(table, self.scope) if self.sets_aside else SetAside(table)
        before = lines_before(view.table, self.scope)
        self._surroundings[table.name] = Surroundings(view.chains, before)
        return view.table

    def compile(self, changes: Sequence[RuleChange]) -> Iterator[Batch[RestoreInput]]:
        """Batches of one table each, composed from what the shared chains hold at that moment."""
        limit = NFT_BATCH_LINES if self.tables.is_nft else LEGACY_BATCH_LINES
        for table, batch in split(changes, self.scope, limit):
            around = self._surroundings.get(table, NOTHING_ELSE)
            restore = compose(table, batch, self._shared, self.scope, around)
            yield Batch(tuple(batch), restore, size=len(restore.text))

    async def apply(self, batch: Batch[RestoreInput]) -> None:
        """Run one restore.

        Raises Drifted or RuleRejected if it is refused, Busy if locked out, KernelError if the tool
        refuses whatever it is given.
        """
        restore = batch.payload
        if restore.renaming:
            await self._rename(restore)
        try:
            await self.tables.restore(restore.text)
        except RestoreRefused as refused:
            self.statistics.failures += 1
            await self._try_any_rule(restore.table)
            error = explain(
                refused, restore.text, batch.changes, drift_suspected=self._drift_suspected
            )
            self._drift_suspected = isinstance(error, Drifted)
            raise error from refused
        self._drift_suspected = False
        self._has_succeeded = True
        self.record(restore)

    async def _try_any_rule(self, table: str) -> None:
        """Raise KernelError if the tool refuses any rule at all, and no Service is to blame.

        The engine would otherwise look for the culprit in a big batch with a call for every
        Service. A success since the last refusal is proof enough, but only once: of the refusals
        of a tool that has just broken the second is looked at.
        """
        has_succeeded, self._has_succeeded = self._has_succeeded, False
        if has_succeeded:
            return
        try:
            await self.tables.restore(_TRIAL.format(table=table))
        except RestoreRefused as refused:
            raise KernelError(
                f"{refused}; it refuses any rule, so no Service is to blame"
            ) from None

    async def _rename(self, restore: RestoreInput) -> None:
        """Make names free that we want. Raise Drifted if the tool cannot, and never ask it again.

        After another look such chains are rewritten in place, which is a gap for their mode.
        """
        try:
            await self.tables.restore(restore.renaming)
        except RestoreRefused as refused:
            self.statistics.failures += 1
            self.sets_aside = False
            raise Drifted(f"chains of another mode cannot be renamed: {refused}") from refused
        before = self._surroundings[restore.table].before
        self._surroundings[restore.table] = Surroundings(before=before)

    def record(self, restore: RestoreInput) -> None:
        """Move the belief on: this restore is in the kernel now."""
        self._surroundings.pop(restore.table, None)
        self._shared |= restore.shared
        self.statistics.count(restore)

    def take_written(self, table: str) -> int:
        """Rules written to a table since the last call."""
        return self.statistics.written.pop(table, 0)
