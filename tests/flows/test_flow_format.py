"""Flow files are read as they are written, and mistakes in them are explained."""

from __future__ import annotations

from functools import partial

import pytest

from kpctl.flows.flow import Apply, StopLoad, parse_flow
from kpctl.flows.objects import World, service_manifest, slice_manifests
from kpctl.flows.run import run_traced
from kpctl.flows.text import (
    EndpointText,
    Expected,
    Packet,
    PortText,
    Responders,
    parse_endpoint,
    parse_expected,
    parse_packet,
    parse_port,
)
from kpctl.lab.probe import Fate
from kpctl.lab.topology import Topology
from kpctl.trace.plan import PlanTracer, traits_of
from kubeproxy.errors import ConfigError
from kubeproxy.facts.ids import Family, Protocol

SMALL = """
title: small
services:
  web:
    type: NodePort
    ports: {http: "80 -> 8080, node port 30080"}
    externalIPs: [vip-3]
    endpoints: [web-a1, "web-b1 (http 9090)"]
steps:
  - packets: {"client-a -> web:http": "FATE"}
"""


def small(fate: str) -> str:
    return SMALL.replace("FATE", fate)


@pytest.mark.parametrize(
    ("text", "packet"),
    [
        ("client-a -> web:http", Packet("client-a -> web:http", "client-a", "web", "http")),
        (
            "client-a@41 -> web:53/UDP (again)",
            Packet("client-a@41 -> web:53/UDP (again)", "client-a", "web", "53", Protocol.UDP, 41),
        ),
    ],
)
def test_packets(text: str, packet: Packet) -> None:
    assert parse_packet(text) == packet


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dropped", Expected(Fate.DROPPED)),
        ("web-a1", Expected(Fate.ANSWERED, (Responders(("web-a1",)),))),
        (
            "a or b sees c; d sees e, evenly, 30 times",
            Expected(
                Fate.ANSWERED,
                (Responders(("a", "b"), "c"), Responders(("d",), "e")),
                times=30,
                is_even=True,
            ),
        ),
        ("a, sticky", Expected(Fate.ANSWERED, (Responders(("a",)),), times=12, is_sticky=True)),
        ("a, still b", Expected(Fate.ANSWERED, (Responders(("a",)),), still="b")),
        ("a, not only b", Expected(Fate.ANSWERED, (Responders(("a",)),), not_only="b")),
    ],
)
def test_fates(text: str, expected: Expected) -> None:
    assert parse_expected(text) == expected


def test_who_sees_whom_is_looked_up_by_host() -> None:
    expected = parse_expected("a or b sees c; d")
    assert [expected.seen_by(host) for host in "abd"] == ["c", "c", ""]
    assert expected.hosts == {"a", "b", "d"}


def test_ports() -> None:
    assert parse_port("-", "53/UDP -> 5353, node port 30053") == PortText(
        "", 53, 5353, Protocol.UDP, 30053
    )


def test_endpoints() -> None:
    assert parse_endpoint("web (terminating, not serving, zone z, node n, http 9)") == EndpointText(
        "web",
        is_ready=False,
        is_serving=False,
        is_terminating=True,
        zones=("z",),
        nodes=("n",),
        targets=(("http", 9),),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (small("a sees b sees c"), "neither one of refused, rejected"),
        (small("dropped, quickly"), "'quickly' in 'dropped, quickly' is none of: evenly"),
        (small("x").replace("client-a ->", "client-a to"), "a packet is FROM -> PLACE:PORT"),
        (small("x").replace("80 -> 8080", "80 = 8080"), "service 'web': .*a port is PORT"),
        (small("x").replace("(http 9090)", "(blue)"), "'blue' in .* is no trait"),
        (small("x").replace("type:", "kind:"), "service 'web': .*unknown field `kind`"),
        (small("x").replace("packets:", "pakets:"), "step 1: 'pakets' is none of: packets, apply"),
        (small("x") + "  - remove: other\n", "step 2 .remove.: there is no service 'other'"),
        (small("x") + "  - {}\n", "step 2 must have one verb, has none"),
        (small("x") + "variants: [IPv5]\n", "variants are IPv4, IPv6, dual, not IPv5"),
        ("title: [", "flow broken: while parsing"),
    ],
)
def test_mistakes_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_flow("broken", text)


def test_a_fate_per_mode_needs_one_for_the_others() -> None:
    text = SMALL.replace('"FATE"', "{nftables: dropped}")
    with pytest.raises(ConfigError, match="says nothing of other modes"):
        parse_flow("broken", text)
    flow = parse_flow("fine", SMALL.replace('"FATE"', "{nftables: dropped, otherwise: refused}"))
    fates = [flow.checks[0].expected(mode).fate for mode in ("nftables", "ipvs")]
    assert fates == [Fate.DROPPED, Fate.REFUSED]


def test_a_later_step_changes_only_the_fields_it_names() -> None:
    flow = parse_flow(
        "fine", small("dropped") + "  - apply: {web: {type: ClusterIP}}\n  - stop load: a or b\n"
    )
    step = flow.steps[1]
    assert isinstance(step, Apply)
    assert step.services[0].type == "ClusterIP"
    assert step.services[0].endpoints == flow.services[0].endpoints
    assert flow.steps[2] == StopLoad(("a", "b"))


def test_objects_carry_the_addresses_of_the_variants_families(topology: Topology) -> None:
    service = parse_flow("fine", small("dropped")).services[0]
    world = World(topology, block=1, families=tuple(Family))
    spec = service_manifest(service, world)["spec"]
    assert isinstance(spec, dict)
    assert spec["clusterIPs"] == ["10.96.1.10", "fd00:10:96::10a"]
    assert spec["externalIPs"] == ["203.0.113.3", "fd00:cb:113::3"]
    slices = list(slice_manifests(service, world))
    assert [(s["addressType"], s["ports"]) for s in slices[:2]] == [
        ("IPv4", [{"name": "http", "port": 8080, "protocol": "TCP"}]),
        ("IPv4", [{"name": "http", "port": 9090, "protocol": "TCP"}]),
    ]
    assert len(slices) == 4


@pytest.mark.parametrize(
    ("fate", "mistake"),
    [
        ("web-a1 or web-b1 sees client-a", None),
        ("web-a1 sees client-a", "expected answers from web-a1, not web-a1, web-b1"),
        ("web-a1 or web-b1 sees node-a", "web-a1 must see node-a, sees client-a"),
        ("dropped", "expected dropped, the rules say answered"),
    ],
)
def test_a_wrong_fate_is_found(fate: str, mistake: str | None, topology: Topology) -> None:
    """The runner is only worth something if it can fail."""
    flow = parse_flow("fine", small(fate))
    world = World(topology, block=0, families=(Family.IPV6,))
    make_tracer = partial(PlanTracer, traits=traits_of("nftables"))
    wrong = run_traced(flow, world, make_tracer, mode="nftables")
    expected = [] if mistake is None else [f"step 1: IPv6 client-a -> web:http: {mistake}"]
    assert list(wrong)[:1] == expected
