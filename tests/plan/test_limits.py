"""Addresses that are refused, whatever an object says: as targets, and as a Service's own."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.builders import endpoint, node, plan, port, service

from kubeproxy.facts.address import contained_in_any, contains
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.limits import Limits
from kubeproxy.plan.limits import admit_endpoints, refused_kind
from kubeproxy.plan.types import FrontendKind, ServicePlan, Verdict

GOOD = endpoint("10.244.1.5")
VIP = "203.0.113.7"
CLUSTER_IPS = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00:10:96::a"}

REFUSED = {
    "127.0.0.1": "a loopback address",
    "127.255.3.4": "a loopback address",
    "169.254.169.254": "a link-local address",
    "224.0.0.1": "a multicast address",
    "239.255.255.255": "a multicast address",
    "255.255.255.255": "the broadcast address",
    "::1": "a loopback address",
    "fe80::1": "a link-local address",
    "febf::1": "a link-local address",
    "ff02::1": "a multicast address",
}
ALLOWED: tuple[str, ...] = (
    "10.0.0.1",
    "22.1.2.3",
    "223.1.1.1",
    "23.0.0.1",
    "169.253.0.1",
    "169.255.0.1",
    "240.0.0.1",
)
ALLOWED += ("2001:db8::1", "::1234", "fec0::1", "fe00::1", "fd00::1", "::ffff")
ALLOWED += ("ff::1", "ff0::", "fe8::1")


def reasons(made: ServicePlan) -> dict[str, str]:
    return {each.what: each.reason for each in made.excluded}


@pytest.mark.parametrize("address", REFUSED)
def test_no_endpoint_is_an_address_that_leads_into_the_node_or_to_everyone(address: str) -> None:
    """CVE-2021-25737: such endpoints led to what listens on the node itself."""
    family = Family.IPV6 if ":" in address else Family.IPV4
    bad = endpoint(address)
    made = plan(service(cluster_ip=CLUSTER_IPS[family]), [bad], node(family))
    assert made.reachable == made.hairpin == made.serving == ()
    assert {f.verdict for f in made.frontends} == {Verdict.REJECT}
    assert reasons(made) == {bad.text: f"refused: {REFUSED[address]}"}


def test_the_others_of_the_service_are_used() -> None:
    bad = endpoint("169.254.169.254", local=True)
    made = plan(service(), [GOOD, bad])
    assert made.reachable == (GOOD,)
    assert made.endpoint_count == 1


@pytest.mark.parametrize("address", ALLOWED)
def test_others_are_none_of_our_business(address: str) -> None:
    family = Family.IPV6 if ":" in address else Family.IPV4
    assert refused_kind(address) == ""
    assert admit_endpoints((endpoint(address),), node(family))[1] == ()


@given(st.ip_addresses())
@example(ipaddress.ip_address("ff0::"))
def test_the_quick_look_finds_what_the_long_one_refuses(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """Against the standard library, which knows the kinds by their networks."""
    family = Family.IPV4 if address.version == 4 else Family.IPV6
    is_broadcast = str(address) == "255.255.255.255"
    expected = address.is_loopback or address.is_link_local or address.is_multicast or is_broadcast
    (found,) = admit_endpoints((endpoint(str(address)),), node(family))[1] or (None,)
    assert (found is not None) is expected


@given(st.ip_addresses(), st.ip_addresses(), st.integers(0, 128))
def test_a_network_contains_what_the_standard_library_says(
    base: ipaddress.IPv4Address | ipaddress.IPv6Address,
    other: ipaddress.IPv4Address | ipaddress.IPv6Address,
    length: int,
) -> None:
    network = ipaddress.ip_network(f"{base}/{min(length, base.max_prefixlen)}", strict=False)
    assert contains(str(network), str(base))
    is_inside = other.version == network.version and other in network
    assert contains(str(network), str(other)) == is_inside


def test_endpoints_outside_the_allowed_networks_are_refused() -> None:
    """CVE-2021-25740: who writes endpoints chooses where the node sends traffic."""
    limits = Limits(endpoint_cidrs=("10.244.0.0/16",))
    other = endpoint("192.0.2.99")
    made = plan(service(), [GOOD, other], node(limits=limits))
    assert made.reachable == (GOOD,)
    assert reasons(made) == {other.text: "refused: not within --endpoint-cidrs"}


def test_a_list_of_one_family_allows_none_of_the_other() -> None:
    limits = Limits(endpoint_cidrs=("10.244.0.0/16",), external_ip_cidrs=("203.0.113.0/24",))
    six = endpoint("2001:db8::5")
    facts = service(cluster_ip=CLUSTER_IPS[Family.IPV6], external_ips=["2001:db8::7"])
    made = plan(facts, [six], node(Family.IPV6, limits=limits))
    assert set(reasons(made)) == {six.text, "2001:db8::7"}


def test_control_ports_of_the_node_are_no_endpoints_here() -> None:
    limits = Limits(refused_node_ports=((2379, 2380), (10250, 10250)))
    here = node(addresses=["192.0.2.10", "10.244.1.1"], limits=limits)
    kubelet = endpoint("192.0.2.10", port=10250)
    by_bridge = endpoint("10.244.1.1", port=2380)
    elsewhere = endpoint("192.0.2.11", port=10250)
    other_port = endpoint("192.0.2.10", port=9100)
    found, refused = admit_endpoints((kubelet, by_bridge, elsewhere, other_port), here)
    assert found == (elsewhere, other_port)
    assert [each.what for each in refused] == [kubelet.text, by_bridge.text]
    assert {each.reason for each in refused} == {
        "refused: a port of this node in --refused-node-ports"
    }
    assert all(each.is_here for each in refused), "only this node decides it"


@pytest.mark.parametrize("kind", [FrontendKind.EXTERNAL_IP, FrontendKind.LOAD_BALANCER])
def test_addresses_outside_the_allowed_networks_are_not_served(kind: FrontendKind) -> None:
    """CVE-2020-8554: who writes Services takes traffic to any address."""
    if kind is FrontendKind.EXTERNAL_IP:
        flag, facts = "--external-ip-cidrs", service(external_ips=[VIP, "198.51.100.1"])
        limits = Limits(external_ip_cidrs=("203.0.113.0/28",))
    else:
        flag, facts = "--load-balancer-cidrs", service(load_balancer_ips=[VIP, "198.51.100.1"])
        limits = Limits(load_balancer_cidrs=("203.0.113.0/28",))
    made = plan(facts, [GOOD], node(limits=limits))
    assert [f.address for f in made.frontends_of(kind)] == [VIP]
    assert reasons(made) == {"198.51.100.1": f"refused: not within {flag}"}


def test_one_list_does_not_limit_the_other() -> None:
    facts = service(external_ips=["198.51.100.1"], load_balancer_ips=["198.51.100.2"])
    made = plan(facts, [GOOD], node(limits=Limits(external_ip_cidrs=("203.0.113.0/28",))))
    assert list(reasons(made)) == ["198.51.100.1"]


@pytest.mark.parametrize(("family", "address"), [(Family.IPV4, "127.0.0.1"), (Family.IPV6, "::1")])
def test_no_service_takes_connections_of_the_node_to_itself(family: Family, address: str) -> None:
    """The API server lets a load balancer status have any address."""
    target = GOOD if family is Family.IPV4 else endpoint("2001:db8::5")
    facts = service(
        cluster_ip=CLUSTER_IPS[family], external_ips=[address], load_balancer_ips=[address]
    )
    made = plan(facts, [target], node(family))
    assert [f.kind for f in made.frontends] == [FrontendKind.CLUSTER_IP]
    assert address in reasons(made)


def test_without_lists_nothing_else_is_refused() -> None:
    facts = service(external_ips=["8.8.8.8"], load_balancer_ips=["9.9.9.9"], node_port=30080)
    made = plan(facts, [endpoint("192.0.2.10", port=10250)])
    assert made.excluded == ()
    assert contained_in_any("8.8.8.8", ("0.0.0.0/0",))


@pytest.mark.parametrize("own", [10249, 10256])
def test_no_service_takes_a_port_of_the_proxys_own_servers(own: int) -> None:
    """A node port wins over what listens on the node: the kubelet would ask the Service."""
    facts = service(node_port=own, load_balancer_ips=[VIP])
    made = plan(facts, [GOOD], node(own_ports=(10256, 10249)))
    kinds = [frontend.kind for frontend in made.frontends]
    assert kinds == [FrontendKind.CLUSTER_IP, FrontendKind.LOAD_BALANCER]
    assert made.node_port == 0
    assert reasons(made) == {f"node port {own}": "refused: a port of kube-proxy's own servers"}


def test_the_same_number_of_another_protocol_is_free() -> None:
    ports = [port(53, name="dns", protocol=Protocol.UDP, node_port=10256)]
    made = plan(service(ports=ports), [GOOD], node(own_ports=(10256,)))
    assert [f.port for f in made.frontends_of(FrontendKind.NODE_PORT)] == [10256]
