"""What an engine and its intake are given in tests: a clock to advance, and observers that record.

Fakes of the kernel are elsewhere: `fake_backend` and the fakes of the modes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from kubeproxy.api import objects
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.conntrack.table import Search, Searched
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.sync.report import FlowReport, RoundReport


class FakeClock:
    """A clock that stands still until a test advances it. Wall time can be set to another value."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.wall_offset = 0.0

    def time(self) -> float:
        return self.now + self.wall_offset

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class RecordedRounds:
    """A `RoundListener` and `FlowListener` that records requests and reports."""

    def __init__(self) -> None:
        self.reports: list[RoundReport] = []
        self.flow_reports: list[FlowReport] = []
        self.requests: list[Family] = []

    def sync_requested(self, family: Family) -> None:
        self.requests.append(family)

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None:
        self.reports.append(report)

    def flows_cleaned(self, report: FlowReport) -> None:
        self.flow_reports.append(report)


class RecordedDrifts(list[str]):
    """A `DriftListener` that records descriptions, and of the last one also the items."""

    items: Collection[Any] | None = None

    def __call__(
        self, what: str, items: Collection[Any] | None = None, noticed_at: float | None = None
    ) -> None:
        self.append(what)
        self.items = items


class RecordedEvents:
    """The intake's `Counters`: records what the metrics would have counted."""

    def __init__(self) -> None:
        self.service_events: list[int] = []
        self.slice_events: list[int] = []
        self.rejected: list[str] = []

    def service_event(self, pending: int) -> None:
        self.service_events.append(pending)

    def slice_event(self, pending: int) -> None:
        self.slice_events.append(pending)

    def object_rejected(self, kind: str) -> None:
        self.rejected.append(kind)


class RecordedNodes:
    """A `NodeListener` that records each Node object, and None for its deletion."""

    def __init__(self) -> None:
        self.seen: list[objects.Node | None] = []

    def node_changed(self, node: objects.Node) -> None:
        self.seen.append(node)

    def node_deleted(self) -> None:
        self.seen.append(None)


class FakeConntrack:
    """A `DeleteStale` over a table of flows: (protocol, original destination, reply source).

    A search ends in `error` if that is set, deletes nothing to the destinations in `refuse`, and
    waits for `hold`.
    """

    def __init__(self) -> None:
        self.flows: list[tuple[Protocol, bytes, bytes]] = []
        self.searches: list[Search] = []
        self.error = ""
        self.refuse: set[bytes] = set()
        self.hold: asyncio.Event | None = None

    async def __call__(self, search: Search) -> Searched:
        self.searches.append(search)
        if self.hold is not None:
            await self.hold.wait()
        if self.error:
            return Searched(error=self.error)
        stale = [
            (protocol, to, by)
            for protocol, to, by in self.flows
            if protocol is search.protocol and search.is_stale(to, by)
        ]
        refused = {to: "not permitted" for _, to, _ in stale if to in self.refuse}
        deleted = [flow for flow in stale if flow[1] not in refused]
        self.flows = [flow for flow in self.flows if flow not in deleted]
        return Searched(len(deleted), refused)
