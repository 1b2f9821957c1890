"""The whole way from events to a kernel of dictionaries, both families, without time or Linux.

Real intake, engines, pipelines and ledgers; fakes stand at the two ends. Another mode's backends
can be put in the place of the fake ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.support.builders import NODE, node
from tests.support.engine_kit import (
    FakeClock,
    RecordedEvents,
    RecordedNodes,
    RecordedRounds,
)
from tests.support.fake_backend import FakeBackend, FakeKernel, Item, Value

from kubeproxy.api.source import Delete, Event, Kind, Object, Synced, Upsert
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyBackend
from kubeproxy.sync.engine import Engine, EngineTimes
from kubeproxy.sync.intake import Intake
from kubeproxy.sync.pipeline import PlanListener
from kubeproxy.sync.report import RoundReport


def upsert(found: Object) -> Upsert:
    """The event that this object exists."""
    kinds = {kind.object_type: kind for kind in Kind}
    return Upsert(kinds[type(found)], found)


def delete(found: Object) -> Delete:
    """The event that this object is gone."""
    return Delete(upsert(found).kind, found.metadata.namespace, found.metadata.name)


class Spine:
    """Intake and engines of some families, each with a kernel of its own."""

    def __init__(
        self,
        *,
        families: Sequence[Family] = tuple(Family),
        kernels: Mapping[Family, FakeKernel] | None = None,
        backend: Callable[[Family], AnyBackend] | None = None,
        batch_size: int = 100,
        plan_listeners: Sequence[PlanListener] = (),
    ) -> None:
        self.kernels = kernels or {family: FakeKernel() for family in families}
        self.clock = FakeClock()
        self.listener = RecordedRounds()
        self.counters = RecordedEvents()
        self.nodes = RecordedNodes()
        create = backend or (
            lambda family: FakeBackend(family, kernel=self.kernels[family], batch_size=batch_size)
        )
        self.engines = {
            family: Engine(
                create(family),
                node(family),
                clock=self.clock,
                listener=self.listener,
                times=EngineTimes(min_seconds=0),
                plan_listeners=plan_listeners,
            )
            for family in families
        }
        self.intake = Intake(
            self.engines,
            NODE,
            counters=self.counters,
            node_listener=self.nodes,
            started_at=self.clock.time(),
        )

    def send(self, *events: Event) -> None:
        for event in events:
            self.intake.send(event)

    def hold(self, *found: Object) -> None:
        """Send these objects."""
        self.send(*map(upsert, found))

    def sync(self) -> None:
        """Send the events that the lists are complete."""
        self.send(*map(Synced, Kind))

    async def rounds(self) -> Mapping[Family, RoundReport]:
        """Run one round of every family."""
        return {family: await engine.round() for family, engine in self.engines.items()}

    @property
    def state(self) -> Mapping[Family, Mapping[Item, Value]]:
        """What the kernels hold."""
        return {family: dict(kernel.state) for family, kernel in self.kernels.items()}
