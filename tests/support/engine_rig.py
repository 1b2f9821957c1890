"""An engine over the fake backend, with everything around it."""

from __future__ import annotations

from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import FakeClock, FakeConntrack, RecordedRounds
from tests.support.fake_backend import FakeBackend, FakeKernel

from kubeproxy.facts.ids import Family
from kubeproxy.sync.engine import Engine, EngineTimes
from kubeproxy.sync.flows import FlowCleaner


class Rig:
    """An engine with everything around it."""

    def __init__(self, *, kernel: FakeKernel | None = None, batch_size: int = 100) -> None:
        self.kernel = kernel or FakeKernel()
        self.clock = FakeClock()
        self.listener = RecordedRounds()
        self.conntrack = FakeConntrack()
        self.flows = FlowCleaner(
            Family.IPV4, self.conntrack, clock=self.clock, listener=self.listener
        )
        self.engine = Engine(
            FakeBackend(kernel=self.kernel, batch_size=batch_size),
            node(),
            clock=self.clock,
            listener=self.listener,
            flows=self.flows,
            times=EngineTimes(),
        )
        self.store = self.engine.pipeline.store

    def fill(self, count: int = 1) -> None:
        for number in range(count):
            name = f"default/web-{number}"
            self.store.set_service(service(name, cluster_ip=f"10.96.0.{number + 1}"))
            self.store.set_slice(
                endpoint_slice(name, [endpoint()], slice_name=f"slice-{number}"),
            )
