"""A short text becomes a cluster with addresses, or a clear error."""

from __future__ import annotations

import pytest

from kpctl.lab import wiring
from kpctl.lab.topology import POD_CIDR, ROUTER, Addresses, Topology, parse_topology
from kubeproxy.errors import ConfigError
from kubeproxy.facts.address import contains
from kubeproxy.facts.ids import Family


def test_every_host_has_its_own_address_in_both_families(topology: Topology) -> None:
    """No two hosts share an address."""
    addresses = [host.addresses.of(family) for host in topology.hosts for family in Family]
    gateways = [node.gateway.of(family) for node in topology.nodes for family in Family]
    assert len(set(addresses + gateways)) == len(addresses) + len(gateways)


@pytest.mark.parametrize("family", Family)
def test_pods_live_in_their_nodes_network(topology: Topology, family: Family) -> None:
    """A pod's address is in its node's pod network, and that in the cluster's."""
    for pod in topology.pods:
        assert contains(topology.node(pod.node).pod_cidr(family), pod.addresses.of(family))
        assert contains(POD_CIDR[family], pod.addresses.of(family))


def test_entry_node_is_own_node_or_ingress(topology: Topology) -> None:
    """Pods and nodes enter at their node, clients at the node the router sends them to."""
    entries = {name: topology.entry_node(name).name for name in ("web-3", "node-a", "outside-b")}
    assert entries == {"web-3": "node-b", "node-a": "node-a", "outside-b": "node-b"}


def test_owner_knows_gateways(topology: Topology) -> None:
    """A masqueraded packet may carry the bridge's address: it is the node's."""
    assert topology.owner("10.244.1.1") == "node-b"
    assert topology.owner("10.244.0.11") == "web-2"
    assert topology.owner("203.0.113.1") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: {}", "1 to 200 nodes"),
        ("nodes: {a: {pods: [a]}}", "names 'a' twice"),
        ("nodes: {router: {}}", "'router' twice"),
        ("nodes: {A: {}}", "'A' is no host name"),
        ("nodes: {a: {}}\nclients: {c: b}", "enters at 'b', which is not a node"),
        ("nodes: {a: {colour: red}}", "unknown field"),
        ("nodes: [", "cannot be read"),
    ],
)
def test_a_wrong_topology_is_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_topology(text)


def test_unknown_host_names_the_known_ones(topology: Topology) -> None:
    with pytest.raises(ConfigError, match="no host 'web-9'; it has node-a, node-b, web-1"):
        topology.host("web-9")


def test_only_routers_and_nodes_forward(topology: Topology) -> None:
    """A pod that forwarded would hide a missing rule."""
    forwarding = {
        name for name in topology.names if "net/ipv4/ip_forward" in wiring.sysctls(name, topology)
    }
    assert forwarding == {ROUTER, "node-a", "node-b"}


def test_clients_virtual_addresses_enter_at_their_own_node(topology: Topology) -> None:
    lines = wiring.ingress_commands(topology, Family.IPV4)
    assert lines == (
        "route add 203.0.113.0/24 via 192.0.2.10 table 100",
        "route add 10.96.0.0/16 via 192.0.2.10 table 100",
        "rule add iif c0 lookup 100",
        "route add 203.0.113.0/24 via 192.0.2.11 table 101",
        "route add 10.96.0.0/16 via 192.0.2.11 table 101",
        "rule add iif c1 lookup 101",
    )


def test_addresses_are_canonical() -> None:
    first = parse_topology("nodes: {a: {pods: [p]}}").pods[0]
    assert first.addresses == Addresses("10.244.0.10", "fd00:10:244::a")
