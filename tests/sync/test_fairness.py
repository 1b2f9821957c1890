"""One Service that changes without end delays no other: counted in rounds and events.

In the loop of the engine, with a pause between rounds so long that a test would never see its end.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import RecordedRounds
from tests.support.fake_backend import FakeBackend
from tests.support.waiting import limit, until

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine, EngineTimes

LONG = 100_000.0


@pytest.fixture(autouse=True)
def no_spacing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round may take any time on a busy machine; how long others wait then is not the matter."""
    monkeypatch.setattr("kubeproxy.sync.runner.SPACING", 0.0)
    monkeypatch.setattr("kubeproxy.sync.runner.MERGED", 0.0)


def engine(listener: RecordedRounds) -> Engine:
    return Engine(
        FakeBackend(),
        node(),
        clock=SystemClock(),
        listener=listener,
        times=EngineTimes(min_seconds=LONG, retry_seconds=LONG, max_seconds=LONG),
    )


def change(made: Engine, name: str, endpoints: list[Endpoint]) -> None:
    facts = endpoint_slice(name, endpoints, slice_name=name.rpartition("/")[2])
    made.set_slice(facts, trigger_time=None)


async def test_a_quiet_service_does_not_wait_for_the_pause_of_a_noisy_one() -> None:
    """Every change of the quiet ones is in a round of its own time, the noisy one's are merged."""
    listener = RecordedRounds()
    made = engine(listener)
    quiet = [f"shop/quiet-{number}" for number in range(10)]
    for number, name in enumerate(("shop/noisy", *quiet)):
        made.pipeline.store.set_service(service(name, cluster_ip=f"10.96.0.{number + 1}"))
    async with limit(), asyncio.TaskGroup() as group:
        loop = group.create_task(made.run())
        made.mark_synced()
        await until(lambda: len(listener.reports) == 1)
        change(made, "shop/noisy", [endpoint("10.1.0.0")])
        await until(lambda: len(listener.reports) == 2)
        for number, name in enumerate(quiet):
            for noise in range(100):
                change(made, "shop/noisy", [endpoint(f"10.1.{number}.{noise}")])
            change(made, name, [endpoint("10.2.0.1")])
            done = number + 3
            await until(lambda done=done: len(listener.reports) == done)  # type: ignore[misc]
        loop.cancel()
    assert [report.services for report in listener.reports[2:]] == [2] * len(quiet)
