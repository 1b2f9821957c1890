"""Which endpoints keep open connections, and for how long."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, node, port, service

from kubeproxy.facts.endpoint import Endpoint, PortKey
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.policy import CheckKind, HealthCheck, Rotation
from kubeproxy.plan.draining import NOT_DRAINED, Deadlines, Leaving
from kubeproxy.plan.service import plan_service
from kubeproxy.plan.types import ServicePlan

READY = endpoint("10.244.1.1")
LEAVING = endpoint("10.244.1.2", ready=False, terminating=True)
GONE = endpoint("10.244.1.3", ready=False, serving=False, terminating=True)
IDLE = endpoint("10.244.1.4")
ALL = (READY, LEAVING, GONE, IDLE)
ROTATION = Rotation(weights={IDLE.address: 0})


def plan_of(
    drain_seconds: float | None,
    endpoints: tuple[Endpoint, ...] = ALL,
    *,
    protocol: Protocol = Protocol.TCP,
    rotation: Rotation = ROTATION,
    health_check: HealthCheck | None = None,
) -> ServicePlan:
    asked = service(
        ports=[port(protocol=protocol)], drain_seconds=drain_seconds, health_check=health_check
    )
    (plan,) = plan_service(asked, {PortKey("http", protocol): endpoints}, node(), rotation)
    return plan


def test_without_an_annotation_tcp_connections_are_kept_and_nothing_is_remembered() -> None:
    plan = plan_of(None)
    assert (plan.serving, plan.lingering, plan.drain_seconds) == ((), (), None)


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP])
def test_reset_spares_whoever_serves(protocol: Protocol) -> None:
    """Terminating endpoints have Kubernetes' own grace, and weight 0 keeps what is open."""
    plan = plan_of(0.0, protocol=protocol)
    assert (plan.serving, plan.lingering) == ((READY, LEAVING, IDLE), ())


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP])
@pytest.mark.parametrize("drain_seconds", [0.0, 30.0])
def test_an_endpoint_that_is_published_before_it_serves_keeps_its_connections(
    drain_seconds: float, protocol: Protocol
) -> None:
    """It is in the pool: publishNotReadyAddresses makes it ready, whatever its pod is."""
    published = endpoint("10.244.1.5", ready=True, serving=False)
    plan = plan_of(drain_seconds, (published,), protocol=protocol)
    assert (plan.reachable, plan.serving) == ((published,), (published,))


def test_without_an_annotation_udp_flows_follow_who_serves() -> None:
    """As upstream, also where addresses are published that are not ready."""
    published = endpoint("10.244.1.5", ready=True, serving=False)
    assert plan_of(None, (READY, published), protocol=Protocol.UDP).serving == (READY,)


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP])
def test_a_limit_begins_when_an_endpoint_takes_no_new_connections(protocol: Protocol) -> None:
    assert plan_of(30.0, protocol=protocol).serving == (READY,)
    assert plan_of(30.0, (LEAVING, GONE), protocol=protocol).serving == (LEAVING,)


@pytest.mark.parametrize("drain_seconds", [0.0, 30.0])
def test_an_endpoint_that_fails_its_check_goes(drain_seconds: float) -> None:
    check = HealthCheck(CheckKind.TCP)
    failing = Rotation(failing={READY.text: "refused"})
    plan = plan_of(drain_seconds, (READY, IDLE), rotation=failing, health_check=check)
    assert plan.serving == (IDLE,)


def test_traffic_policies_do_not_count() -> None:
    here, there = endpoint("10.244.1.1", local=True), endpoint("10.244.2.1")
    asked = service(internal_local=True, drain_seconds=30.0)
    (plan,) = plan_service(asked, {PortKey("http", Protocol.TCP): (here, there)}, node())
    assert (plan.reachable, plan.serving) == ((here,), (here, there))


def test_sctp_is_not_drained_and_that_is_a_note() -> None:
    plan = plan_of(30.0, protocol=Protocol.SCTP)
    assert plan.drain_seconds is None
    assert [note for note in plan.notes if NOT_DRAINED in note]
    assert not plan_of(None, protocol=Protocol.SCTP).notes


def test_the_first_of_many_times_is_known_and_each_may_change() -> None:
    deadlines = Deadlines[str]()
    assert (deadlines.first(), deadlines.take(100)) == (float("inf"), [])
    for name, at in (("b", 20.0), ("a", 10.0), ("c", 30.0), ("a", 25.0)):
        deadlines.set(name, at)
    assert deadlines.first() == 20
    deadlines.discard("b")
    deadlines.discard("nobody")
    assert deadlines.first() == 25
    assert (deadlines.take(24), deadlines.take(30)) == ([], ["a", "c"])
    assert deadlines.first() == float("inf")


def test_times_that_changed_often_are_not_kept() -> None:
    deadlines = Deadlines[str]()
    deadlines.set("early", 0.0)
    for at in range(10_000):
        deadlines.set("late", 1.0 + at)
    assert len(deadlines._heap) < 200
    assert deadlines.take(20_000) == ["early", "late"]


def test_what_leaves_has_its_time_from_when_it_first_left() -> None:
    leaving = Leaving[str]()
    leaving.add(["a"], 0)
    leaving.add(["a", "b"], 5)
    assert leaving.next_due(30) == 30
    assert (leaving.left(30, 30), leaving.expired(30, 30)) == (frozenset("b"), frozenset("a"))
    leaving.discard(["a"])
    assert (leaving.next_due(30), leaving.next_due(0)) == (35, 5)
    leaving.discard(["b"])
    assert (bool(leaving), leaving.next_due(30)) == (False, float("inf"))
