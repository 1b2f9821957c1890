"""The quick variant: does the work for one change grow with the size of the cluster?

It counts instead of timing, so it gives the same result on any machine: steps of Python (bytecode),
kernel calls (batches), bytes and items handed to the kernel, services planned and rendered, full
reads of the kernel, for one change in a small and in a large cluster. In modes that learn which
element another process deleted, such a loss is one of the changes. Every mode runs in the daemon's
own intake and engine, with sinks that compile everything and apply nothing. What a mode's `apply`
costs is left to its kernel tests and the side-by-side benchmark.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

import msgspec

from kpctl.bench.cluster import SPARE, service_json, service_name, slice_json, slice_name
from kpctl.bench.facts import NODE, node
from kpctl.bench.records import Size
from kpctl.look.quiet import IgnoreEvents, IgnoreRounds
from kubeproxy.api import objects
from kubeproxy.api.source import Delete, Event, Kind, Synced, Upsert
from kubeproxy.config.flags import Extensions
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.inspection.journal import Journal
from kubeproxy.modes.base import (
    AnyBackend,
    AnyChange,
    AnyFragment,
    AnyItem,
    AnySink,
    AnyValue,
    Backend,
    Batch,
    Owner,
)
from kubeproxy.modes.netfilter.compile.restore import RestoreInput
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.registry import load_mode
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine, EngineTimes
from kubeproxy.sync.intake import Intake
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.sync.report import RoundReport

TraceFunction: TypeAlias = Callable[[FrameType, str, object], "TraceFunction | None"]

TOLERANCE = 1.1
"""A larger dictionary may need another probe or two; anything that scales is far beyond this."""


LOST = "element lost"
"""The change that another process makes."""


class Cost(msgspec.Struct, frozen=True, gc=False):
    """What one change took, counted."""

    python_steps: int
    kernel_calls: int
    bytes_sent: int
    items: int
    plans: int
    renders: int
    full_reads: int = 0


COUNTS = Cost.__struct_fields__


class GrowthRow(msgspec.Struct, frozen=True):
    """One kind of change in one mode, at several sizes."""

    mode: str
    change: str
    costs: tuple[tuple[Size, Cost], ...]

    def grown(self) -> tuple[str, ...]:
        """The counts that are larger in the largest cluster than in the smallest."""
        (small_size, small), (large_size, large) = self.costs[0], self.costs[-1]
        return tuple(
            f"{self.mode}, {self.change}: {name.replace('_', ' ')} grew from "
            f"{getattr(small, name)} at {small_size} to {getattr(large, name)} at {large_size}"
            for name in COUNTS
            if getattr(large, name) > getattr(small, name) * TOLERANCE
        )


class DrySink:
    """Compiles like the sink it stands for, and leaves the kernel alone."""

    def __init__(self, sink: AnySink) -> None:
        self.name = sink.name
        self.item_types = sink.item_types
        self.is_transactional = sink.is_transactional
        self._sink = sink

    async def read(self) -> Mapping[AnyItem, AnyValue]:
        return {}

    def compile(self, changes: Sequence[AnyChange]) -> Iterator[Batch[object]]:
        yield from self._sink.compile(changes)

    async def apply(self, batch: Batch[object]) -> None:
        """Do nothing but record: only what is compiled counts."""
        # What the next batch says depends on what the shared chains hold after this one.
        if isinstance(self._sink, NetfilterSink) and isinstance(batch.payload, RestoreInput):
            self._sink.record(batch.payload)


class DryBackend(Backend[AnyItem, AnyValue, object]):
    """A mode that decides everything and does nothing."""

    def __init__(self, inner: AnyBackend) -> None:
        super().__init__(inner.family, inner.options)
        self._inner = inner
        self._sinks = tuple(DrySink(sink) for sink in inner.sinks)

    @property
    def sinks(self) -> Sequence[AnySink]:
        return self._sinks

    @property
    def reads_single_items(self) -> bool:
        """Can the mode ask the kernel for single items?"""
        return type(self._inner).read_some is not Backend.read_some

    async def read_some(
        self, items: Collection[AnyItem]
    ) -> Mapping[AnyItem, AnyValue | None] | None:
        """Whatever is asked for is gone."""
        return dict.fromkeys(items) if self.reads_single_items else None

    def scaffold(self, node: NodeFacts) -> AnyFragment:
        return self._inner.scaffold(node)

    def render(self, plan: ServicePlan, node: NodeFacts) -> AnyFragment:
        return self._inner.render(plan, node)

    def describe(self, fragments: Mapping[Owner, AnyFragment]) -> str:
        return self._inner.describe(fragments)


class _OwnEvents(IgnoreEvents):
    """Fails on a rejected object: every object here is the benchmark's own."""

    def object_rejected(self, kind: str) -> None:
        raise ValueError(f"the benchmark's own {kind} was rejected")


