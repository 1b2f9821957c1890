"""Each check of `kpctl doctor`: what is right is found right, and what is broken is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.support import snapshots
from tests.support.builders import endpoint, endpoint_slice, service

from kpctl.doctor import checks
from kpctl.doctor.checks import Case, examine
from kpctl.doctor.findings import Finding, Level
from kpctl.doctor.host import Host, Link, RuleSet
from kpctl.snapshot.live import snapshot_of
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.ids import Family
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.inspection.types import (
    Collection,
    Held,
    History,
    Problem,
    Refused,
    Status,
)

FORWARDING = "net/ipv4/ip_forward"


def status(
    mode: str = "nftables",
    *,
    is_healthy: bool = True,
    refused: tuple[Refused, ...] = (),
    collection: Collection | None = None,
    problems: tuple[Problem, ...] = (),
) -> Status:
    return snapshots.status(
        mode=mode,
        families=[Family.IPV4],
        is_healthy=is_healthy,
        refused=refused,
        collections=[collection or Collection("services", "watching", 5.0)],
        problems=problems,
    )


def snapshot(shown: Status | None = None, facts: ServiceFacts | None = None) -> Snapshot:
    facts = facts or service(node_port=30080)
    held = Held(
        name=facts.name,
        family=Family.IPV4,
        service=facts,
        slices=(endpoint_slice(str(facts.name), [endpoint()]),),
    )
    return snapshot_of("test", shown or status(), History((), ()), [held])


def case(host: Host | None = None, shown: Status | None = None) -> Case:
    return Case(host or Host(), snapshot(shown))


def levels(found: Iterator[Finding]) -> list[Level]:
    return [finding.level for finding in found]


def broken(found: Iterator[Finding]) -> Finding:
    """The one finding that is not in order, which has a remedy."""
    (finding,) = (f for f in found if f.level is not Level.OK)
    assert finding.remedy
    return finding


def test_a_proxy_that_keeps_up_is_in_order() -> None:
    assert levels(checks.check_proxy(case())) == [Level.OK]


def test_a_proxy_that_does_not_answer_is_a_failure() -> None:
    found = broken(checks.check_proxy(Case(Host(), proxy_problem="no kube-proxy answers")))
    assert found.text == "no kube-proxy answers"


@pytest.mark.parametrize(
    "shown", [status(is_healthy=False), status(refused=(Refused("shop/web", "no"),))]
)
def test_a_proxy_that_does_not_keep_up_or_is_refused_is_a_failure(shown: Status) -> None:
    assert broken(checks.check_proxy(case(shown=shown))).level is Level.FAILURE


def test_a_second_proxy_and_rules_of_another_mode_are_named() -> None:
    two = Host(proxies=("kube-proxy (process 1)", "kube-proxy (process 2)"))
    assert "process 2" in broken(checks.check_other_proxies(case(two))).text
    left = Host(rule_sets=(RuleSet("iptables", "iptables-legacy"),))
    assert "iptables-legacy" in broken(checks.check_other_proxies(case(left))).text
    own = Host(rule_sets=(RuleSet("nftables", "nftables table of IPv4"),))
    assert levels(checks.check_other_proxies(case(own))) == [Level.OK]


def test_a_watch_that_fails_is_named_with_its_problem() -> None:
    failing = status(collection=Collection("services", "failing", 7.0, "connection refused"))
    assert "connection refused" in broken(checks.check_api(case(shown=failing))).text
    assert levels(checks.check_api(case())) == [Level.OK]


def test_an_object_that_is_left_out_is_a_warning() -> None:
    shown = status(problems=(Problem(1.0, "Service", "shop/web", "bad port"),))
    assert broken(checks.check_api(case(shown=shown))).level is Level.WARNING


@pytest.mark.parametrize(("value", "level"), [("0", Level.FAILURE), ("1", Level.OK)])
def test_forwarding_matters_where_a_family_has_endpoints(value: str, level: Level) -> None:
    assert levels(checks.check_forwarding(case(Host(sysctls={FORWARDING: value})))) == [level]


def test_an_address_without_a_route_is_named_for_what_it_is() -> None:
    no_endpoint = case(Host(unreachable={"10.244.1.5": "Network is unreachable"}))
    assert "endpoint 10.244.1.5" in broken(checks.check_routes(no_endpoint)).text
    no_vip = case(Host(unreachable={"10.96.0.10": "Network is unreachable"}))
    assert "virtual address 10.96.0.10" in broken(checks.check_routes(no_vip)).text
    assert levels(checks.check_routes(case())) == [Level.OK]


def test_strict_source_checks_matter_on_a_host_with_two_networks() -> None:
    one = Link("eth0", "", True, "1")
    assert levels(checks.check_rp_filter(case(Host(links=(one,))))) == [Level.OK]
    two = Host(links=(one, Link("eth1", "", True, "1")))
    assert "rp_filter=2" in broken(checks.check_rp_filter(case(two))).remedy


@pytest.mark.parametrize(
    ("count", "level"), [("10", Level.OK), ("80", Level.WARNING), ("96", Level.FAILURE)]
)
def test_a_conntrack_table_that_fills_up_is_noticed(count: str, level: Level) -> None:
    values = {"net/netfilter/nf_conntrack_count": count, "net/netfilter/nf_conntrack_max": "100"}
    assert levels(checks.check_conntrack(case(Host(sysctls=values)))) == [level]


def test_packets_that_conntrack_dropped_are_a_warning() -> None:
    assert (
        "7 packets" in broken(checks.check_conntrack(case(Host(conntrack_drops={"drop": 7})))).text
    )


def test_rules_in_both_variants_of_iptables_are_a_warning() -> None:
    both = Host(rule_counts={"nft": 3, "legacy": 9})
    assert "legacy: 9 rules" in broken(checks.check_variant(case(both))).text
    one = Host(rule_counts={"nft": 3, "legacy": 0})
    assert levels(checks.check_variant(case(one, status("iptables")))) == [Level.OK]


def test_a_bridge_that_does_not_call_iptables_is_a_warning() -> None:
    values = {"net/bridge/bridge-nf-call-iptables": "0"}
    with_bridge = Host(sysctls=values, links=(Link("cni0", "bridge", True, ""),))
    assert broken(checks.check_bridges(case(with_bridge)))
    assert not list(checks.check_bridges(case(Host(sysctls=values))))


def test_node_ports_within_local_ports_or_taken_by_a_program_are_warnings() -> None:
    overlap = {"net/ipv4/ip_local_port_range": "30000 60999"}
    assert broken(checks.check_node_ports(case(Host(sysctls=overlap))))
    reserved = {**overlap, "net/ipv4/ip_local_reserved_ports": "8080,30000-32767"}
    assert levels(checks.check_node_ports(case(Host(sysctls=reserved)))) == [Level.OK]
    taken = Host(listening={30080: "0.0.0.0"})
    assert "default/web" in broken(checks.check_node_ports(case(taken))).text


def test_load_balancer_addresses_in_ipvs_mode_want_strict_arp() -> None:
    facts = service(load_balancer_ips=["192.0.2.1"])
    host = Host(sysctls={"net/ipv4/conf/all/arp_ignore": "0"})
    assert broken(checks.check_arp(Case(host, snapshot(status("ipvs"), facts))))
    assert not list(checks.check_arp(Case(host, snapshot(status("ipvs")))))


@pytest.mark.parametrize(("is_right", "level"), [(False, Level.WARNING), (True, Level.OK)])
def test_a_clock_that_nothing_keeps_right_is_a_warning(is_right: bool, level: Level) -> None:
    found = checks.check_clock(case(Host(is_clock_synchronized=is_right)))
    assert levels(found) == [level]


def test_what_the_mode_lacks_is_a_failure() -> None:
    lacking = Case(Host(), snapshot(), unsupported="the kernel has no ipset")
    assert "ipset" in broken(checks.check_support(lacking)).text


@pytest.mark.parametrize("check", checks.CHECKS)
def test_no_check_fails_where_nothing_could_be_read(check: Callable[[Case], object]) -> None:
    assert examine(Case(Host()))
    assert check in checks.CHECKS
