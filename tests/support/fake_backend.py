"""A mode made of dictionaries: shows what an engine does, without Linux.

The kernel is a dict that batches really change; it can refuse an item, be busy, or be changed
behind the engine's back, like the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kubeproxy.errors import KernelError, Rejected
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts, planning_facts
from kubeproxy.modes.base import (
    Backend,
    Batch,
    Change,
    Fragment,
    Item,
    ModeOptions,
    Owner,
    Sink,
    Value,
)
from kubeproxy.plan.conntrack import StaleRules
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.sync.report import RoundReport


class Listed(NamedTuple):
    """An entry of the first sink: an address that is ours."""

    address: str


class Route(NamedTuple):
    """An entry of the last sink: a frontend and where it leads."""

    address: str
    port: int
    protocol: str


class FakeKernel:
    """The state two sinks share, and what goes wrong with it."""

    def __init__(self) -> None:
        self.state: dict[Item, Value] = {}
        self.history: list[str] = []
        self.batches: list[tuple[Change, ...]] = []
        self.reads = 0
        self.refuse: Callable[[Change], bool] = lambda change: False
        self.fail: KernelError | None = None
        self.cut_after: int | None = None

    def apply(self, changes: Sequence[Change]) -> None:
        if self.cut_after is not None and len(self.batches) >= self.cut_after:
            raise KernelError("the process was cut off here")
        if self.fail is not None:
            raise self.fail
        if any(map(self.refuse, changes)):
            raise Rejected("the kernel does not like this")
        self.batches.append(tuple(changes))
        for change in changes:
            verb = "-" if change.new is None else "+"
            self.history.append(f"{verb}{type(change.item).__name__}")
            if change.new is None:
                self.state.pop(change.item, None)
            else:
                self.state[change.item] = change.new


class FakeSink:
    """One kind of item of the fake kernel."""

    def __init__(self, name: str, item_type: type, kernel: FakeKernel, batch_size: int) -> None:
        self.name = name
        self.item_types: tuple[type, ...] = (item_type,)
        self._kernel = kernel
        self._batch_size = batch_size

    async def read(self) -> Mapping[Item, Value]:
        self._kernel.reads += 1
        return {k: v for k, v in self._kernel.state.items() if isinstance(k, self.item_types)}

    def compile(self, changes: Sequence[Change]) -> Iterable[Batch]:
        for start in range(0, len(changes), self._batch_size):
            chunk = tuple(changes[start : start + self._batch_size])
            yield Batch(chunk, chunk, size=10 * len(chunk))

    async def apply(self, batch: Batch) -> None:
        self._kernel.apply(batch.changes)


class FakeBackend(Backend):
    """Every frontend becomes a route and a listed address."""

    mode = "fake"

    def __init__(
        self,
        family: Family = Family.IPV4,
        options: ModeOptions | None = None,
        *,
        kernel: FakeKernel | None = None,
        batch_size: int = 100,
    ) -> None:
        super().__init__(family, options or ModeOptions())
        self.kernel = kernel or FakeKernel()
        self._sinks = (
            FakeSink("addresses", Listed, self.kernel, batch_size),
            FakeSink("routes", Route, self.kernel, batch_size),
        )

    @property
    def sinks(self) -> Sequence[Sink]:
        return self._sinks

    def scaffold(self, node: NodeFacts) -> Fragment:
        return {Listed(address): "node" for address in node.node_port_addresses}

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        return planning_facts(node)

    def render(self, plan: ServicePlan, node: NodeFacts) -> Fragment:
        items: dict[Item, Value] = {}
        for frontend in plan.frontends:
            pool = plan.pool(frontend.pool).endpoints
            key = Route(frontend.address, frontend.port, plan.id.protocol.value)
            items[key] = (frontend.verdict.value, *(e.text for e in pool))
            if frontend.address:
                items[Listed(frontend.address)] = "service"
        return items

    def describe(self, fragments: Mapping[Owner, Fragment]) -> str:
        lines = (f"{item} = {value}" for part in fragments.values() for item, value in part.items())
        return "\n".join(lines) + "\n"


class FakeClock:
    """Time that passes when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.reports: list[RoundReport] = []
        self.requests: list[Family] = []

    def sync_requested(self, family: Family) -> None:
        self.requests.append(family)

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None:
        self.reports.append(report)


class FakeConntrack:
    """Remembers which rules it was asked to enforce."""

    def __init__(self) -> None:
        self.asked: list[StaleRules] = []

    async def __call__(self, family: Family, rules: StaleRules) -> int:
        self.asked.append(rules)
        return 1
