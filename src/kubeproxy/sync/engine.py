"""One family's loop: wait until due, recompute, apply to the kernel, report.

The engine owns the order of effects and the policy for errors; what to do is decided elsewhere.

    one round    read the kernel   at start, after a failure, on drift, hourly; else not at all.
                                   Of drift whose items are known only these are read
                 recompute         facts → plans → fragments → ledger (`pipeline`; no waiting)
                 apply             additions over the sinks forward, removals backward
                 report            metrics, health, logs; which service ports may have stale flows

    errors       Rejected   split by owner until the culprit stands alone; the rest goes through,
                            and the round is done. The culprit is held back and retried (`refused`)
                 Drifted    re-read the kernel in the next round, which is due at once
                 other      the round failed; what the kernel holds is unknown: re-read and retry

Nothing is replayed after a failure: the difference is computed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from kubeproxy.errors import Drifted, KernelError, Rejected, fault_text
from kubeproxy.facts.endpoint import SliceFacts
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.base import (
    SCAFFOLD,
    AnyBackend,
    AnyChange,
    AnyFragment,
    AnyItem,
    AnySink,
    Owner,
)
from kubeproxy.plan.conntrack import NO_FLOWS, has_flow_rules
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.edits import edits_of
from kubeproxy.sync.flows import FlowCleaner
from kubeproxy.sync.pipeline import Pipeline, PlanListener, Recomputed, sink_accepts
from kubeproxy.sync.refused import RefusedOwners
from kubeproxy.sync.report import Refusal, RoundReport
from kubeproxy.sync.runner import Runner

FULL_SYNC_SECONDS = 3600.0
"""How long the ledger is trusted, unless the mode must look more often."""

MOST_PASSES = 4
"""What is learned from effects may change what is wanted; more often than this is a loop."""

MOST_SHOWN = 20
"""How many items that another process changed are shown one by one."""

MOST_DOUBTFUL = 10_000
"""How many single items are read before a read of everything is the better way."""

MOST_DRIFT_TEXT = 500
"""How much is kept of what several watchers notice before a round repairs it."""

_NOTHING: AnyFragment = {}


class RoundListener(Protocol):
    """Receives requests for rounds and their outcome, for metrics, health and logs."""

    def sync_requested(self, family: Family) -> None: ...

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None: ...


class EngineTimes(Struct, frozen=True):
    """How often rounds may and must happen."""

    min_seconds: float = 1.0
    retry_seconds: float = 30.0
    max_seconds: float = FULL_SYNC_SECONDS
    full_seconds: float = FULL_SYNC_SECONDS
    """How long the ledger is trusted before a round reads the kernel again."""


class _Progress(Struct):
    """What a round has done so far."""

    changes: int = 0
    batches: int = 0
    bytes_sent: int = 0
    refused: list[Refusal] = field(default_factory=list)
    held_back: Collection[Owner | None] = ()
    is_certain: bool = True
    """Is the state of every item known, also of those that were refused?"""


class _Drift(Struct, frozen=True):
    """What a read of the kernel found to differ from what was believed."""

    items: int = 0
    lines: tuple[str, ...] = ()


class Engine:
    """Rounds for one family and mode."""

    def __init__(
        self,
        backend: AnyBackend,
        node: NodeFacts,
        *,
        clock: Clock,
        listener: RoundListener,
        flows: FlowCleaner | None = None,
        times: EngineTimes | None = None,
        plan_listeners: Sequence[PlanListener] = (),
    ) -> None:
        """`flows` deletes those that become stale; without it they are left alone."""
        times = times or EngineTimes()
        self.family = backend.family
        self.pipeline = Pipeline(backend, node, listeners=plan_listeners)
        self.backend = backend
        self._clock = clock
        self._listener = listener
        self._flows = flows
        self._runner = Runner(
            f"{self.family.value} sync",
            min_seconds=times.min_seconds,
            retry_seconds=times.retry_seconds,
            max_seconds=times.max_seconds,
        )
        self._wake = asyncio.Event()
        self._is_synced = False
        self._kernel_state_unknown = True
        self._reread_requested = False
        self._doubtful: set[AnyItem] = set()
        """What another process may have changed, as long as no read of everything is due."""
        self._drift = ""
        self._last_full = self._read_at = float("-inf")
        self._full_seconds = times.full_seconds
        self._tick_at = float("inf")
        self._refused = RefusedOwners(self._wanted_by)
        self._has_failed = False
        # One entry per Service at most, however long nothing succeeds.
        self._trigger_times: dict[ServiceName, tuple[float, ...]] = {}

    # --- facts, from the intake ---

    @property
    def node(self) -> NodeFacts:
        return self.pipeline.node

    @property
    def service_changes_pending(self) -> int:
        return self.pipeline.store.service_changes_pending

    @property
    def slice_changes_pending(self) -> int:
        return self.pipeline.store.slice_changes_pending

    def set_service(self, facts: ServiceFacts) -> bool:
        """Hold this Service. Return whether it differs from what was held."""
        return self._request_if(self.pipeline.store.set_service(facts), facts.name)

    def delete_service(self, name: ServiceName) -> bool:
        """Forget this Service. Return whether it was known."""
        return self._request_if(self.pipeline.store.delete_service(name), name)

    def set_slice(self, facts: SliceFacts, *, trigger_time: float | None) -> bool:
        """Hold this EndpointSlice. Return whether it differs from what was held."""
        store = self.pipeline.store
        changed = store.set_slice(facts, trigger_time=trigger_time)
        return self._request_if(changed, facts.service)

    def delete_slice(self, namespace: str, name: str) -> bool:
        """Forget this EndpointSlice. Return whether it was known."""
        held = self.pipeline.store.slice(namespace, name)
        changed = self.pipeline.store.delete_slice(namespace, name)
        return self._request_if(changed, held.service if held else None)

    def set_failing(self, name: ServiceName, failing: Mapping[str, str]) -> bool:
        """Hold which endpoints fail their check. Return whether that differs from before."""
        return self._request_if(self.pipeline.store.set_failing(name, failing), name)

    def slice(self, namespace: str, name: str) -> SliceFacts | None:
        """Return the slice that is held under this name."""
        return self.pipeline.store.slice(namespace, name)

    def set_node(self, node: NodeFacts) -> bool:
        """Hold these facts about the node. Return whether they differ from what was held."""
        if node.zone != self.node.zone and not self._is_synced:
            # Of all requests before the lists are complete, health counts this one, as upstream:
            # a proxy that then gets no list is not healthy.
            self._listener.sync_requested(self.family)
        return self._request_if(self.pipeline.set_node(node))

    def _request_if(self, changed: bool, service: ServiceName | None = None) -> bool:
        if changed:
            self.request(service=service)
        return changed

    def refusals(self) -> list[Refusal]:
        """Everything that is not programmed as it should be at present, and why."""
        faults = [Refusal(*fault) for fault in self.pipeline.faults.items()]
        return [*faults, *(Refusal(*refused) for refused in self._refused.reasons())]

    @property
    def flows_owed(self) -> int:
        """Service ports whose stale flows may not be deleted yet."""
        return len(self._flows.debts) if self._flows else 0

    # --- requests for rounds ---

    def mark_synced(self) -> None:
        """Allow kernel writes from now on: Services and slices are both listed."""
        self._is_synced = True
        self.request()

    def request(self, *, full: bool = False, service: ServiceName | None = None) -> None:
        """Request a round as soon as the pause allows: that of the Service, if one changed."""
        self._reread_requested = self._reread_requested or full
        if not self._is_synced:
            return
        self._listener.sync_requested(self.family)
        self._runner.request(service)
        self._wake.set()

    def report_drift(
        self,
        what: str,
        items: Collection[AnyItem] | None = None,
        noticed_at: float | None = None,
    ) -> None:
        """Request a round that re-reads the kernel: another process changed what is ours.

        `items` are all that it may have changed, if that is known. What was noticed before the
        kernel was last read is known already: a refused batch may have led to that.
        """
        if what not in self._drift and len(self._drift) < MOST_DRIFT_TEXT:
            self._drift = f"{self._drift}; {what}" if self._drift else what
        if noticed_at is not None and noticed_at < self._read_at:
            return
        self._doubtful.update(items or ())
        self.request(full=items is None or len(self._doubtful) > MOST_DOUBTFUL)

    def doubt_flows(self) -> None:
        """Request a look at all flows: rules that are gone now may have begun some of them."""
        if self._flows is not None:
            for plan in self.pipeline.plans():
                if has_flow_rules(plan):
                    self._flows.debts.change(plan.id, NO_FLOWS)
            self.request()

    # --- the loop ---

    async def run(self) -> None:
        """Run rounds until cancelled."""
        self._runner.start(self._clock.monotonic())
        while True:
            await self._wait()
            if self._tick_at <= self._clock.monotonic():
                await self._tick()
            if self._is_synced and self._due_at() <= self._clock.monotonic():
                await self.round()

    def _due_at(self) -> float:
        """When the next round is due. After a failed one refused owners wait for its retry, too."""
        due = self._runner.due_at()
        return due if self._has_failed else min(due, self._refused.next_retry())

    async def _wait(self) -> None:
        due = self._due_at() if self._is_synced else float("inf")
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
        """Bring the kernel to what the facts call for. Return what happened."""
        started = self._clock.monotonic()
        self._runner.begin(started)
        with self._flows.turns.round() if self._flows else nullcontext():
            report = await self._attempt(started, is_full=self._is_read_due(started))
        finished = self._clock.monotonic()
        if report.is_done and report.is_full:
            self._last_full = finished
        self._has_failed = not report.is_done
        self._runner.end(finished, is_success=report.is_done)
        await self._listener.round_finished(report, self.pipeline)
        await self._tick()
        return report

    def _is_read_due(self, now: float) -> bool:
        if self._kernel_state_unknown or self._reread_requested:
            return True
        return now - self._last_full >= self._full_seconds

    async def _attempt(self, started: float, *, is_full: bool) -> RoundReport:
        progress = _Progress()
        drift, self._drift = self._drift, ""
        drift_found, error = _Drift(), ""
        was_certain = not self._kernel_state_unknown
        # Trust is suspended until every effect is known: a cancelled round must re-read. A re-read
        # requested from here on concerns something this round may have missed.
        self._kernel_state_unknown, self._reread_requested = True, False
        doubtful, self._doubtful = self._doubtful, set()
        try:
            if doubtful and not is_full:
                some = await self._read_some(doubtful)
                is_full, drift_found = some is None, some or drift_found
            if is_full:
                found = await self._read_kernel()
                # After a doubtful end the differences are our own doing.
                drift_found = found if was_certain else drift_found
            recomputed = self.pipeline.recompute()
            self._remember(recomputed)
            progress.refused += [Refusal(*fault) for fault in recomputed.faults.items()]
            progress.held_back = self._refused.held_back(started)
            await self._apply_all(progress)
            self._forget_settled()
            self._kernel_state_unknown = not progress.is_certain
        except KernelError as failure:
            error = str(failure)
            recomputed = Recomputed()
            if isinstance(failure, Drifted) and not is_full:
                # Only our belief was wrong: look again at once, not after the retry interval.
                self._runner.request()
        return self._report(
            RoundReport(
                family=self.family,
                is_full=is_full,
                finished_at=self._clock.time(),
                duration_seconds=self._clock.monotonic() - started,
                services=recomputed.services,
                changes=progress.changes,
                batches=progress.batches,
                bytes_sent=progress.bytes_sent,
                drifted_items=drift_found.items,
                drifted_lines=drift_found.lines,
                drift=drift,
                error=error,
                refused=tuple(progress.refused),
                held_back=len(self._refused) + len(self.pipeline.faults),
            )
        )

    def _remember(self, recomputed: Recomputed) -> None:
        """Keep what flows were like, and trigger times, until their owner is programmed."""
        if self._flows is not None:
            for owner, before in recomputed.flow_changes:
                former = self.backend.flow_rules(before, self.pipeline.node)
                self._flows.debts.change(owner, former)
        for name, times in recomputed.trigger_times.items():
            # Of a Service that waits already the oldest change is the one that counts.
            self._trigger_times.setdefault(name, times)

    async def _read_some(self, items: Collection[AnyItem]) -> _Drift | None:
        """Re-read these items. Return what differed, or None if everything must be read."""
        try:
            found = await self.backend.read_some(items)
        except Exception as fault:  # as in _read_kernel
            raise _as_kernel_error(fault) from fault
        if found is None:
            return None
        differing = self.pipeline.ledger.resync_some(found)
        return self._shown(
            differing, self.pipeline.first_differences(found.__contains__, MOST_SHOWN)
        )

    async def _read_kernel(self) -> _Drift:
        """Re-read the kernel and reset the ledger to it. Return what differed."""
        started = self._clock.monotonic()
        items, shown = 0, list[AnyChange]()
        for sink in self.backend.sinks:
            try:
                found = await sink.read()
            except Exception as fault:  # whatever another program has put there: the round failed
                raise _as_kernel_error(fault) from fault
            differing = self.pipeline.resync(sink, found)
            items += differing
            if differing and self._last_full > float("-inf"):
                most = MOST_SHOWN - len(shown)
                shown += self.pipeline.first_differences(sink_accepts(sink), most)
        self._read_at = started
        return self._shown(items, shown)

    def _shown(self, items: int, changes: Sequence[AnyChange]) -> _Drift:
        edits = edits_of(self.backend, changes, "not ours")
        return _Drift(items, tuple(line for edit in edits for line in edit.lines()))

    # --- applying ---

    async def _apply_all(self, progress: _Progress) -> None:
        await self._apply_pass(progress)
        for _ in range(MOST_PASSES):
            owners = self.backend.unsettled()
            if not owners:
                return
            self.pipeline.rerender(owners)
            await self._apply_pass(progress)

    async def _apply_pass(self, progress: _Progress) -> None:
        """Apply additions forward over the sinks and removals backward; the last takes both."""
        *earlier, last = self.backend.sinks
        for sink in earlier:
            await self._apply(sink, self._changes(sink, progress, additions=True), progress)
        await self._apply(last, self._changes(last, progress), progress)
        for sink in reversed(earlier):
            await self._apply(sink, self._changes(sink, progress, additions=False), progress)

    def _changes(
        self, sink: AnySink, progress: _Progress, *, additions: bool | None = None
    ) -> list[AnyChange]:
        """What the sink must change now: all, or only additions, or only removals."""
        held_back = progress.held_back
        return [
            change
            for change in self.pipeline.changes(sink)
            if (additions is None or (change.new is not None) is additions)
            and not (held_back and change.owner in held_back)
        ]

    async def _apply(
        self, sink: AnySink, changes: Sequence[AnyChange], progress: _Progress
    ) -> None:
        if not changes:
            return
        try:
            await self._apply_batches(sink, changes, progress)
        except KernelError:
            raise
        except Exception as fault:
            # A fault of ours counts as a refusal: the Service that brings it out is found the same
            # way. What took effect of the batch is unknown.
            progress.is_certain = False
            pending = {change.item for change in self.pipeline.changes(sink)}
            left = [change for change in changes if change.item in pending]
            await self._isolate(sink, left, Rejected(fault_text(fault)), progress)

    async def _apply_batches(
        self, sink: AnySink, changes: Sequence[AnyChange], progress: _Progress
    ) -> None:
        for batch in sink.compile(changes):
            progress.batches += 1
            progress.bytes_sent += batch.size
            try:
                await sink.apply(batch)
            except Rejected as error:
                await self._isolate(sink, batch.changes, error, progress)
            else:
                progress.changes += len(batch.changes)
                self.pipeline.ledger.confirm(batch.changes)

    async def _isolate(
        self, sink: AnySink, changes: Sequence[AnyChange], error: Rejected, progress: _Progress
    ) -> None:
        """Halve by owner until the one that is refused stands alone and can be named."""
        owners = list(dict.fromkeys(change.owner for change in changes))
        if len(owners) < 2:
            self._refuse(sink, owners[0], error, progress)
            return
        middle = len(owners) // 2
        for half in (owners[:middle], owners[middle:]):
            await self._apply(sink, _of_owners(changes, half), progress)

    def _refuse(
        self, sink: AnySink, owner: Owner | None, error: Rejected, progress: _Progress
    ) -> None:
        """Hold one owner back. Without the scaffold nothing works: its refusal fails the round."""
        if owner == SCAFFOLD:
            raise KernelError(str(error), errno=error.errno) from error
        progress.refused.append(Refusal(owner, str(error)))
        progress.held_back = {*progress.held_back, owner}
        progress.is_certain = progress.is_certain and sink.is_transactional
        self._refused.add(owner, self._clock.monotonic(), str(error))

    def _forget_settled(self) -> None:
        """Forget refusals of owners that were accepted, or want nothing any more."""
        if self._refused:
            waiting = {change.owner for change in self.pipeline.ledger.difference()}
            self._refused.keep(waiting)

    def _wanted_by(self, owner: Owner | None) -> AnyFragment:
        # One and the same object for every owner that wants nothing.
        return (self.pipeline.ledger.fragment(owner) if owner else _NOTHING) or _NOTHING

    # --- after applying ---

    def _report(self, report: RoundReport) -> RoundReport:
        measures = tuple(self.backend.measures())
        if not report.is_done:
            return replace(report, measures=measures)
        latencies = self._take_latencies(report.finished_at)
        self._hand_over_flows()
        return replace(
            report,
            measures=measures,
            programming_latencies=latencies,
            no_local_internal=self.pipeline.no_local_internal,
            no_local_external=self.pipeline.no_local_external,
        )

    def _take_latencies(self, finished_at: float) -> tuple[float, ...]:
        """How long the changes took that are programmed now; refused Services go on waiting.

        Trigger times are of another machine's clock, and ours may be set back: never less than 0.
        """
        waiting = {owner.service for owner in self._refused.owners() if owner is not None}
        done = [name for name in self._trigger_times if name not in waiting]
        return tuple(
            max(finished_at - time, 0.0) for name in done for time in self._trigger_times.pop(name)
        )

    def _hand_over_flows(self) -> None:
        """Hand over the service ports that are programmed now; refused ones go on waiting."""
        if self._flows is None:
            return
        waiting, node = self._refused.owners(), self.pipeline.node
        plans = {
            owner: self.pipeline.plan_of(owner)
            for owner in self._flows.debts.changing()
            if owner not in waiting
        }
        if any(plan and plan.drain_seconds is not None for plan in plans.values()):
            self._flows.debts.frontends = self.pipeline.index_frontends()
        self._flows.programmed(
            {owner: self.backend.flow_rules(plan, node) for owner, plan in plans.items()}, node
        )


def _as_kernel_error(error: Exception) -> KernelError:
    return error if isinstance(error, KernelError) else KernelError(fault_text(error))


def _of_owners(changes: Sequence[AnyChange], owners: Collection[object]) -> list[AnyChange]:
    wanted = set(owners)
    return [change for change in changes if change.owner in wanted]
