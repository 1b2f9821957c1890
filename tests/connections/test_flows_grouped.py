"""Flows grouped by endpoint: from text of IPVS, from the carrier, and what is stale."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, node, plan, service

from kpctl.connections.flows import (
    NO_SERVICE,
    NO_SLICE,
    NOT_TRANSLATED,
    Flow,
    Tally,
    is_at,
    why_stale,
)
from kpctl.connections.gather import add_ipvs
from kpctl.connections.ipvs_text import parse_connections
from kpctl.connections.view import documents, size_text, summary
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.plan.frontends import Frontends

# As Linux 6.18 prints it, with a client of session affinity (port 0) and one that has ended.
IPVS = """\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0AF40102 A3D2 0A60000A 0050 0AF40105 1F90 ESTABLISHED     898
TCP 0AF40102 A3D4 0A60000A 0050 0AF40106 1F90 FIN_WAIT         10
TCP 0AF40102 A3D6 0A60000A 0050 0AF40105 1F90 TIME_WAIT        10
TCP 0AF40102 0000 0A60000A 0050 0AF40105 1F90 NONE           10790
TCP 0AF40102 A3D8 0A600063 0050 0AF40105 1F90 ESTABLISHED     898
UDP fd00:0244:0000:0000:0000:0000:0000:0001 A3D2 fd00:0096:0000:0000:0000:0000:0000:0010 0035 fd00:0244:0000:0000:0000:0000:0000:0005 14E9 UDP             298
TCP garbage A3D2 0A60000A 0050 0AF40105 1F90 ESTABLISHED     898
"""  # noqa: E501 - as the kernel prints it
WEB = plan(service(), [endpoint("10.244.1.5")])


def test_connections_of_ipvs_are_read_from_their_text() -> None:
    found = list(parse_connections(IPVS.splitlines()))
    assert [(c.family, c.protocol, c.state) for c in found] == [
        (Family.IPV4, Protocol.TCP, "ESTABLISHED"),
        (Family.IPV4, Protocol.TCP, "FIN_WAIT"),
        (Family.IPV4, Protocol.TCP, "TIME_WAIT"),
        (Family.IPV4, Protocol.TCP, "ESTABLISHED"),
        (Family.IPV6, Protocol.UDP, "UDP"),
    ]


def test_connections_of_ipvs_are_grouped_and_the_stale_ones_named() -> None:
    """One that has ended, and a virtual server of another program, are left out."""
    tally = Tally({Family.IPV4: node()})
    frontends = {Family.IPV4: Frontends(node(), [WEB])}
    add_ipvs(tally, frontends, parse_connections(IPVS.splitlines()))
    (document,) = documents(tally.groups())
    assert document["service"] == "default/web:http"
    assert document["endpoints"] == [
        {
            "endpoint": "10.244.1.5:8080",
            "connections": 1,
            "states": {"ESTABLISHED": 1},
            "packets": None,
            "bytes": None,
            "stale": None,
        },
        {
            "endpoint": "10.244.1.6:8080",
            "connections": 1,
            "states": {"FIN_WAIT": 1},
            "packets": None,
            "bytes": None,
            "stale": NO_SLICE,
        },
    ]
    assert summary(tally.groups()).startswith("2 flows of 1 service ports, 1 of them stale")


def stale(endpoint_text: str, frontend: str = "10.96.0.10:80") -> str:
    endpoints = [endpoint("10.244.1.5"), endpoint("10.244.1.6", ready=False, serving=False)]
    flow = Flow("10.244.1.2:40000", frontend, endpoint_text, "ESTABLISHED")
    return why_stale(plan(service(), endpoints), flow)


def test_a_stale_flow_has_its_reason() -> None:
    assert stale("10.244.1.5:8080") == ""
    assert stale("10.244.1.6:8080") == "neither ready nor serving"
    assert stale("10.244.1.7:8080") == NO_SLICE
    assert stale("10.96.0.10:80") == NOT_TRANSLATED
    assert why_stale(None, Flow("a", "b", "c", "ESTABLISHED")) == NO_SERVICE


def test_single_flows_are_kept_up_to_the_limit() -> None:
    tally = Tally({Family.IPV4: node()}, limit=2)
    for number in range(3):
        tally.add(
            Family.IPV4, WEB, Flow(f"10.0.0.1:{number}", "v", "10.244.1.5:8080", "ESTABLISHED")
        )
    (group,) = tally.groups()
    assert (group.count, len(group.flows), tally.is_cut) == (3, 2, True)


@pytest.mark.parametrize(
    ("endpoint", "address"), [("10.244.1.5:8080", "10.244.1.5"), ("[fd00::5]:8080", "fd00::5")]
)
def test_an_endpoint_is_at_the_address_of_its_pod(endpoint: str, address: str) -> None:
    assert is_at(endpoint, address)
    assert not is_at(endpoint, address[:-1])


def test_sizes_have_a_unit_that_suits_them() -> None:
    assert [size_text(n) for n in (None, 0, 1023, 1536, 5 << 30, 5 << 40)] == [
        *("-", "0 B", "1023 B"),
        *("1.5 KiB", "5.0 GiB", "5.0 TiB"),
    ]
