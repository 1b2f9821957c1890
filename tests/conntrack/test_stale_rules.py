"""Which UDP flows are stale, decided without a kernel."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.builders import endpoint, node, plan, port, service

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.plan.conntrack import StaleRules, is_stale, pack_socket, stale_rules
from kubeproxy.plan.types import ServicePlan

NODE = node(addresses=("127.0.0.1", "192.0.2.10"))
SERVING = endpoint("10.244.1.102", 5514)


def syslog(
    external_ips: tuple[str, ...] = ("203.0.113.99",), node_port: int = 30514
) -> ServiceFacts:
    return service(
        "default/syslog",
        cluster_ip="10.96.90.2",
        ports=(port(514, protocol=Protocol.UDP, node_port=node_port),),
        external_ips=external_ips,
    )


def planned(*endpoints: Endpoint, facts: ServiceFacts | None = None) -> ServicePlan:
    return plan(facts or syslog(), endpoints, NODE)


def stale(rules: StaleRules, destination: str, reply_source: str) -> bool:
    return is_stale(packed(destination), packed(reply_source), rules)


def packed(text: str) -> bytes:
    address, _, number = text.rpartition(":")
    return pack_socket(address.strip("[]"), int(number))


@pytest.mark.parametrize(
    ("destination", "reply_source", "expected"),
    [
        ("10.96.90.2:514", "10.244.1.102:5514", False),
        ("10.96.90.2:514", "10.244.9.9:5514", True),
        ("10.96.90.2:514", "10.96.90.2:514", True),
        ("203.0.113.99:514", "10.244.9.9:5514", True),
        ("192.0.2.10:30514", "10.244.9.9:5514", True),
        ("192.0.2.10:30514", "10.244.1.102:5514", False),
        ("10.96.90.2:515", "10.244.9.9:5514", False),
        ("10.96.0.10:53", "10.244.9.9:53", False),
        ("10.244.1.102:5514", "10.244.1.102:5514", False),
    ],
)
def test_flows_to_a_frontend_must_go_to_a_serving_endpoint(
    destination: str, reply_source: str, expected: bool
) -> None:
    """Upstream's table, row by row."""
    rules = stale_rules([(None, planned(SERVING))], NODE)
    assert stale(rules, destination, reply_source) is expected


def test_a_flow_to_a_foreign_host_on_a_node_port_number_is_kept() -> None:
    """Upstream deletes it; a node port is one of our own addresses, so we do not."""
    rules = stale_rules([(None, planned(SERVING))], NODE)
    assert not stale(rules, "203.0.113.250:30514", "203.0.113.250:30514")


def test_a_node_port_counts_on_the_addresses_that_serve_node_ports() -> None:
    """An address outside nodePortAddresses does not belong to the Service."""
    restricted = replace(NODE, node_port_cidrs=("127.0.0.0/8",))
    rules = stale_rules([(None, planned(SERVING))], restricted)
    assert stale(rules, "127.0.0.1:30514", "10.244.9.9:5514")
    assert not stale(rules, "192.0.2.10:30514", "10.244.9.9:5514")


def test_a_terminating_endpoint_that_serves_keeps_its_flows() -> None:
    """Draining is what terminating is for."""
    draining = endpoint("10.244.1.102", 5514, ready=False, terminating=True)
    rules = stale_rules([(None, planned(draining))], NODE)
    assert not stale(rules, "10.96.90.2:514", "10.244.1.102:5514")


def test_without_serving_endpoints_flows_are_left_alone() -> None:
    """Like upstream: there is nowhere better to send them."""
    gone = planned(endpoint("10.244.1.102", 5514, ready=False, serving=False))
    assert not stale_rules([(planned(SERVING), gone)], NODE)


def test_the_first_endpoint_cuts_flows_that_went_nowhere() -> None:
    """A flow that began before the Service had endpoints was never translated."""
    rules = stale_rules([(planned(), planned(SERVING))], NODE)
    assert stale(rules, "10.96.90.2:514", "10.96.90.2:514")


