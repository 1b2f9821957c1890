"""How rules name service ports and local pods, in all modes that use iptables."""

from __future__ import annotations

import pytest

from kubeproxy.facts.node import DetectorKind, LocalDetector
from kubeproxy.modes.netfilter.items import SortKey
from kubeproxy.modes.netfilter.rules.comments import service_port_of
from kubeproxy.modes.netfilter.rules.matches import from_local_pods


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ('-p tcp -m comment --comment "a/b:http cluster IP"', ("a", "b", "http", "TCP")),
        ("-p udp -m comment --comment a/b", ("a", "b", "", "UDP")),
        ('-m comment --comment "a/b:http cluster IP"', None),
        ('-p tcp -m comment --comment "my own rule"', None),
        ('-p tcp -m comment --comment ""', None),
        ("-p tcp", None),
    ],
)
def test_a_rule_names_its_service_port(match: str, expected: SortKey | None) -> None:
    """By its comment and protocol, or not at all."""
    assert service_port_of(f"-A KUBE-SERVICES {match} -j X") == expected


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (DetectorKind.CIDR, "10.0.0.0/8", "-s 10.0.0.0/8"),
        (DetectorKind.BRIDGE, "br0", "-i br0"),
        (DetectorKind.INTERFACE_PREFIX, "veth", "-i veth+"),
    ],
)
def test_local_pods_are_matched_as_they_are_detected(
    kind: DetectorKind, value: str, expected: str
) -> None:
    """By their network, by the bridge, or by the beginning of the interface's name."""
    assert from_local_pods(LocalDetector(kind, value)) == expected
