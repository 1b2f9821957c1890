"""The tracer that shows what rendered rules, or a capture of them, do with a packet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.builders import endpoint, node, plan, service

from kpctl.trace.matches import Context
from kpctl.trace.packets import Arrival, Ruling, Untraceable
from kpctl.trace.rules import RuleTracer, rules_of_text
from kpctl.trace.tracers import trace_plans
from kubeproxy.facts.ids import Family, Protocol, ServicePortId
from kubeproxy.modes.iptables.names import endpoint_chains
from kubeproxy.modes.netfilter.rules.text import TableText, parse_save
from kubeproxy.plan.types import ServicePlan

_GOLDEN = Path(__file__).parents[1] / "golden" / "iptables"


def arrival(destination: str, port: int, source: str = "203.0.113.9") -> Arrival:
    return Arrival(Family.IPV4, Protocol.TCP, source, destination, port, interface="eth0")


def traced(plans: Sequence[ServicePlan]) -> RuleTracer:
    tracer = trace_plans(plans, node(), mode="iptables")
    assert isinstance(tracer, RuleTracer)
    return tracer


def test_endpoints_are_chosen_evenly() -> None:
    """The probabilities of a chain give every endpoint the same share."""
    endpoints = [endpoint(f"10.244.1.{number}") for number in range(1, 8)]
    tracer = traced([plan(service(), endpoints)])
    spread = tracer.spread(arrival("10.96.0.10", 80))
    assert len(spread) == 7
    assert all(abs(float(share) - 1 / 7) < 1e-9 for share in spread.values())


def test_affinity_sends_a_known_client_back() -> None:
    """A client on an endpoint's list goes there, whatever the lots say."""
    endpoints = [endpoint(f"10.244.1.{number}") for number in range(1, 4)]
    tracer = traced([plan(service(affinity_seconds=60), endpoints)])
    port = ServicePortId("default", "web", "http", Protocol.TCP)
    chain = endpoint_chains(port, ["10.244.1.2:8080"])["10.244.1.2:8080"]
    ways = tracer.ways(arrival("10.96.0.10", 80), frozenset({chain}))
    assert {way.destination for way in ways} == {"10.244.1.2"}


def test_a_capture_of_upstream_can_be_traced() -> None:
    """The tracer reads iptables-save too: upstream's rules forward where ours do."""
    saved = (_GOLDEN / "nodeport-local-no-local" / "expected.txt").read_text()
    tracer = RuleTracer(rules_of_text(parse_save(saved)), Context(frozenset({"192.0.2.10"})))
    from_outside = tracer.trace(arrival("192.0.2.10", 30180))
    from_pod = tracer.trace(arrival("192.0.2.10", 30180, source="10.244.1.77"))
    assert from_outside.ruling is Ruling.DROP
    assert from_pod.endpoints == {("10.244.2.32", 8080), ("10.244.3.32", 8080)}
    assert not from_pod.masqueraded


def test_an_unknown_match_is_an_error() -> None:
    """Better no answer than a wrong one."""
    table = TableText("nat", {"OUTPUT": "ACCEPT"}, {"OUTPUT": "-A OUTPUT -m owner --uid-owner 0\n"})
    tracer = RuleTracer(rules_of_text([table]), Context(frozenset()))
    own = Arrival(Family.IPV4, Protocol.TCP, "192.0.2.10", "10.96.0.10", 80)
    with pytest.raises(Untraceable, match="unknown match '--uid-owner'"):
        tracer.trace(own)
