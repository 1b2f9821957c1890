"""Counters per Service: bounded, never falling, and refusals counted once."""

from __future__ import annotations

from kubeproxy.facts.ids import Protocol, ServiceName, ServicePortId
from kubeproxy.modes.base import RefusedPackets
from kubeproxy.modes.netfilter.rules.refused import parse_refused
from kubeproxy.status.exposition import TEXT, encode
from kubeproxy.status.metrics import Metrics
from kubeproxy.status.service_counters import ServiceCounters

WEB, API = ServiceName("shop", "web"), ServiceName("shop", "api")
PORT = ServicePortId("shop", "web", "http", Protocol.TCP)


def shown(counters: ServiceCounters) -> str:
    return encode(counters.collect(), TEXT).decode()


def test_the_first_services_have_series_and_the_others_count_together() -> None:
    counters = ServiceCounters(1)
    counters.connected(WEB)
    counters.connected(API)
    counters.connected(ServiceName("shop", "third"))
    counters.connected(WEB)
    text = shown(counters)
    assert 'kubeproxy_service_connections_total{name="web",namespace="shop"} 2' in text
    assert 'kubeproxy_service_connections_total{name="other",namespace=""} 2' in text
    assert "api" not in text


def test_bytes_are_counted_by_direction() -> None:
    counters = ServiceCounters(5)
    counters.ended(WEB, sent=10, received=1000)
    counters.ended(WEB, sent=1, received=0)
    text = shown(counters)
    assert 'bytes_total{direction="sent",name="web",namespace="shop"} 11' in text
    assert 'bytes_total{direction="received",name="web",namespace="shop"} 1000' in text


def refused(packets: int) -> list[RefusedPackets]:
    return [RefusedPackets(PORT, "reject", "has no endpoints", packets)]


def test_a_rule_that_is_written_again_counts_from_zero() -> None:
    counters = ServiceCounters(5)
    for packets in (3, 5, 2, 2):
        counters.refused(refused(packets))
    labels = 'action="reject",name="web",namespace="shop",reason="has no endpoints"'
    assert f"refused_packets_total{{{labels}}} 7" in shown(counters)


SAVED = """\
*filter
:KUBE-SERVICES - [0:0]
[12:720] -A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "shop/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
[1:60] -A KUBE-EXTERNAL-SERVICES -p udp -m comment --comment "shop/dns:dns has no local endpoints" -m addrtype --dst-type LOCAL -m udp --dport 30053 -j DROP
[4:60] -A KUBE-PROXY-FIREWALL -d 198.51.100.7/32 -p tcp -m comment --comment "shop/web:http traffic not accepted by KUBE-FW-ABCDEFGH" -m tcp --dport 80 -j DROP
[7:60] -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
[9:60] -A OTHER -p tcp -m comment --comment "shop/web:http" -j DROP
[5:60] -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -j ACCEPT
COMMIT
"""  # noqa: E501 - as the tool prints it


def test_refused_packets_are_read_from_the_counters_of_rules() -> None:
    """Rules of other programs, and rules that name no Service, are left out."""
    assert parse_refused(SAVED) == [
        RefusedPackets(PORT, "reject", "has no endpoints", 12),
        RefusedPackets(
            ServicePortId("shop", "dns", "dns", Protocol.UDP), "drop", "has no local endpoints", 1
        ),
        RefusedPackets(PORT, "drop", "source is not in loadBalancerSourceRanges", 4),
    ]


def test_without_the_flag_nothing_is_shown() -> None:
    _, body = Metrics("iptables").scrape()
    assert b"kubeproxy_service_" not in body
