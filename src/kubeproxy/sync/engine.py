"""One family's loop: wait until due, recompute, apply to the kernel, report.

The engine owns the order of effects and the policy for errors; what to do is decided elsewhere.

    Rejected   split by owner until the culprit stands alone; the rest goes through; retry later
    Drifted    re-read the kernel in the next round, which is due at once
    other      the round failed; what the kernel holds is unknown: re-read and retry

Nothing is replayed after a failure: the difference is computed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from kubeproxy.errors import Drifted, KernelError, Rejected
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import Backend, Change, Sink
from kubeproxy.plan.conntrack import Change as PlanChange
from kubeproxy.plan.conntrack import StaleRules
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.pipeline import Pipeline, Recomputed
from kubeproxy.sync.report import Failure, RoundReport
from kubeproxy.sync.runner import Runner

FULL_SYNC_SECONDS = 3600.0
"""How long the ledger is trusted, unless the mode must look more often."""

MOST_PASSES = 4
"""Effects may teach something that changes what is wanted; more often than this is a loop."""

ConntrackCleaner: TypeAlias = Callable[[Family, StaleRules], Awaitable[int]]
"""Deletes the flows these rules call stale; returns how many."""


class Listener(Protocol):
    """Hears about the engine's life: metrics, health, service health ports."""

    def sync_requested(self, family: Family) -> None: ...

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None: ...


class EngineTimes(Struct, frozen=True):
    """How often rounds may and must happen."""

    min_seconds: float = 1.0
    retry_seconds: float = 30.0
    max_seconds: float = FULL_SYNC_SECONDS
    full_seconds: float = FULL_SYNC_SECONDS
    """How long the ledger is trusted before a round reads the kernel again."""


class _Tally(Struct):
    """What a round has done so far."""

    changes: int = 0
    batches: int = 0
    bytes_sent: int = 0
    failures: list[Failure] = field(default_factory=list)


