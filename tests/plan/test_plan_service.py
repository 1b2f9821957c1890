"""Frontends: where traffic arrives and what becomes of it."""

from __future__ import annotations

from tests.support.builders import endpoint, node, plan, plans, port, service

from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import LocalDetector
from kubeproxy.plan.types import FrontendKind, Masquerade, PoolName, Verdict

HERE = endpoint("10.244.1.5", local=True)
THERE = endpoint("10.244.2.5")


def test_a_cluster_ip_forwards_to_the_cluster_pool() -> None:
    (frontend,) = plan(service(), [THERE]).frontends
    assert (frontend.kind, frontend.verdict) == (FrontendKind.CLUSTER_IP, Verdict.FORWARD)
    assert frontend.pool is PoolName.CLUSTER
    assert frontend.reason == "policy Cluster"


def test_without_endpoints_every_frontend_rejects() -> None:
    made = plan(
        service(node_port=30080, external_ips=["203.0.113.1"], load_balancer_ips=["203.0.113.2"])
    )
    assert {f.verdict for f in made.frontends} == {Verdict.REJECT}
    assert not any(f.accepts_anyone for f in made.frontends)


def test_external_policy_local_drops_outsiders_without_a_local_endpoint() -> None:
    made = plan(service(node_port=30080, external_local=True), [THERE])
    (node_port,) = made.frontends_of(FrontendKind.NODE_PORT)
    assert node_port.verdict is Verdict.DROP
    assert node_port.has_short_circuit and node_port.accepts_anyone
    assert made.frontends_of(FrontendKind.CLUSTER_IP)[0].verdict is Verdict.FORWARD
    assert made.has_internal and not made.has_external


def test_internal_policy_local_drops_without_a_local_endpoint() -> None:
    made = plan(service(internal_local=True), [THERE])
    (frontend,) = made.frontends
    assert (frontend.verdict, frontend.pool) == (Verdict.DROP, PoolName.LOCAL)


def test_cluster_ip_masquerade_follows_configuration_and_detector() -> None:
    def masquerade(**kind: object) -> Masquerade:
        return plan(service(), [HERE], node(**kind)).frontends[0].masquerade  # type: ignore[arg-type]

    assert masquerade() is Masquerade.NOT_LOCAL_PODS
    assert masquerade(masquerade_all=True) is Masquerade.ALWAYS
    assert masquerade(detector=LocalDetector()) is Masquerade.NEVER


def test_external_traffic_is_masqueraded_unless_the_policy_is_local() -> None:
    cluster = plan(service(node_port=30080), [HERE]).frontends[-1]
    local = plan(service(node_port=30080, external_local=True), [HERE]).frontends[-1]
    assert cluster.masquerade is Masquerade.ALWAYS
    assert local.masquerade is Masquerade.NODE_ITSELF


def test_source_ranges_apply_to_load_balancers_only() -> None:
    made = plan(
        service(
            node_port=30080,
            external_ips=["203.0.113.1"],
            load_balancer_ips=["203.0.113.2"],
            source_ranges=["198.51.100.0/24"],
        ),
        [HERE],
    )
    ranges = {f.kind: f.source_ranges for f in made.frontends}
    assert ranges[FrontendKind.LOAD_BALANCER] == ("198.51.100.0/24",)
    assert not ranges[FrontendKind.EXTERNAL_IP] and not ranges[FrontendKind.NODE_PORT]


def test_a_node_within_the_ranges_may_use_the_vips_as_source() -> None:
    facts = service(load_balancer_ips=["203.0.113.2"], source_ranges=["192.0.2.0/24"])
    assert plan(facts, [HERE]).frontends[-1].vip_sources == ("203.0.113.2",)
    outside = node(ip="198.51.100.1")
    assert plan(facts, [HERE], outside).frontends[-1].vip_sources == ()


def test_the_gate_hides_external_ips_but_the_service_stays_accessible() -> None:
    made = plan(service(external_ips=["203.0.113.1"]), [HERE], node(external_ips=False))
    assert not made.frontends_of(FrontendKind.EXTERNAL_IP)
    assert made.is_externally_accessible
    assert made.excluded[-1].what == "203.0.113.1"


def test_only_udp_ports_remember_who_serves() -> None:
    both = service(
        ports=[port(53, name="dns", protocol=Protocol.UDP), port(53, name="tcp")],
    )
    udp, tcp = plans(both, [HERE, endpoint("10.244.2.6", ready=False, terminating=True)])
    assert len(udp.serving) == 2
    assert tcp.serving == ()


def test_each_port_is_planned_by_itself() -> None:
    made = plans(service(ports=[port(80, name="a"), port(81, name="b")]), [HERE])
    assert [(p.id.port, p.port) for p in made] == [("a", 80), ("b", 81)]
    assert made[0].id.label == "default/web:a"
