"""Node port addresses of one family."""

from __future__ import annotations

from tests.support.builders import node

from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import node_port_cidrs_of


def test_nothing_of_a_family_means_all_its_addresses() -> None:
    assert node_port_cidrs_of(Family.IPV6, ("192.0.2.0/24",)) == ("::/0",)
    assert node_port_cidrs_of(Family.IPV4, ()) == ("0.0.0.0/0",)


def test_a_zero_network_swallows_the_others() -> None:
    assert node_port_cidrs_of(Family.IPV4, ("192.0.2.0/24", "0.0.0.0/0")) == ("0.0.0.0/0",)


def test_only_addresses_within_the_networks_serve_node_ports() -> None:
    facts = node(node_port_cidrs=["192.0.2.0/24"], addresses=["127.0.0.1", "192.0.2.10"])
    assert not facts.node_ports_match_all
    assert facts.node_port_addresses == ("192.0.2.10",)
    assert node(addresses=["127.0.0.1"]).node_port_addresses == ("127.0.0.1",)


def test_loopback_is_included_by_a_network_within_it_or_around_it() -> None:
    assert node(node_port_cidrs=["0.0.0.0/0"]).node_ports_include_ipv4_loopback
    assert node(node_port_cidrs=["127.0.0.1/32"]).node_ports_include_ipv4_loopback
    assert node(node_port_cidrs=["126.0.0.0/7"]).node_ports_include_ipv4_loopback
    assert not node(node_port_cidrs=["192.0.2.0/24"]).node_ports_include_ipv4_loopback
    assert not node(Family.IPV6).node_ports_include_ipv4_loopback


def test_link_local_addresses_count_where_node_ports_ask_for_them() -> None:
    found = ("2001:db8::1", "fe80::1", "fec0::1")
    everywhere = node(Family.IPV6)
    assert everywhere.with_addresses(found).addresses == ("2001:db8::1", "fec0::1")
    there = node(Family.IPV6, node_port_cidrs=("fe80::/64",))
    assert there.with_addresses(found).addresses == found
