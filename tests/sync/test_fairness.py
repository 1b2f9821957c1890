"""One namespace that changes without end delays no other: counted in rounds and events.

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


def engine(listener: RecordedRounds) -> Engine:
    return Engine(
        FakeBackend(),
        node(),
        clock=SystemClock(),
        listener=listener,
        times=EngineTimes(min_seconds=LONG, retry_seconds=LONG, max_seconds=LONG),
    )


def change(made: Engine, name: str, endpoints: list[Endpoint]) -> None:
    made.set_slice(endpoint_slice(name, endpoints), trigger_time=None)


async def test_a_quiet_namespace_does_not_wait_for_the_pause_of_a_noisy_one() -> None:
    """Every change of the quiet ones is in a round of its own time, the noisy one's are merged."""
    listener = RecordedRounds()
    made = engine(listener)
    quiet = [f"quiet-{number}/web" for number in range(10)]
    for number, name in enumerate(("noisy/web", *quiet)):
        made.pipeline.store.set_service(service(name, cluster_ip=f"10.96.0.{number + 1}"))
    async with limit(), asyncio.TaskGroup() as group:
        loop = group.create_task(made.run())
        made.mark_synced()
        await until(lambda: len(listener.reports) == 1)
        change(made, "noisy/web", [endpoint("10.1.0.0")])
        await until(lambda: len(listener.reports) == 2)
        for number, name in enumerate(quiet):
            for noise in range(100):
                change(made, "noisy/web", [endpoint(f"10.1.{number}.{noise}")])
            change(made, name, [endpoint("10.2.0.1")])
            done = number + 3
            await until(lambda done=done: len(listener.reports) == done)  # type: ignore[misc]
        loop.cancel()
    assert [report.services for report in listener.reports[2:]] == [2] * len(quiet)


async def test_a_storm_of_services_is_a_round_or_two() -> None:
    """5,000 creations of one namespace, as fast as they arrive: the first one, then the rest."""
    listener = RecordedRounds()
    made = engine(listener)
    async with limit(), asyncio.TaskGroup() as group:
        loop = group.create_task(made.run())
        made.mark_synced()
        await until(lambda: len(listener.reports) == 1)
        for number in range(5000):
            name, block = f"storm/web-{number}", f"{number // 250}.{number % 250}"
            made.set_service(service(name, cluster_ip=f"10.97.{block}"))
            change(made, name, [endpoint(f"10.3.{block}")])
            await asyncio.sleep(0)
        change(made, "quiet/web", [endpoint("10.2.0.1")])
        made.set_service(service("quiet/web", cluster_ip="10.96.0.1"))
        await until(lambda: made.pipeline.store.service_changes_pending == 0)
        await until(lambda: sum(report.services for report in listener.reports) >= 5001)
        loop.cancel()
    assert len(listener.reports) <= 3
    assert made.pipeline.service_total == 5001
