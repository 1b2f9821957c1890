"""The static part of the table, rule for rule, in nft's own words."""

from __future__ import annotations

import pytest
from tests.support.builders import node

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts
from kubeproxy.modes.nftables.items import Chain, ChainItem, ElementItem, SetItem
from kubeproxy.modes.nftables.names import BASE_CHAINS, layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.rules.text import format_rule
from kubeproxy.modes.nftables.scaffold import scaffold, set_specs


def rules_of(on: NodeFacts, chain: str, mark: int = 0x4000) -> list[str]:
    found = scaffold(on, Options(masquerade_mark=mark))[ChainItem(chain)]
    assert isinstance(found, Chain)
    return [format_rule(rule, layout_of(on.family)) for rule in found.rules]


JUMPS = {
    "filter-input": ["nodeport-endpoints-check", "service-endpoints-check"],
    "filter-forward": ["service-endpoints-check", "cluster-ips-check"],
    "filter-output": ["service-endpoints-check", "cluster-ips-check"],
    "filter-prerouting-pre-dnat": ["firewall-check"],
    "filter-output-pre-dnat": ["firewall-check"],
}


@pytest.mark.parametrize(("chain", "targets"), JUMPS.items())
def test_filter_hooks_look_at_new_connections_only(chain: str, targets: list[str]) -> None:
    """Established flows survive the loss of their endpoints."""
    assert rules_of(node(), chain) == [f"ct state new jump {target}" for target in targets]


@pytest.mark.parametrize("chain", ["nat-prerouting", "nat-output"])
def test_nat_hooks_go_to_services(chain: str) -> None:
    assert rules_of(node(), chain) == ["jump services"]


def test_base_chains_sit_where_upstreams_do() -> None:
    """Hook and priority are an interface to other software on the node."""
    places = {name: (h.type, h.number, h.priority) for name, h in BASE_CHAINS.items()}
    assert places == {
        "filter-prerouting-pre-dnat": ("filter", 0, -110),
        "filter-output-pre-dnat": ("filter", 3, -110),
        "filter-input": ("filter", 1, 0),
        "filter-forward": ("filter", 2, 0),
        "filter-output": ("filter", 3, 0),
        "nat-prerouting": ("nat", 0, -100),
        "nat-output": ("nat", 3, -100),
        "nat-postrouting": ("nat", 4, 100),
    }


def test_marked_and_hairpin_connections_are_masqueraded() -> None:
    """The mark bit is cleared on the way out."""
    assert rules_of(node(), "masquerading", mark=0x2000) == [
        "meta mark & 0x00002000 != 0x00000000 meta mark set meta mark ^ 0x00002000"
        " masquerade fully-random",
        "ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections"
        " masquerade fully-random",
    ]


def test_unserved_ports_are_rejected_and_unallocated_addresses_dropped() -> None:
    """One rule for each service network of the family."""
    on = node(service_cidrs=["10.96.0.0/12", "10.112.0.0/16"])
    assert rules_of(on, "cluster-ips-check") == [
        'ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"',
        'ip daddr 10.112.0.0/16 drop comment "Drop traffic to unallocated ClusterIPs"',
        'ip daddr 10.96.0.0/12 drop comment "Drop traffic to unallocated ClusterIPs"',
    ]
    assert len(rules_of(node(), "cluster-ips-check")) == 1


DETECTORS = [
    (LocalDetector(DetectorKind.CIDR, "10.244.0.0/16"), "ip saddr != 10.244.0.0/16"),
    (LocalDetector(DetectorKind.CIDR, "10.240.0.0/13"), "ip saddr != 10.240.0.0/13"),
    (LocalDetector(DetectorKind.BRIDGE, "cbr0"), 'iifname != "cbr0"'),
    (LocalDetector(DetectorKind.INTERFACE_PREFIX, "veth"), 'iifname != "veth*"'),
]


@pytest.mark.parametrize(("detector", "text"), DETECTORS)
def test_cluster_ip_traffic_from_elsewhere_is_masqueraded(
    detector: LocalDetector, text: str
) -> None:
    """What "elsewhere" means is the detector's business."""
    first = rules_of(node(detector=detector), "services")[0]
    assert first == (
        f"ip daddr @cluster-ips {text} meta mark set meta mark | 0x00004000"
        ' comment "masquerade clusterIP traffic from outside cluster"'
    )


def test_masquerade_all_beats_the_detector() -> None:
    assert rules_of(node(masquerade_all=True), "services")[0] == (
        "ip daddr @cluster-ips meta mark set meta mark | 0x00004000"
        ' comment "masquerade all clusterIP traffic"'
    )


def test_without_a_detector_nothing_is_masqueraded_for_cluster_ips() -> None:
    found = rules_of(node(detector=LocalDetector()), "services")
    assert found[0] == "ip daddr . meta l4proto . th dport vmap @service-ips"


@pytest.mark.parametrize(
    ("family", "dispatch", "check"),
    [
        (
            Family.IPV4,
            "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport"
            " vmap @service-nodeports",
            "ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @no-endpoint-nodeports",
        ),
        (
            Family.IPV6,
            "fib daddr type local ip6 daddr != ::1 meta l4proto . th dport vmap @service-nodeports",
            "ip6 daddr != ::1 meta l4proto . th dport vmap @no-endpoint-nodeports",
        ),
    ],
)
def test_unrestricted_node_ports_are_on_every_address_but_loopback(
    family: Family, dispatch: str, check: str
) -> None:
    assert rules_of(node(family), "services")[-1] == dispatch
    assert rules_of(node(family), "nodeport-endpoints-check") == [check]
    assert SetItem("nodeport-ips") not in scaffold(node(family), Options())


def test_restricted_node_ports_are_on_the_hosts_addresses_within_the_networks() -> None:
    """Loopback never is, even if configured."""
    on = node(
        node_port_cidrs=["192.0.2.0/24", "127.0.0.0/8"],
        addresses=["127.0.0.1", "192.0.2.10", "198.51.100.1"],
    )
    assert rules_of(on, "services")[-1] == (
        "ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports"
    )
    members = [i for i in scaffold(on, Options()) if isinstance(i, ElementItem)]
    assert members == [ElementItem("nodeport-ips", pack_address("192.0.2.10"))]


@pytest.mark.parametrize(
    ("family", "types"),
    [
        (
            Family.IPV4,
            {
                "cluster-ips": (7, 4),
                "hairpin-connections": (0x1C730D, 16),
                "service-ips": (0x730D, 12),
                "service-nodeports": (0x30D, 8),
            },
        ),
        (
            Family.IPV6,
            {
                "cluster-ips": (8, 16),
                "hairpin-connections": (0x20830D, 40),
                "service-ips": (0x830D, 24),
                "service-nodeports": (0x30D, 8),
            },
        ),
    ],
)
def test_sets_have_upstreams_types(family: Family, types: dict[str, tuple[int, int]]) -> None:
    """Otherwise neither proxy could take over the other's table."""
    specs = set_specs(layout_of(family))
    assert {n: (specs[n].key_type, specs[n].key_length) for n in types} == types
