"""What one service port wants, where the captured cases do not say it clearly enough."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, node, plan, port, service

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.ipvs.items import (
    PRESENT,
    BoundAddress,
    Fragment,
    RealServer,
    ServerSpec,
    SetEntry,
    VirtualServer,
)
from kubeproxy.modes.ipvs.names import FILTER, IPVS_FILTER, SetName, set_name
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.render import node_port_addresses, render, rendering_facts
from kubeproxy.modes.ipvs.scaffold import scaffold
from kubeproxy.modes.netfilter.items import Chain, Rules

WEB = VirtualServer(6, "10.96.0.10", 80)


def rendered(
    facts: ServiceFacts,
    *ends: Endpoint,
    on: NodeFacts | None = None,
    options: Options | None = None,
) -> Fragment:
    on = on or node()
    return render(plan(facts, ends, on), on, options or Options())


def spec(items: Fragment, server: VirtualServer) -> ServerSpec:
    found = items[server]
    assert isinstance(found, ServerSpec)
    return found


def test_a_local_policy_without_local_endpoints_falls_back_to_the_cluster() -> None:
    facts = service(node_port=30080, external_local=True)
    items = rendered(facts, endpoint("10.244.2.5"))
    assert spec(items, VirtualServer(6, "192.0.2.10", 30080)).real_servers == (
        RealServer("10.244.2.5", 8080),
    )


def test_an_internal_local_policy_alone_does_not_fall_back() -> None:
    """Not reachable from outside: upstream has no cluster endpoints to fall back to."""
    items = rendered(service(internal_local=True), endpoint("10.244.2.5"))
    assert spec(items, WEB).real_servers == ()


def test_a_node_port_without_node_addresses_takes_the_health_check_port_with_it() -> None:
    facts = service(
        node_port=30080,
        load_balancer_ips=["198.51.100.1"],
        external_local=True,
        health_check_node_port=32000,
    )
    entry = SetEntry(set_name(Family.IPV4, SetName.HEALTH_CHECK_NODE_PORT), port=32000)
    assert entry in rendered(facts)
    assert entry not in rendered(facts, on=node(addresses=["127.0.0.1"]))


def test_an_external_ip_of_the_node_itself_is_not_bound() -> None:
    facts = service(external_ips=["192.0.2.10", "203.0.113.1"])
    items = rendered(facts)
    assert VirtualServer(6, "192.0.2.10", 80) in items
    assert BoundAddress("192.0.2.10") not in items
    assert items[BoundAddress("203.0.113.1")] is PRESENT


def test_sctp_node_ports_have_an_entry_for_each_address() -> None:
    facts = service(ports=[port(38, protocol=Protocol.SCTP, node_port=30038)])
    items = rendered(facts, on=node(addresses=["192.0.2.10", "192.0.2.11"]))
    name = set_name(Family.IPV4, SetName.NODE_PORT_SCTP)
    assert SetEntry(name, "192.0.2.10", 132, 30038) in items
    assert SetEntry(name, "192.0.2.11", 132, 30038) in items


def test_link_local_addresses_serve_node_ports_only_if_configured() -> None:
    addresses = ["fe80::1", "2001:db8::1", "::1"]
    everything = node(Family.IPV6, addresses=addresses)
    assert node_port_addresses(everything) == ("2001:db8::1",)
    chosen = node(Family.IPV6, addresses=addresses, node_port_cidrs=["fe80::/10", "::1/128"])
    assert node_port_addresses(chosen) == ("fe80::1",)


def test_pods_interfaces_render_nothing_again() -> None:
    """Link-local addresses come and go with pods; what rendering looks at stays the same."""
    before = node(Family.IPV6, addresses=["2001:db8::1"])
    after = node(Family.IPV6, addresses=["2001:db8::1", "fe80::1", "fe80::2"], large=True)
    assert rendering_facts(before) == rendering_facts(after)


def test_the_hashing_scheduler_hashes_ports_too() -> None:
    items = rendered(service(affinity_seconds=60), options=Options(scheduler="mh"))
    assert spec(items, WEB).flags == 0x11
    assert spec(items, WEB).timeout_seconds == 60


def test_host_ports_on_service_addresses_can_be_allowed() -> None:
    """By default a port of the host is not reachable through a service address."""
    chain = Chain(FILTER, IPVS_FILTER)
    for allowed, rejects in ((False, 1), (True, 0)):
        found = scaffold(node(), Options(host_ports_on_cluster_ips=allowed))[chain]
        assert isinstance(found, Rules)
        assert found.text.count("-j REJECT") == rejects


def test_set_names_of_ipv6_are_cut_to_what_ipset_allows() -> None:
    names = [set_name(Family.IPV6, name) for name in SetName]
    assert max(map(len, names)) == 31
    assert "KUBE-6-LOAD-BALANCER-SOURCE-CID" in names
    assert "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS" in names
    assert len(set(names)) == len(SetName)


@pytest.mark.parametrize("drain_seconds", [0.0, 30.0])
def test_what_a_policy_or_a_hint_no_longer_chooses_keeps_its_connections(
    drain_seconds: float,
) -> None:
    """No limit begins for it: it would have to be removed, and its connections with it."""
    here = RealServer("10.244.1.5", 8080, 1)
    elsewhere = RealServer("10.244.2.5", 8080, 0)
    by_policy = rendered(
        service(drain_seconds=drain_seconds, internal_local=True),
        endpoint(here.address, local=True),
        endpoint(elsewhere.address),
    )
    by_hint = rendered(
        service(drain_seconds=drain_seconds),
        endpoint(here.address, zones=["zone-a"]),
        endpoint(elsewhere.address, zones=["zone-b"]),
        on=node(zone="zone-a"),
    )
    for items in (by_policy, by_hint):
        assert spec(items, WEB).real_servers == (here, elsewhere)


def test_a_limit_begins_for_endpoints_that_take_no_new_connections() -> None:
    leaving = endpoint("10.244.2.5", ready=False, terminating=True)
    items = rendered(service(drain_seconds=30.0), endpoint("10.244.1.5"), leaving)
    assert spec(items, WEB).real_servers == (RealServer("10.244.1.5", 8080),)
    assert spec(items, WEB).drain_seconds == 30.0
