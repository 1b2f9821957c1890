"""Stand-ins for what surrounds an engine in the daemon, for running one outside of it.

Offline commands and benchmarks use the daemon's own intake and engines, but have no metrics, no
health checks and no flows to delete. What is here takes those places and does nothing, except
that it keeps the reports of rounds and counts rejected objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kubeproxy.api import objects
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import AnyFragment, AnyItem, AnySink, AnyValue, Backend, Owner
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.sync.report import RoundReport


class IgnoreRounds:
    """A `RoundListener` without effect. Keeps the reports."""

    def __init__(self) -> None:
        self.reports: list[RoundReport] = []

    def sync_requested(self, family: Family) -> None: ...

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None:
        self.reports.append(report)


class IgnoreEvents:
    """The intake's `Counters` and `NodeListener` without effect. Counts rejected objects."""

    def __init__(self) -> None:
        self.rejected = 0

    def service_event(self, pending: int) -> None: ...

    def slice_event(self, pending: int) -> None: ...

    def object_rejected(self, kind: str) -> None:
        self.rejected += 1

    def node_changed(self, node: objects.Node) -> None: ...

    def node_deleted(self) -> None: ...


class PlanOnlyBackend(Backend[AnyItem, AnyValue, None]):
    """A mode that installs nothing, for looking at plans."""

    @property
    def sinks(self) -> Sequence[AnySink]:
        return ()

    def scaffold(self, node: NodeFacts) -> AnyFragment:
        return {}

    def render(self, plan: ServicePlan, node: NodeFacts) -> AnyFragment:
        return {}

    def describe(self, fragments: Mapping[Owner, AnyFragment]) -> str:
        return ""
