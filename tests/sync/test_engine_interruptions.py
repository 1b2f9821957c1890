"""What reaches an engine in the middle of a round is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.support.api_objects import service_object, slice_object
from tests.support.fake_backend import (
    Changes,
    FakeBackend,
    FakeKernel,
    FakeSink,
    Item,
    Route,
    Value,
)
from tests.support.spine import Spine

from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import Batch, Change

ROUTE = Route("10.96.0.10", 80, "TCP")


class BusySink(FakeSink):
    """Lets something else happen while it applies a batch."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)
    hold_up: asyncio.Event | None = None

    async def apply(self, batch: Batch[Changes]) -> None:
        await super().apply(batch)
        self.meanwhile()
        if self.hold_up is not None:
            await self.hold_up.wait()


class BusyBackend(FakeBackend):
    """The fake mode with a last sink that can be interrupted."""

    def __init__(self, family: Family, kernel: FakeKernel) -> None:
        super().__init__(family, kernel=kernel)
        self.busy = BusySink("routes", Route, kernel, 100)
        self._sinks = (self._sinks[0], self.busy)


def busy_spine() -> tuple[Spine, BusyBackend]:
    kernel = FakeKernel()
    backend = BusyBackend(Family.IPV4, kernel)
    spine = Spine(
        families=(Family.IPV4,), kernels={Family.IPV4: kernel}, backend=lambda family: backend
    )
    spine.hold(service_object(), slice_object(addresses=["10.244.1.5"]))
    spine.sync()
    return spine, backend


async def test_drift_reported_while_a_round_applies_is_repaired_by_the_next() -> None:
    spine, backend = busy_spine()
    engine = spine.engines[Family.IPV4]

    def another_process() -> None:
        spine.kernels[Family.IPV4].state.pop(ROUTE)
        engine.report_drift("a route is gone")
        backend.busy.meanwhile = lambda: None

    backend.busy.meanwhile = another_process
    await engine.round()
    report = await engine.round()
    assert report.is_full and report.drift == "a route is gone"
    assert spine.kernels[Family.IPV4].state[ROUTE] == ("forward", "10.244.1.5:8080")


async def test_an_event_that_comes_while_a_round_applies_is_done_by_the_next() -> None:
    spine, backend = busy_spine()

    def another_endpoint() -> None:
        backend.busy.meanwhile = lambda: None
        spine.hold(slice_object(addresses=["10.244.1.9"]))

    backend.busy.meanwhile = another_endpoint
    await spine.rounds()
    await spine.rounds()
    assert spine.kernels[Family.IPV4].state[ROUTE] == ("forward", "10.244.1.9:8080")


async def test_a_round_cut_off_by_cancellation_is_followed_by_a_re_read() -> None:
    spine, backend = busy_spine()
    engine = spine.engines[Family.IPV4]
    await engine.round()
    backend.busy.hold_up = asyncio.Event()
    spine.hold(slice_object(addresses=["10.244.1.9"]))
    task = asyncio.create_task(engine.round())
    while not any(_goes_to(change, "10.244.1.9:8080") for change in _last_batch(spine)):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    backend.busy.hold_up = None
    reads = spine.kernels[Family.IPV4].reads
    report = await engine.round()
    assert report.is_full and spine.kernels[Family.IPV4].reads > reads
    assert spine.kernels[Family.IPV4].state[ROUTE] == ("forward", "10.244.1.9:8080")


def _last_batch(spine: Spine) -> Changes:
    return spine.kernels[Family.IPV4].batches[-1]


def _goes_to(change: Change[Item, Value], endpoint: str) -> bool:
    return isinstance(change.new, tuple) and endpoint in change.new
