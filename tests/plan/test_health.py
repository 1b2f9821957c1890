"""What failing health checks make of a plan."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.builders import endpoint, node, plan, plans, port, service

from kubeproxy.facts.endpoint import PortKey
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.limits import Limits
from kubeproxy.facts.policy import CheckKind, HealthCheck, Rotation
from kubeproxy.plan.findings import all_endpoints_fail, failing_endpoints
from kubeproxy.plan.health import checked_endpoints
from kubeproxy.plan.types import ServicePlan, Verdict
from kubeproxy.sync.pipeline import count_local_ready

A, B, C = (endpoint(f"10.244.1.{number}") for number in (1, 2, 3))
HERE = endpoint("10.244.2.1", local=True)
TCP, UDP = HealthCheck(CheckKind.TCP), HealthCheck(CheckKind.UDP)
CHECKED = service(health_check=TCP)
REFUSED = "connection refused"


def reasons(found: ServicePlan) -> dict[str, str]:
    return {excluded.what: excluded.reason for excluded in found.excluded}


def test_an_endpoint_that_fails_leaves_the_pool_with_the_reason() -> None:
    found = plan(CHECKED, [A, B], failing={A.text: REFUSED})
    assert found.cluster.endpoints == (B,)
    assert found.reachable == (B,)
    assert reasons(found) == {A.text: "fails its health check: connection refused"}
    assert found.notes == ()
    assert found.health_check == TCP


def test_what_is_not_asked_for_is_not_looked_at() -> None:
    """A result that comes after the annotation was removed changes nothing."""
    found = plan(service(), [A, B], failing={A.text: REFUSED})
    assert found.cluster.endpoints == (A, B)
    assert found.health_check is None


def test_if_all_fail_all_are_used_and_that_is_a_note() -> None:
    found = plan(CHECKED, [A, B], failing={A.text: REFUSED, B.text: "status 503"})
    assert found.cluster.endpoints == (A, B)
    assert reasons(found) == {}
    assert found.notes == (
        "every endpoint fails its health check, so all are used; 10.244.1.1:8080: connection"
        " refused",
    )


def test_endpoints_that_are_not_ready_do_not_count_as_passing() -> None:
    """The one ready endpoint fails: better a failing one than one that the API rules out."""
    waiting = endpoint("10.244.1.9", ready=False, serving=False)
    found = plan(CHECKED, [A, waiting], failing={A.text: REFUSED})
    assert found.cluster.endpoints == (A,)
    assert reasons(found) == {waiting.text: "neither ready nor serving"}


def test_a_terminating_endpoint_serves_if_all_that_are_ready_fail() -> None:
    """As if they were not ready."""
    draining = endpoint("10.244.1.9", ready=False, terminating=True)
    found = plan(CHECKED, [A, draining], failing={A.text: REFUSED})
    assert found.cluster.endpoints == (draining,)
    both = plan(CHECKED, [A, draining], failing={A.text: REFUSED, draining.text: REFUSED})
    assert both.cluster.endpoints == (A,)


def test_with_policy_local_other_nodes_serve_what_fails_here() -> None:
    """Traffic is dropped and load balancers are notified, as if no endpoint here were ready."""
    facts = replace(service(internal_local=True, node_port=30080), policy=CHECKED.policy)
    found = plan(facts, [A, HERE], failing={HERE.text: REFUSED})
    assert found.local.endpoints == ()
    assert found.frontends[0].verdict is Verdict.DROP
    endpoints = {PortKey("http", Protocol.TCP): (A, HERE)}
    assert count_local_ready(facts, endpoints, Rotation(failing={HERE.text: REFUSED})) == 0
    every = Rotation(failing={HERE.text: REFUSED, A.text: REFUSED})
    assert count_local_ready(facts, endpoints, every) == 1


def test_with_policy_local_the_local_endpoint_is_used_if_all_fail() -> None:
    facts = service(internal_local=True, health_check=TCP)
    found = plan(facts, [A, HERE], failing={HERE.text: REFUSED, A.text: REFUSED})
    assert found.local.endpoints == (HERE,)
    assert found.frontends[0].verdict is Verdict.FORWARD


def test_weight_0_stays_out_if_all_others_fail() -> None:
    """A person took it out; a check did not."""
    found = plan(CHECKED, [A, B], weights={A.address: 0}, failing={B.text: REFUSED})
    assert found.cluster.endpoints == (B,)
    assert found.quiesced == (A,)
    assert len(found.notes) == 1


def test_weight_0_is_the_reason_for_an_endpoint_that_fails_as_well() -> None:
    found = plan(CHECKED, [A, B], weights={A.address: 0}, failing={A.text: REFUSED})
    assert reasons(found) == {A.text: "weight 0: takes no new connection"}


def test_weights_are_those_of_the_endpoints_that_pass() -> None:
    weights = {A.address: 4, B.address: 2}
    assert plan(CHECKED, [A, B, C], weights=weights).cluster.weights == (4, 2, 1)
    found = plan(CHECKED, [A, B, C], weights=weights, failing={A.text: REFUSED})
    assert found.cluster.weights == (2, 1)


def test_hints_are_followed_among_those_that_pass() -> None:
    near, far = endpoint("10.244.1.1", zones=["a"]), endpoint("10.244.1.2", zones=["b"])
    on = node(zone="a")
    assert plan(CHECKED, [near, far], on).cluster.endpoints == (near,)
    found = plan(CHECKED, [near, far], on, failing={near.text: REFUSED})
    assert found.cluster.endpoints == (far,)
    assert found.notes == ("zone hints ignored: none names zone a",)


def test_an_endpoint_that_fails_does_not_disable_hints() -> None:
    near, bare = endpoint("10.244.1.1", zones=["a"]), endpoint("10.244.1.2")
    on = node(zone="a")
    assert plan(CHECKED, [near, bare, B], on).cluster.reason == "ready"
    found = plan(CHECKED, [near, bare], on, failing={bare.text: REFUSED})
    assert found.cluster.reason == "hinted for zone a"


def test_udp_flows_to_an_endpoint_that_fails_may_be_cut() -> None:
    """Clients that go on sending would stay with a dead endpoint for ever."""
    facts = service(ports=[port(53, protocol=Protocol.UDP)], health_check=UDP)
    assert plan(facts, [A, B], failing={A.text: REFUSED}).serving == (B,)
    every = {A.text: REFUSED, B.text: REFUSED}
    assert plan(facts, [A, B], failing=every).serving == (A, B)


DNS = (port(53, name="tcp"), port(53, name="udp", protocol=Protocol.UDP))


def test_a_check_is_for_endpoints_of_its_protocol() -> None:
    """Both ports have the same address and number; only one of them is tried."""
    tcp, udp = plans(service(ports=DNS, health_check=UDP), [A, B], failing={A.text: REFUSED})
    assert tcp.cluster.endpoints == (A, B)
    assert tcp.health_check is None
    assert "health check udp is not for TCP" in tcp.notes[0]
    assert udp.cluster.endpoints == (B,)
    assert udp.notes == ()
    assert reasons(tcp) == {}


def test_a_check_of_another_port_is_for_all_endpoints() -> None:
    check = HealthCheck(CheckKind.HTTP, "/ready", port=9000)
    facts = service(ports=DNS, health_check=check)
    for found in plans(facts, [A, B], failing={A.text: REFUSED}):
        assert found.cluster.endpoints == (B,)
        assert found.notes == ()
    endpoints = {PortKey("tcp", Protocol.TCP): (A,), PortKey("udp", Protocol.UDP): (B,)}
    assert checked_endpoints(facts, endpoints, node()) == {
        A.text: (A.address, 9000),
        B.text: (B.address, 9000),
    }


@pytest.mark.parametrize(
    ("ready", "serving", "terminating", "is_checked"),
    [
        (True, True, False, True),
        (False, True, True, True),
        (False, True, False, False),
        (False, False, True, False),
        (False, False, False, False),
    ],
)
def test_what_may_serve_is_checked(
    ready: bool, serving: bool, terminating: bool, is_checked: bool
) -> None:
    each = endpoint(ready=ready, serving=serving, terminating=terminating)
    found = checked_endpoints(CHECKED, {PortKey("http", Protocol.TCP): (each,)}, node())
    assert bool(found) is is_checked


def test_a_check_tries_no_port_of_this_node_that_is_refused() -> None:
    """A Service must not find out by its checks what a control port of the node answers."""
    kubelet = HealthCheck(CheckKind.HTTP, "/pods", port=10250)
    facts = service(health_check=kubelet)
    here = node(limits=Limits(refused_node_ports=((10250, 10250),)))
    mine, other = endpoint("192.0.2.10"), endpoint("192.0.2.11")
    endpoints = {PortKey(facts.ports[0].name, Protocol.TCP): (mine, other)}
    assert checked_endpoints(facts, endpoints, here) == {other.text: (other.address, 10250)}
    made = plan(facts, [mine, other], here)
    assert made.cluster.endpoints == (mine, other), "what is not checked passes"
    assert [note for note in made.notes if mine.text in note] == [
        f"{mine.text} is not checked: its health check tries port 10250 of this node, in"
        " --refused-node-ports"
    ]


def test_nothing_is_checked_without_being_asked_for() -> None:
    assert checked_endpoints(service(), {PortKey("http", Protocol.TCP): (A,)}, node()) == {}


def test_what_people_may_want_to_know() -> None:
    """Reported by nodes with an endpoint of the Service, because all see the same."""
    failing = {e.text: REFUSED for e in (A, B, C)}
    assert failing_endpoints([plan(CHECKED, [A, B], failing={A.text: REFUSED})]) == ""
    found = plan(CHECKED, [A, HERE], failing=failing)
    text = "10.244.1.1:8080 fails its health check: connection refused"
    assert failing_endpoints([found, found]) == text
    assert all_endpoints_fail([found]) == ""
    every = plan(CHECKED, [A, HERE], failing={**failing, HERE.text: REFUSED})
    assert failing_endpoints([every]) == ""
    assert all_endpoints_fail([every]).startswith("every endpoint fails its health check")


def test_findings_name_a_few_endpoints() -> None:
    others = [endpoint(f"10.244.1.{number}") for number in range(1, 9)]
    failing = {each.text: REFUSED for each in others}
    assert failing_endpoints([plan(CHECKED, [*others, HERE], failing=failing)]).endswith("5 more")