class _Journalled(IgnoreRounds):
    """Writes rounds down, as the daemon does for those who look into it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None:
        self._journal.round_finished(report)


class CountedMode:
    """One mode in a cluster of one size, in this process.

    With a journal, what happens is written down for people, as in a daemon that has its socket.
    """

    def __init__(self, backend: AnyBackend, size: Size, journal: Journal | None = None) -> None:
        self.size = size
        self.engine = Engine(
            backend,
            node(),
            clock=SystemClock(),
            listener=_Journalled(journal) if journal is not None else IgnoreRounds(),
            times=EngineTimes(min_seconds=0),
        )
        events = _OwnEvents()
        self._intake = Intake(
            {Family.IPV4: self.engine},
            NODE,
            counters=events,
            node_listener=events,
            started_at=0,
            changes=journal,
        )

    async def load(self) -> RoundReport:
        """Send everything at once, as at a cold start."""
        for index in range(self.size.services):
            self._intake.send(service_event(index))
            self._intake.send(slice_event(index, range(self.size.endpoints)))
        for kind in Kind:
            self._intake.send(Synced(kind))
        return await self.engine.round()

    async def send(self, *events: Event) -> RoundReport:
        """Send these events and run the round they cause."""
        for event in events:
            self._intake.send(event)
        report = await self.engine.round()
        if not report.is_success:
            raise ValueError(f"a round of the benchmark failed: {report.failure_text}")
        return report

    async def cost_of(self, *events: Event, lost: Collection[AnyItem] = ()) -> Cost:
        """Send these events, run the round they cause, and count its cost.

        `lost` are items that another process deleted.
        """
        pipeline = self.engine.pipeline
        planned, rendered = pipeline.planned, pipeline.rendered
        with counting_steps() as steps:
            if lost:
                self.engine.report_drift("element deleted", lost)
            report = await self.send(*events)
        return Cost(
            python_steps=steps(),
            kernel_calls=report.batches,
            bytes_sent=report.bytes_sent,
            items=report.changes,
            plans=pipeline.planned - planned,
            renders=pipeline.rendered - rendered,
            full_reads=int(report.is_full),
        )

    def item_of(self, index: int) -> AnyItem:
        """One of the items of a Service."""
        wanted = service_name(index)
        fragments = self.engine.pipeline.fragments()
        found = next(owner for owner in fragments if owner.service.name == wanted)
        return next(iter(fragments[found]))


def service_event(index: int) -> Upsert:
    found = msgspec.convert(service_json(index), objects.Service)
    return Upsert(Kind.SERVICE, found)


def slice_event(index: int, slots: Sequence[int]) -> Upsert:
    found = msgspec.convert(slice_json(index, slots), objects.EndpointSlice)
    return Upsert(Kind.ENDPOINT_SLICE, found)


@contextmanager
def counting_steps() -> Iterator[Callable[[], int]]:
    """Count bytecode executed in this thread. A loop then counts even if it calls nothing."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    # A collection in the middle would run finalisers that have nothing to do with the change.
    gc.collect()
    gc.disable()
    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: count
    finally:
        sys.settrace(previous)
        gc.enable()


def _changes(size: Size) -> Sequence[tuple[str, tuple[Event, ...]]]:
    """The changes that are counted, in an order that leads back to the beginning."""
    middle, new = size.services // 2, size.services
    kept = tuple(range(1, size.endpoints))
    return (
        ("endpoint replaced", (slice_event(middle, (SPARE, *kept)),)),
        ("endpoint added", (slice_event(middle, (SPARE, 0, *kept)),)),
        ("endpoint removed", (slice_event(middle, (0, *kept)),)),
        ("Service added", (slice_event(new, (0, *kept)), service_event(new))),
        (
            "Service removed",
            (
                Delete(Kind.SERVICE, "default", service_name(new)),
                Delete(Kind.ENDPOINT_SLICE, "default", slice_name(new)),
            ),
        ),
    )


async def measure_costs(
    backend: AnyBackend, size: Size, journal: Journal | None = None
) -> Mapping[str, Cost]:
    """The cost of each kind of change in a cluster of this size."""
    counted = CountedMode(backend, size, journal)
    await counted.load()
    # Everything happens twice: what is computed once per process must not count for one size only.
    for _ in range(2):
        found = {name: await counted.cost_of(*events) for name, events in _changes(size)}
        if isinstance(backend, DryBackend) and backend.reads_single_items:
            lost = [counted.item_of(size.services // 2)]
            found[LOST] = await counted.cost_of(lost=lost)
    return found


def default_backend(name: str) -> AnyBackend:
    """A mode for IPv4 with the options of a daemon without flags."""
    mode = load_mode(name)
    options = mode.options(KubeProxyConfiguration(mode=name), Extensions())
    return mode.create(Family.IPV4, options)


def mode_growth(mode: str, sizes: Sequence[Size]) -> tuple[GrowthRow, ...]:
    """Measure the cost of each kind of change at each size, in one mode."""

    async def measure(size: Size) -> Mapping[str, Cost]:
        backend = default_backend(mode)
        try:
            return await measure_costs(DryBackend(backend), size)
        finally:
            await backend.close()

    found = [(size, asyncio.run(measure(size))) for size in sorted(sizes)]
    return tuple(
        GrowthRow(mode, change, tuple((size, costs[change]) for size, costs in found))
        for change in found[0][1]
    )