class Engine:
    """Rounds for one family and mode."""

    def __init__(
        self,
        backend: Backend,
        node: NodeFacts,
        *,
        clock: Clock,
        listener: Listener,
        clean_conntrack: ConntrackCleaner,
        times: EngineTimes | None = None,
    ) -> None:
        times = times or EngineTimes()
        self.family = backend.family
        self.pipeline = Pipeline(backend, node)
        self.backend = backend
        self._clock = clock
        self._listener = listener
        self._clean_conntrack = clean_conntrack
        self._runner = Runner(
            f"{self.family.value} sync",
            min_seconds=times.min_seconds,
            retry_seconds=times.retry_seconds,
            max_seconds=times.max_seconds,
        )
        self._wake = asyncio.Event()
        self._is_synced = False
        self._is_unknown = True
        self._is_read_asked = False
        self._drift = ""
        self._last_full = float("-inf")
        self._full_seconds = times.full_seconds
        self._tick_at = float("inf")
        self._stale_candidates: list[PlanChange] = []
        self._trigger_times: list[float] = []

    # --- what others tell the engine ---

    def mark_synced(self) -> None:
        """Services and slices are both listed: from now on the kernel may be touched."""
        self._is_synced = True
        self.request()

    def request(self, *, full: bool = False) -> None:
        """Something changed; a round is due as soon as the pause allows."""
        self._is_read_asked = self._is_read_asked or full
        if not self._is_synced:
            return
        self._listener.sync_requested(self.family)
        self._runner.request()
        self._wake.set()

    def set_node(self, node: NodeFacts) -> None:
        if self.pipeline.set_node(node):
            self.request()

    def report_drift(self, what: str) -> None:
        """Somebody else changed what is ours."""
        self._drift = what
        self.request(full=True)

    # --- the loop ---

    async def run(self) -> None:
        """Rounds until cancelled."""
        self._runner.start(self._clock.monotonic())
        while True:
            await self._wait()
            if self._tick_at <= self._clock.monotonic():
                await self._tick()
            if self._is_synced and self._runner.due_at() <= self._clock.monotonic():
                await self.round()

    async def _wait(self) -> None:
        due = self._runner.due_at() if self._is_synced else float("inf")
        delay = min(due, self._tick_at) - self._clock.monotonic()
        self._wake.clear()
        if delay <= 0:
            return
        try:
            await asyncio.wait_for(self._wake.wait(), None if delay == float("inf") else delay)
        except TimeoutError:
            return

    async def _tick(self) -> None:
        delay = await self.backend.tick(self._clock.monotonic())
        self._tick_at = float("inf") if delay is None else self._clock.monotonic() + delay

    async def round(self) -> RoundReport:
        """One pass: bring the kernel to what the facts call for, and say what happened."""
        self._runner.begin()
        started = self._clock.monotonic()
        is_full = self._is_read_due(started)
        report = await self._attempt(started, is_full=is_full)
        finished = self._clock.monotonic()
        if report.is_success and is_full:
            self._last_full = finished
        self._runner.end(finished, is_success=report.is_success)
        await self._listener.round_finished(report, self.pipeline)
        await self._tick()
        return report

    def _is_read_due(self, now: float) -> bool:
        if self._is_unknown or self._is_read_asked:
            return True
        return now - self._last_full >= self._full_seconds

    async def _attempt(self, started: float, *, is_full: bool) -> RoundReport:
        tally = _Tally()
        drift, self._drift = self._drift, ""
        drifted_items = 0
        # Trust is suspended until every effect is known: a cancelled round must re-read. Whoever
        # asks for a re-read from here on saw something this round may have missed.
        self._is_unknown, self._is_read_asked = True, False
        try:
            if is_full:
                drifted_items = await self._read_kernel()
            recomputed = self.pipeline.recompute()
            self._remember(recomputed)
            await self._apply_all(tally)
            self._is_unknown = bool(tally.failures)
        except KernelError as error:
            tally.failures.append(Failure("", str(error)))
            recomputed = Recomputed(0, (), {})
            if isinstance(error, Drifted) and not is_full:
                # Only our belief was wrong: look again at once, not after the retry interval.
                self._runner.request()
        return await self._report(
            RoundReport(
                family=self.family,
                is_full=is_full,
                finished_at=self._clock.time(),
                duration_seconds=self._clock.monotonic() - started,
                services=recomputed.services,
                changes=tally.changes,
                batches=tally.batches,
                bytes_sent=tally.bytes_sent,
                drifted_items=drifted_items,
                drift=drift,
                failures=tuple(tally.failures),
            )
        )

    def _remember(self, recomputed: Recomputed) -> None:
        """Kept until a round succeeds, so that a failure loses neither."""
        self._stale_candidates += recomputed.udp_changes
        for times in recomputed.trigger_times.values():
            self._trigger_times += times

    async def _read_kernel(self) -> int:
        """Believe what the kernel says; how many of our items were not as believed."""
        drifted = 0
        for sink in self.backend.sinks:
            found = await sink.read()
            drifted += self.pipeline.ledger.resync(found, _belongs_to(sink))
        return drifted if self._last_full > float("-inf") else 0

    # --- applying ---

    async def _apply_all(self, tally: _Tally) -> None:
        await self._apply_pass(tally)
        for _ in range(MOST_PASSES):
            owners = self.backend.unsettled()
            if not owners:
                return
            self.pipeline.rerender(owners)
            await self._apply_pass(tally)

    async def _apply_pass(self, tally: _Tally) -> None:
        """Additions forward over the sinks, removals backward; the last sink takes both at once."""
        *earlier, last = self.backend.sinks
        for sink in earlier:
            await self._apply(sink, self._changes(sink, _is_upsert), tally)
        await self._apply(last, self._changes(last, _is_any), tally)
        for sink in reversed(earlier):
            await self._apply(sink, self._changes(sink, _is_removal), tally)

    def _changes(self, sink: Sink, wants: Callable[[Change], bool]) -> list[Change]:
        return self.pipeline.changes(sink.item_types, wants=wants)

    async def _apply(self, sink: Sink, changes: Sequence[Change], tally: _Tally) -> None:
        if not changes:
            return
        for batch in sink.compile(changes):
            tally.batches += 1
            tally.bytes_sent += batch.size
            try:
                await sink.apply(batch)
            except Rejected as error:
                await self._isolate(sink, batch.changes, error, tally)
            else:
                tally.changes += len(batch.changes)
                self.pipeline.ledger.confirm(batch.changes)

    async def _isolate(
        self, sink: Sink, changes: Sequence[Change], error: Rejected, tally: _Tally
    ) -> None:
        """Halve by owner until the one that is refused stands alone, and is named."""
        owners = list(dict.fromkeys(change.owner for change in changes))
        if len(owners) < 2:
            tally.failures.append(Failure(_owner_text(owners), str(error)))
            return
        middle = len(owners) // 2
        for half in (owners[:middle], owners[middle:]):
            await self._apply(sink, _of_owners(changes, half), tally)

    # --- after applying ---

    async def _report(self, report: RoundReport) -> RoundReport:
        measures = tuple(self.backend.measures())
        if not report.is_success:
            return replace(report, measures=measures)
        latencies = tuple(report.finished_at - moment for moment in self._trigger_times)
        self._trigger_times.clear()
        seconds, deleted = await self._forget_stale_flows()
        return replace(
            report,
            measures=measures,
            programming_latencies=latencies,
            no_local_internal=self.pipeline.no_local_internal,
            no_local_external=self.pipeline.no_local_external,
            conntrack_seconds=seconds,
            conntrack_deleted=deleted,
        )

    async def _forget_stale_flows(self) -> tuple[float | None, int]:
        changes, self._stale_candidates = self._stale_candidates, []
        rules = self.backend.stale_flows(changes, self.pipeline.node)
        if not rules:
            return None, 0
        started = self._clock.monotonic()
        deleted = await self._clean_conntrack(self.family, rules)
        return self._clock.monotonic() - started, deleted


def _belongs_to(sink: Sink) -> Callable[[object], bool]:
    return lambda item: isinstance(item, sink.item_types)


def _is_any(change: Change) -> bool:
    return True


def _is_upsert(change: Change) -> bool:
    return change.new is not None


def _is_removal(change: Change) -> bool:
    return change.new is None


def _of_owners(changes: Sequence[Change], owners: Collection[object]) -> list[Change]:
    wanted = set(owners)
    return [change for change in changes if change.owner in wanted]


def _owner_text(owners: Sequence[object]) -> str:
    return ", ".join(str(owner) for owner in owners if owner is not None)
