"""The loop around rounds, in real time but in milliseconds."""

from __future__ import annotations

import asyncio

from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import RecordedRounds
from tests.support.fake_backend import FakeBackend
from tests.support.waiting import limit, until

from kubeproxy.errors import Busy, Drifted
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine, EngineTimes


def engine(backend: FakeBackend, listener: RecordedRounds) -> Engine:
    return Engine(
        backend,
        node(),
        clock=SystemClock(),
        listener=listener,
        times=EngineTimes(min_seconds=0.001, retry_seconds=0.01, max_seconds=3600),
    )


async def reports(listener: RecordedRounds, count: int) -> None:
    await until(lambda: len(listener.reports) >= count)


async def test_a_failed_first_sync_is_retried_without_another_trigger() -> None:
    backend, listener = FakeBackend(), RecordedRounds()
    made = engine(backend, listener)
    backend.kernel.fail = Busy("lock")
    async with limit(), asyncio.TaskGroup() as group:
        loop = group.create_task(made.run())
        made.mark_synced()
        await reports(listener, 2)
        backend.kernel.fail = None
        await reports(listener, len(listener.reports) + 1)
        loop.cancel()
    assert listener.reports[-1].is_success


async def test_a_wrong_belief_is_corrected_at_once_and_not_after_the_retry_interval() -> None:
    backend, listener = FakeBackend(), RecordedRounds()
    made = Engine(
        backend,
        node(),
        clock=SystemClock(),
        listener=listener,
        times=EngineTimes(min_seconds=0.001, retry_seconds=3600, max_seconds=3600),
    )

    def vanish_once(change: object) -> bool:
        backend.kernel.refuse = lambda _: False
        raise Drifted("the table has disappeared")

    async with limit(), asyncio.TaskGroup() as group:
        loop = group.create_task(made.run())
        made.mark_synced()
        await reports(listener, 1)
        backend.kernel.refuse = vanish_once
        made.pipeline.store.set_service(service())
        made.request()
        await reports(listener, 3)
        loop.cancel()
    assert [r.is_success for r in listener.reports] == [True, False, True]
    assert listener.reports[2].is_full


async def test_nothing_is_written_before_synced_and_everything_after() -> None:
    backend, listener = FakeBackend(), RecordedRounds()
    made = engine(backend, listener)
    async with limit(), asyncio.TaskGroup() as group:
        loop = group.create_task(made.run())
        made.pipeline.store.set_service(service())
        made.request()
        await asyncio.sleep(0.02)
        assert backend.kernel.history == []
        made.pipeline.store.set_slice(endpoint_slice(endpoints=[endpoint()]))
        made.mark_synced()
        await reports(listener, 1)
        loop.cancel()
    assert backend.kernel.history


async def test_a_change_wakes_the_loop() -> None:
    backend, listener = FakeBackend(), RecordedRounds()
    made = engine(backend, listener)
    async with limit(), asyncio.TaskGroup() as group:
        loop = group.create_task(made.run())
        made.mark_synced()
        await reports(listener, 1)
        made.pipeline.store.set_service(service())
        made.request()
        await reports(listener, 2)
        loop.cancel()
    assert listener.reports[1].services == 1
