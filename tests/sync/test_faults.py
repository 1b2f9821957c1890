"""A fault of our own that one Service brings out ends at that Service."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
from tests.support.api_objects import service_object
from tests.support.builders import service
from tests.support.engine_rig import Rig
from tests.support.fake_backend import FakeBackend, FakeSink, Route
from tests.support.spine import Spine

from kubeproxy.api.decode import decode_service
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.plan.service import plan_service
from kubeproxy.sync import intake, pipeline
from kubeproxy.sync.refused import FIRST_PAUSE_SECONDS

BAD = ServiceName("default", "web-7")
BAD_ROUTE = Route("10.96.0.8", 80, "TCP")


def broken(*_: object) -> NoReturn:
    raise KeyError("a broken invariant")


def breaking_for(name: object, inner: Callable[..., object]) -> Callable[..., object]:
    """The function, which fails as soon as an argument names this Service."""

    def guarded(*args: object, **named: object) -> object:
        if any(str(name) in str(argument) for argument in args):
            broken()
        return inner(*args, **named)

    return guarded


def routes(rig: Rig) -> int:
    return sum(isinstance(item, Route) for item in rig.kernel.state)


async def check_only_the_bad_one_suffers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    report = await rig.engine.round()
    assert report.is_done and report.held_back == 1
    (refusal,) = report.refused
    assert refusal.service == BAD
    assert "KeyError at test_faults.py" in refusal.message
    assert routes(rig) == 19 and BAD_ROUTE not in rig.kernel.state
    monkeypatch.undo()
    rig.clock.advance(FIRST_PAUSE_SECONDS)
    rig.store.set_service(service(str(BAD), cluster_ip="10.96.0.8", affinity_seconds=5))
    report = await rig.engine.round()
    assert report.is_success and report.held_back == 0
    assert routes(rig) == 20


async def test_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.fill(20)
    inner = breaking_for("name='web-7'", plan_service)
    monkeypatch.setattr(pipeline, "plan_service", inner)
    await check_only_the_bad_one_suffers(rig, monkeypatch)


async def test_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.fill(20)
    monkeypatch.setattr(FakeBackend, "render", breaking_for("name='web-7'", FakeBackend.render))
    await check_only_the_bad_one_suffers(rig, monkeypatch)


async def test_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(batch_size=3)
    rig.fill(20)
    monkeypatch.setattr(
        FakeSink, "compile", breaking_for("Route(address='10.96.0.8'", FakeSink.compile)
    )
    await check_only_the_bad_one_suffers(rig, monkeypatch)


async def test_what_was_programmed_before_a_fault_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.fill(20)
    await rig.engine.round()
    monkeypatch.setattr(pipeline, "plan_service", broken)
    rig.store.delete_slice("default", "slice-7")
    report = await rig.engine.round()
    assert [refusal.service for refusal in report.refused] == [BAD]
    assert routes(rig) == 20


async def test_reading_fails_the_round_and_not_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    rig.fill(2)
    monkeypatch.setattr(FakeSink, "read", broken)
    report = await rig.engine.round()
    assert not report.is_done and "KeyError at test_faults.py" in report.error
    monkeypatch.undo()
    assert (await rig.engine.round()).is_success
    assert routes(rig) == 2


async def test_an_object_that_decoding_cannot_digest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spine = Spine()
    spine.sync()
    monkeypatch.setattr(intake, "decode_service", breaking_for("name='bad'", decode_service))
    spine.hold(service_object("default/bad"))
    spine.hold(service_object("default/good", clusterIP="10.96.0.12", clusterIPs=["10.96.0.12"]))
    store = spine.engines[Family.IPV4].pipeline.store
    assert store.service_names() == {ServiceName("default", "good")}
    assert spine.counters.rejected == ["Service"]
