"""What becomes of a client: policy, source ranges and masquerading, each with the reason."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, node, plan, service

from kpctl.report.sources import Kind, Way, check_source, sources_of, way_of
from kpctl.snapshot.target import WrongQuestion
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.plan.types import FrontendKind

HERE = endpoint("10.244.1.5", local=True)
THERE = endpoint("10.244.2.5")


def way(
    source: str,
    facts: ServiceFacts,
    kind: FrontendKind = FrontendKind.CLUSTER_IP,
    *,
    on: NodeFacts | None = None,
    endpoints: tuple[object, ...] = (HERE, THERE),
    mode: str = "nftables",
) -> Way:
    on = on or node()
    found = plan(facts, endpoints, on)  # type: ignore[arg-type]
    (client,) = sources_of(source, on, lambda: {HERE.address})
    (frontend,) = found.frontends_of(kind)
    return way_of(found, frontend, client, node=on, mode=mode)


def test_a_client_is_told_apart_by_its_address() -> None:
    kinds = {
        text: sources_of(text, node(), set)[0].kind
        for text in ("10.244.9.9", "192.0.2.10", "8.8.8.8")
    }
    assert kinds == {"10.244.9.9": Kind.POD, "192.0.2.10": Kind.NODE, "8.8.8.8": Kind.OUTSIDE}


def test_where_interfaces_tell_pods_apart_an_endpoint_of_this_node_is_one() -> None:
    on = node(detector=LocalDetector(DetectorKind.BRIDGE, "cbr0"))
    (pod,) = sources_of("10.244.1.5", on, lambda: {"10.244.1.5"})
    (other,) = sources_of("10.244.1.9", on, lambda: {"10.244.1.5"})
    assert (pod.kind, other.kind) == (Kind.POD, Kind.OUTSIDE)
    assert "cbr0" in pod.why and "cbr0" in other.why


def test_without_a_detector_pods_are_like_all_others() -> None:
    on = node(detector=LocalDetector())
    assert [source.kind for source in sources_of("", on, set)] == [Kind.NODE, Kind.OUTSIDE]
    assert [source.kind for source in sources_of("", node(), set)] == list(Kind)


def test_a_source_is_an_address_or_a_word() -> None:
    assert check_source("010.0.0.1") == "10.0.0.1"
    with pytest.raises(WrongQuestion, match="--from web"):
        check_source("web")


def test_a_pod_of_this_node_keeps_its_address_and_others_do_not() -> None:
    assert not way("10.244.9.9", service()).is_masqueraded
    assert way("node", service()).is_masqueraded
    outside = way("outside", service())
    assert outside.is_masqueraded and "10.244.0.0/16" in outside.masquerade_because


def test_an_endpoint_that_reaches_itself_is_mentioned() -> None:
    assert "itself" in way("10.244.1.5", service()).masquerade_because
    assert "itself" not in way("10.244.9.9", service()).masquerade_because


def test_masquerade_all_and_its_opposite_are_named() -> None:
    assert (
        "masquerade-all"
        in way("outside", service(), on=node(masquerade_all=True)).masquerade_because
    )
    never = way("outside", service(), on=node(detector=LocalDetector()))
    assert not never.is_masqueraded and "not recognised" in never.masquerade_because


def test_in_userspace_mode_the_proxy_connects_itself() -> None:
    assert way("10.244.9.9", service(), mode="userspace").is_masqueraded


def test_policy_local_applies_to_clients_from_outside_only() -> None:
    facts = service(node_port=30080, external_local=True)
    outside = way("outside", facts, FrontendKind.NODE_PORT)
    assert outside.endpoints == (HERE.text,) and not outside.is_masqueraded
    pod = way("10.244.9.9", facts, FrontendKind.NODE_PORT)
    assert pod.endpoints == (HERE.text, THERE.text)
    dropped = way("outside", facts, FrontendKind.NODE_PORT, endpoints=(THERE,))
    assert dropped.verdict == "drop" and "Local" in dropped.because


def test_source_ranges_admit_or_drop() -> None:
    facts = service(load_balancer_ips=["203.0.113.7"], source_ranges=["198.51.100.0/24"])
    kind = FrontendKind.LOAD_BALANCER
    assert way("198.51.100.9", facts, kind).is_forwarded
    dropped = way("198.51.101.9", facts, kind)
    assert dropped.verdict == "drop" and "198.51.100.0/24" in dropped.because
    assert "only from 198.51.100.0/24" in way("outside", facts, kind).because


@pytest.mark.parametrize(("mode", "verdict"), [("nftables", "drop"), ("iptables", "reject")])
def test_without_endpoints_modes_differ_in_what_a_stranger_gets(mode: str, verdict: str) -> None:
    facts = service(load_balancer_ips=["203.0.113.7"], source_ranges=["198.51.100.0/24"])
    found = way("8.8.8.8", facts, FrontendKind.LOAD_BALANCER, endpoints=(), mode=mode)
    assert found.verdict == verdict


@pytest.mark.parametrize("kind", [FrontendKind.CLUSTER_IP, FrontendKind.NODE_PORT])
def test_lists_of_sources_admit_or_drop_at_every_frontend(kind: FrontendKind) -> None:
    facts = service(node_port=30080, allow_sources=["10.0.0.0/8"], deny_sources=["10.9.0.0/16"])
    assert way("10.1.2.3", facts, kind).is_forwarded
    assert "admitted by its lists of sources" in way("10.1.2.3", facts, kind).because
    denied, other = way("10.9.0.1", facts, kind), way("8.8.8.8", facts, kind)
    assert (denied.verdict, other.verdict) == ("drop", "drop")
    assert "kubeproxy/deny-sources" in denied.because
    assert "kubeproxy/allow-sources" in other.because
    assert way("node", facts, kind).verdict == "drop"
    outside = way("outside", facts, kind)
    assert "only from 10.0.0.0/8, not from 10.9.0.0/16" in outside.because


def test_lists_of_sources_do_not_matter_without_endpoints() -> None:
    found = way("8.8.8.8", service(allow_sources=["10.0.0.0/8"]), endpoints=())
    assert found.verdict == "reject"