def test_a_removed_service_takes_its_translated_flows_along() -> None:
    """Flows to its former endpoints go; untranslated ones, of other programs, stay."""
    rules = stale_rules([(planned(SERVING), None)], NODE)
    assert stale(rules, "10.96.90.2:514", "10.244.1.102:5514")
    assert stale(rules, "192.0.2.10:30514", "10.244.1.102:5514")
    assert not stale(rules, "10.96.90.2:514", "10.244.9.9:5514")
    assert not stale(rules, "203.0.113.250:30514", "10.244.1.102:5514")


def test_a_removed_external_ip_takes_its_flows_along_and_no_others() -> None:
    """The other frontends of the port keep their flows to serving endpoints."""
    after = planned(SERVING, facts=syslog(external_ips=()))
    rules = stale_rules([(planned(SERVING), after)], NODE)
    assert stale(rules, "203.0.113.99:514", "10.244.1.102:5514")
    assert not stale(rules, "10.96.90.2:514", "10.244.1.102:5514")


def test_a_new_node_port_cuts_flows_that_went_to_the_node_itself() -> None:
    """A Service change cleans too, unlike upstream."""
    before = planned(SERVING, facts=syslog(node_port=0))
    rules = stale_rules([(before, planned(SERVING))], NODE)
    assert stale(rules, "192.0.2.10:30514", "192.0.2.10:30514")


def test_a_frontend_that_moved_to_another_service_follows_the_new_one() -> None:
    """Removed from one, wanted by the other: the new owner's endpoints decide."""
    moved = service(
        "default/other",
        cluster_ip="10.96.90.2",
        ports=(port(514, name="x", protocol=Protocol.UDP),),
    )
    after = planned(endpoint("10.244.5.5", 5514), SERVING, facts=moved)
    rules = stale_rules([(planned(SERVING), None), (None, after)], NODE)
    assert not stale(rules, "10.96.90.2:514", "10.244.1.102:5514")
    assert stale(rules, "10.96.90.2:514", "10.244.9.9:5514")


def test_tcp_and_unchanged_ports_call_for_nothing() -> None:
    """Empty rules: the table need not be listed at all."""
    tcp = plan(service(), [endpoint()], NODE)
    same = planned(SERVING)
    assert not stale_rules([(None, tcp), (tcp, None), (same, same)], NODE)


def test_hints_and_readiness_of_the_same_endpoints_call_for_nothing() -> None:
    """Where established flows may go has not changed."""
    other = endpoint("10.244.1.102", 5514, ready=False, zones=("a",))
    assert not stale_rules([(planned(SERVING), planned(other))], NODE)


def test_ipv6_flows_are_judged_alike() -> None:
    """Addresses are compared packed, so spelling does not matter."""
    six = node(Family.IPV6, addresses=("2001:db8:10::10",))
    facts = service(
        "default/dns",
        cluster_ip="fd00:96::a",
        ports=(port(53, protocol=Protocol.UDP, node_port=30053),),
    )
    rules = stale_rules([(None, plan(facts, [endpoint("fd00:244::5", 53)], six))], six)
    assert stale(rules, "[fd00:96::a]:53", "[fd00:244::6]:53")
    assert not stale(rules, "[fd00:96:0::a]:53", "[fd00:244::5]:53")
    assert stale(rules, "[2001:db8:10::10]:30053", "[fd00:244::6]:53")


def test_destinations_name_every_frontend() -> None:
    """They let the kernel filter; a port alone stands for any address."""
    rules = stale_rules([(None, planned(SERVING))], NODE)
    assert rules.destinations == {
        packed("10.96.90.2:514"),
        packed("203.0.113.99:514"),
        (30514).to_bytes(2, "big"),
    }


def test_a_newer_removal_wins_over_an_older_serving() -> None:
    """Both may be owed at once when no round succeeded in between."""
    served = planned(SERVING)
    rules = stale_rules([(None, served), (served, None)], NODE)
    assert stale(rules, "10.96.90.2:514", "10.244.1.102:5514")
