"""Events on Services: when a state begins, on the Service it is about, and never too many."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.fake_backend import FakeBackend

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.facts.limits import NO_LIMITS, Limits
from kubeproxy.facts.policy import Algorithm, CheckKind, HealthCheck
from kubeproxy.logs.limit import LogLimit
from kubeproxy.status.event_series import Reference
from kubeproxy.status.events import Recorder
from kubeproxy.status.service_events import MOST_PER_MINUTE, ServiceEvents
from kubeproxy.sync.pipeline import Pipeline

VIP = "203.0.113.7"
HERE, THERE = endpoint("10.244.1.1", local=True), endpoint("10.244.2.1")


class FakeRecorder(Recorder):
    """Keeps what is recorded."""

    def __init__(self) -> None:
        super().__init__(None, hostname="n", now_ns=lambda: 0, random=lambda: 0)
        self.notes: list[str] = []
        self.taken: list[tuple[str, str]] = []

    def record(
        self, regarding: Reference, *, type: str, reason: str, action: str, note: str = ""
    ) -> None:
        self.taken.append((regarding.name, reason))
        self.notes.append(note)

    def take(self) -> list[tuple[str, str]]:
        taken, self.taken = self.taken, []
        return taken


class Node:
    """A node and the events that it records."""

    def __init__(
        self,
        family: Family = Family.IPV4,
        zone: str = "",
        *,
        limits: Limits = NO_LIMITS,
        algorithms: Sequence[Algorithm] = (),
    ) -> None:
        self.recorder = FakeRecorder()
        self.now = 0.0
        limit = LogLimit(burst=MOST_PER_MINUTE, monotonic=lambda: self.now)
        events = ServiceEvents(self.recorder, limit)
        facts = node(family, zone=zone, mode="fake", limits=limits, algorithms=algorithms)
        self.pipeline = Pipeline(FakeBackend(family), facts, listeners=[events])

    def started(self) -> Node:
        """The first round is over."""
        self.pipeline.recompute()
        return self

    def serve(
        self,
        name: str,
        *endpoints: Endpoint,
        cluster_ip: str = "10.96.0.10",
        vips: Sequence[str] = (),
        is_local: bool = False,
        algorithm: Algorithm | None = None,
        ignored: tuple[str, ...] = (),
    ) -> list[tuple[str, str]]:
        """Set a Service with its endpoints. Return the events of the round that follows."""
        facts = service(
            f"default/{name}",
            cluster_ip=cluster_ip,
            load_balancer_ips=vips,
            internal_local=is_local,
            algorithm=algorithm,
        )
        self.pipeline.store.set_service(replace(facts, ignored=ignored))
        self.pipeline.store.set_slice(endpoint_slice(f"default/{name}", endpoints, slice_name=name))
        self.pipeline.recompute()
        return self.recorder.take()


def test_the_last_local_endpoint_of_a_service_with_policy_local_leaves() -> None:
    """Once, not for every change that follows; and again after there was one."""
    host = Node().started()
    assert host.serve("web", HERE, THERE, is_local=True) == []
    assert host.serve("web", THERE, is_local=True) == [("web", "NoLocalEndpoints")]
    assert host.recorder.notes[-1].endswith("policy is Local: 10.96.0.10:80/TCP is dropped here")
    assert host.serve("web", THERE, endpoint("10.244.2.2"), is_local=True) == []
    assert host.serve("web", HERE, is_local=True) == []
    assert host.serve("web", THERE, is_local=True) == [("web", "NoLocalEndpoints")]


def test_no_endpoint_anywhere_and_policy_cluster_are_no_such_event() -> None:
    host = Node().started()
    assert host.serve("web", is_local=True) == []
    assert host.serve("api", THERE, cluster_ip="10.96.0.11") == []


def test_what_holds_at_the_start_is_no_event() -> None:
    """Restarting every proxy of a big cluster writes nothing."""
    host = Node()
    assert host.serve("web", THERE, is_local=True) == []
    assert host.serve("api", THERE, cluster_ip="10.96.0.11", is_local=True) == [
        ("api", "NoLocalEndpoints")
    ]


@pytest.mark.parametrize("has_endpoint_here", [True, False])
def test_hints_that_are_incomplete_are_reported_by_nodes_with_an_endpoint(
    has_endpoint_here: bool,
) -> None:
    """They are so on every node, and five thousand need not say the same."""
    host = Node(zone="a").started()
    hinted = endpoint("10.244.2.1", zones=["a"])
    bare = endpoint("10.244.1.1", local=has_endpoint_here)
    assert host.serve("web", hinted) == []
    expected = [("web", "HintsIgnored")] if has_endpoint_here else []
    assert host.serve("web", hinted, bare) == expected


def test_hints_that_name_no_endpoint_for_this_zone_are_reported() -> None:
    host = Node(zone="a").started()
    assert host.serve("web", endpoint(zones=["b"])) == [("web", "HintsIgnored")]
    assert host.recorder.notes == ["zone hints ignored: none names zone a"]
    assert host.serve("web", endpoint(zones=["b"]), endpoint("10.244.2.7", zones=["b"])) == []


def test_of_two_services_with_one_address_the_one_that_loses_gets_an_event() -> None:
    """Whichever comes first. The smaller name wins, as in the kernel."""
    host = Node().started()
    assert host.serve("web", HERE, vips=[VIP]) == []
    assert host.serve("zoo", HERE, cluster_ip="10.96.0.11", vips=[VIP]) == [
        ("zoo", "AddressConflict")
    ]
    assert host.serve("api", HERE, cluster_ip="10.96.0.12", vips=[VIP]) == [
        ("web", "AddressConflict")
    ]
    assert host.recorder.notes[-1].startswith(f"{VIP}:80/TCP is claimed by default/api:http/TCP")


def test_a_conflict_that_has_ended_may_begin_again() -> None:
    host = Node().started()
    host.serve("api", HERE, vips=[VIP])
    lost = host.serve("web", HERE, cluster_ip="10.96.0.11", vips=[VIP])
    assert lost == [("web", "AddressConflict")]
    assert host.serve("web", HERE, THERE, cluster_ip="10.96.0.11", vips=[VIP]) == []
    host.pipeline.store.delete_service(ServiceName("default", "api"))
    host.pipeline.recompute()
    assert host.recorder.take() == []
    assert host.serve("api", HERE, vips=[VIP]) == [("web", "AddressConflict")]


def test_a_conflict_is_reported_by_nodes_with_an_endpoint_of_the_loser() -> None:
    host = Node().started()
    host.serve("api", HERE, vips=[VIP])
    assert host.serve("web", THERE, cluster_ip="10.96.0.11", vips=[VIP]) == []


def test_two_ports_of_one_service_are_no_conflict_of_services() -> None:
    """The same address as external and as load balancer address, for instance."""
    host = Node().started()
    assert host.serve("web", HERE, vips=[VIP, VIP]) == []


def test_a_change_that_concerns_all_services_records_a_few_events_only() -> None:
    host = Node().started()
    for number in range(50):
        host.serve(f"web-{number}", HERE, cluster_ip=f"10.96.1.{number}", is_local=True)
    recorded = [
        event
        for number in range(50)
        for event in host.serve(
            f"web-{number}", THERE, cluster_ip=f"10.96.1.{number}", is_local=True
        )
    ]
    assert len(recorded) == MOST_PER_MINUTE
    host.now += 60
    assert host.serve("late", THERE, cluster_ip="10.96.2.1", is_local=True)


def test_ipv6_has_its_own_claims() -> None:
    host = Node(Family.IPV6).started()
    pod = endpoint("fd00:244::1", local=True)
    host.serve("api", pod, cluster_ip="fd00:96::1", vips=["2001:db8::7"])
    assert host.serve("web", pod, cluster_ip="fd00:96::2", vips=["2001:db8::7"]) == [
        ("web", "AddressConflict")
    ]
    assert host.recorder.notes[-1].startswith("[2001:db8::7]:80/TCP is claimed by")


def test_refused_addresses_are_reported_by_nodes_with_an_endpoint() -> None:
    bad, here = endpoint("169.254.169.254"), endpoint("127.0.0.1", local=True)
    assert Node().started().serve("web", bad) == []
    host = Node().started()
    assert host.serve("web", bad, here) == [("web", "AddressRefused")]
    assert host.recorder.notes[-1] == (
        "127.0.0.1:8080 (a loopback address), 169.254.169.254:8080 (a link-local address)"
    )
    assert host.serve("web", bad, here, THERE) == [], "the same are refused"


def test_a_control_port_is_reported_by_the_node_whose_it_is() -> None:
    host = Node(limits=Limits(refused_node_ports=((8080, 8080),))).started()
    assert host.serve("web", endpoint("192.0.2.10")) == [("web", "AddressRefused")]


def test_an_algorithm_that_the_mode_does_not_have() -> None:
    """Recorded once, where an endpoint runs; a change to another such algorithm is new."""
    host = Node(algorithms=(Algorithm.RANDOM,)).started()
    assert host.serve("web", HERE, algorithm=Algorithm.RANDOM) == []
    assert host.serve("web", HERE, algorithm=Algorithm.SOURCE_HASH) == [
        ("web", "AlgorithmNotSupported")
    ]
    assert "algorithm source-hash is not possible in fake mode" in host.recorder.notes[-1]
    assert host.serve("web", HERE, THERE, algorithm=Algorithm.SOURCE_HASH) == []
    assert host.serve("web", HERE, algorithm=Algorithm.LEAST_CONNECTIONS) == [
        ("web", "AlgorithmNotSupported")
    ]
    assert host.serve("far", THERE, cluster_ip="10.96.0.11", algorithm=Algorithm.SOURCE_HASH) == []


def test_an_annotation_that_cannot_be_understood() -> None:
    host = Node().started()
    wrong = ("annotation kubeproxy/algorithm: 'x' is none of a, b; the default is used",)
    assert host.serve("web", HERE, ignored=wrong) == [("web", "InvalidAnnotation")]
    assert host.recorder.notes[-1] == wrong[0]
    assert host.serve("web", HERE, THERE, ignored=wrong) == []
    assert host.serve("far", THERE, cluster_ip="10.96.0.11", ignored=wrong) == []


def test_an_endpoint_that_begins_to_fail_and_a_service_whose_endpoints_all_do() -> None:
    host = Node().started()
    web = ServiceName("default", "web")

    def find(failing: dict[str, str]) -> list[tuple[str, str]]:
        host.pipeline.store.set_failing(web, failing)
        host.pipeline.recompute()
        return host.recorder.take()

    checked = service("default/web", health_check=HealthCheck(CheckKind.TCP))
    host.pipeline.store.set_service(checked)
    host.pipeline.store.set_slice(endpoint_slice("default/web", [HERE, THERE]))
    assert find({}) == []
    assert find({THERE.text: "connection refused"}) == [("web", "EndpointsUnhealthy")]
    assert host.recorder.notes[-1] == f"{THERE.text} fails its health check: connection refused"
    assert find({THERE.text: "x", HERE.text: "x"}) == [("web", "AllEndpointsUnhealthy")]
    assert find({HERE.text: "status 503"}) == [("web", "EndpointsUnhealthy")]
    assert find({}) == []
