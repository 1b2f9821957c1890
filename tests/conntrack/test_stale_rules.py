"""Which UDP flows are stale, decided without a kernel."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.builders import endpoint, node, plan, port, service

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.plan.conntrack import flow_rules, pack_socket
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync.flow_debts import FlowDebts

PlanChange = tuple[ServicePlan | None, ServicePlan | None]

NODE = node(addresses=("127.0.0.1", "192.0.2.10"))
SERVING = endpoint("10.244.1.102", 5514)
NOT_SERVING = endpoint("10.244.1.102", 5514, ready=False, serving=False)


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


def owed(*changes: PlanChange, facts: NodeFacts = NODE) -> FlowDebts:
    """What is owed after these service ports have changed, each from one plan to another."""
    debts = FlowDebts()
    debts.set_node(facts)
    for before, after in changes:
        held = after or before
        assert held is not None
        debts.change(held.id, flow_rules(before))
        debts.programmed(held.id, flow_rules(after), now=0)
    return debts


def stale(debts: FlowDebts, destination: str, reply_source: str) -> bool:
    return debts.is_stale(Protocol.UDP, packed(destination), packed(reply_source))


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
    debts = owed((None, planned(SERVING)))
    assert stale(debts, destination, reply_source) is expected


def test_a_flow_to_a_foreign_host_on_a_node_port_number_is_kept() -> None:
    """Upstream deletes it; a node port is one of our own addresses, so we do not."""
    debts = owed((None, planned(SERVING)))
    assert not stale(debts, "203.0.113.250:30514", "203.0.113.250:30514")


def test_a_node_port_counts_on_the_addresses_that_serve_node_ports() -> None:
    """An address outside nodePortAddresses does not belong to the Service."""
    restricted = replace(NODE, node_port_cidrs=("127.0.0.0/8",))
    debts = owed((None, planned(SERVING)), facts=restricted)
    assert stale(debts, "127.0.0.1:30514", "10.244.9.9:5514")
    assert not stale(debts, "192.0.2.10:30514", "10.244.9.9:5514")


def test_a_terminating_endpoint_that_serves_keeps_its_flows() -> None:
    """Draining is what terminating is for."""
    draining = endpoint("10.244.1.102", 5514, ready=False, terminating=True)
    debts = owed((None, planned(draining)))
    assert not stale(debts, "10.96.90.2:514", "10.244.1.102:5514")


def test_without_serving_endpoints_flows_to_those_that_exist_are_left_alone() -> None:
    """Like upstream: there is nowhere better to send them."""
    unready = planned(endpoint("10.244.1.102", 5514, ready=False, serving=False))
    assert not owed((planned(SERVING), unready))


@pytest.mark.parametrize("before", [planned(SERVING), planned(NOT_SERVING), None])
def test_flows_to_the_last_endpoint_go_with_it(before: ServicePlan | None) -> None:
    """Its address may be another pod's soon; upstream leaves them. Also after a restart."""
    debts = owed((before, planned()))
    assert stale(debts, "10.96.90.2:514", "10.244.1.102:5514")
    assert not stale(debts, "10.96.90.2:514", "10.96.90.2:514")


def test_of_two_endpoints_that_do_not_serve_one_is_removed() -> None:
    other = endpoint("10.244.1.103", 5514, ready=False, serving=False)
    debts = owed((planned(NOT_SERVING, other), planned(other)))
    assert stale(debts, "10.96.90.2:514", "10.244.1.102:5514")
    assert not stale(debts, "10.96.90.2:514", "10.244.1.103:5514")


def test_one_more_endpoint_calls_for_nothing() -> None:
    """The flows that exist go where they may go."""
    assert not owed((planned(SERVING), planned(SERVING, endpoint("10.244.1.103", 5514))))


def test_another_target_port_cuts_flows_to_the_old_one() -> None:
    debts = owed((planned(SERVING), planned(endpoint("10.244.1.102", 5515))))
    assert stale(debts, "10.96.90.2:514", "10.244.1.102:5514")
    assert not stale(debts, "10.96.90.2:514", "10.244.1.102:5515")


def test_another_port_and_node_port_cut_flows_to_the_old_ones() -> None:
    moved = service(
        "default/syslog",
        cluster_ip="10.96.90.2",
        ports=(port(515, protocol=Protocol.UDP, node_port=30515),),
        external_ips=("203.0.113.99",),
    )
    debts = owed((planned(SERVING), planned(SERVING, facts=moved)))
    for old in ("10.96.90.2:514", "203.0.113.99:514", "192.0.2.10:30514"):
        assert stale(debts, old, "10.244.1.102:5514")
    for new in ("10.96.90.2:515", "203.0.113.99:515", "192.0.2.10:30515"):
        assert not stale(debts, new, "10.244.1.102:5514")
        assert stale(debts, new, new)


