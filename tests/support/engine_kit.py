"""What an engine and its intake are given in tests: a clock to advance, and observers that record.

Fakes of the kernel are elsewhere: `fake_backend` and the fakes of the modes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kubeproxy.api import objects
from kubeproxy.facts.ids import Family
from kubeproxy.plan.conntrack import StaleRules
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.sync.report import RoundReport


class FakeClock:
    """A clock that stands still until a test advances it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class RecordedRounds:
    """A `RoundListener` that records requests and reports."""

    def __init__(self) -> None:
        self.reports: list[RoundReport] = []
        self.requests: list[Family] = []

    def sync_requested(self, family: Family) -> None:
        self.requests.append(family)

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None:
        self.reports.append(report)


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
    """A `ConntrackCleaner` that records the rules and reports one deleted flow each time."""

    def __init__(self) -> None:
        self.asked: list[StaleRules] = []

    async def __call__(self, family: Family, rules: StaleRules) -> int:
        self.asked.append(rules)
        return 1