def test_a_policy_decides_about_new_flows_only() -> None:
    """As upstream: one that goes to an endpoint of another node may go on there."""
    remote = endpoint("10.244.2.5", 5514)
    local = replace(syslog(), is_external_policy_local=True, is_internal_policy_local=True)
    assert not owed((planned(remote), planned(remote, facts=local)))


def test_the_first_endpoint_cuts_flows_that_went_nowhere() -> None:
    """A flow that began before the Service had endpoints was never translated."""
    debts = owed((planned(), planned(SERVING)))
    assert stale(debts, "10.96.90.2:514", "10.96.90.2:514")


def test_a_removed_service_takes_its_translated_flows_along() -> None:
    """Flows to its former endpoints go; untranslated ones, of other programs, stay."""
    debts = owed((planned(SERVING), None))
    assert stale(debts, "10.96.90.2:514", "10.244.1.102:5514")
    assert stale(debts, "192.0.2.10:30514", "10.244.1.102:5514")
    assert not stale(debts, "10.96.90.2:514", "10.244.9.9:5514")
    assert not stale(debts, "203.0.113.250:30514", "10.244.1.102:5514")


def test_a_removed_external_ip_takes_its_flows_along_and_no_others() -> None:
    """The other frontends of the port keep their flows to serving endpoints."""
    after = planned(SERVING, facts=syslog(external_ips=()))
    debts = owed((planned(SERVING), after))
    assert stale(debts, "203.0.113.99:514", "10.244.1.102:5514")
    assert not stale(debts, "10.96.90.2:514", "10.244.1.102:5514")


def test_a_new_node_port_cuts_flows_that_went_to_the_node_itself() -> None:
    """A Service change cleans too, unlike upstream."""
    before = planned(SERVING, facts=syslog(node_port=0))
    debts = owed((before, planned(SERVING)))
    assert stale(debts, "192.0.2.10:30514", "192.0.2.10:30514")


def test_a_frontend_that_moved_to_another_service_follows_the_new_one() -> None:
    """Removed from one, wanted by the other: the new owner's endpoints decide."""
    moved = service(
        "default/other",
        cluster_ip="10.96.90.2",
        ports=(port(514, name="x", protocol=Protocol.UDP),),
    )
    after = planned(endpoint("10.244.5.5", 5514), SERVING, facts=moved)
    debts = owed((planned(SERVING), None), (None, after))
    assert not stale(debts, "10.96.90.2:514", "10.244.1.102:5514")
    assert stale(debts, "10.96.90.2:514", "10.244.9.9:5514")


def test_tcp_and_unchanged_ports_call_for_nothing() -> None:
    """Empty rules: the table need not be listed at all."""
    tcp = plan(service(), [endpoint()], NODE)
    same = planned(SERVING)
    assert not owed((None, tcp), (tcp, None), (same, same))


def test_hints_and_readiness_of_the_same_endpoints_call_for_nothing() -> None:
    """Where established flows may go has not changed."""
    other = endpoint("10.244.1.102", 5514, ready=False, zones=("a",))
    assert not owed((planned(SERVING), planned(other)))


def test_ipv6_flows_are_judged_alike() -> None:
    """Addresses are compared packed, so spelling does not matter."""
    six = node(Family.IPV6, addresses=("2001:db8:10::10",))
    facts = service(
        "default/dns",
        cluster_ip="fd00:96::a",
        ports=(port(53, protocol=Protocol.UDP, node_port=30053),),
    )
    debts = owed((None, plan(facts, [endpoint("fd00:244::5", 53)], six)), facts=six)
    assert stale(debts, "[fd00:96::a]:53", "[fd00:244::6]:53")
    assert not stale(debts, "[fd00:96:0::a]:53", "[fd00:244::5]:53")
    assert stale(debts, "[2001:db8:10::10]:30053", "[fd00:244::6]:53")


def test_destinations_name_every_frontend() -> None:
    """They let the kernel filter; a port alone stands for any address."""
    debts = owed((None, planned(SERVING)))
    assert debts.places(debts.due(Protocol.UDP, now=0)) == {
        packed("10.96.90.2:514"),
        packed("203.0.113.99:514"),
        (30514).to_bytes(2, "big"),
    }


def test_addresses_are_those_of_frontends_and_for_node_ports_the_nodes() -> None:
    """Flows to others need not be looked at."""
    debts = owed((None, planned(SERVING)))
    found = debts.addresses(debts.places(debts.due(Protocol.UDP, now=0)))
    assert found == set(map(pack_address, ("10.96.90.2", "203.0.113.99", *NODE.addresses)))
    without = owed((None, planned(SERVING, facts=syslog(external_ips=(), node_port=0))))
    places = without.places(without.due(Protocol.UDP, now=0))
    assert without.addresses(places) == {pack_address("10.96.90.2")}


def test_a_newer_removal_wins_over_an_older_serving() -> None:
    """Both may be owed at once when no round succeeded in between."""
    served = planned(SERVING)
    debts = owed((None, served), (served, None))
    assert stale(debts, "10.96.90.2:514", "10.244.1.102:5514")
