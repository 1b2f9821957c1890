"""Which endpoints serve: every row of the policy and hint tables."""

from __future__ import annotations

import pytest
from tests.support.builders import NODE, endpoint, node, plan, service

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.plan.endpoints import LOCAL_TERMINATING_FALLBACK, READY, TERMINATING_FALLBACK

LR = endpoint("10.0.0.1", local=True)
XR = endpoint("10.0.0.2")
LT = endpoint("10.0.0.3", local=True, ready=False, terminating=True)
XT = endpoint("10.0.0.4", ready=False, terminating=True)
DEAD = endpoint("10.0.0.5", ready=False, serving=False)

PLAIN = service()
EXTERNAL_LOCAL = service(node_port=30080, external_local=True)
INTERNAL_LOCAL = service(internal_local=True)


@pytest.mark.parametrize(
    ("facts", "present", "cluster", "local", "has_endpoints"),
    [
        (PLAIN, [LR, XR], [LR, XR], [], True),
        (PLAIN, [LT, XT], [LT, XT], [], True),
        (PLAIN, [DEAD], [], [], False),
        (PLAIN, [], [], [], False),
        (EXTERNAL_LOCAL, [LR, XR], [LR, XR], [LR], True),
        (EXTERNAL_LOCAL, [LR, LT], [LR], [LR], True),
        (EXTERNAL_LOCAL, [LT, XR], [XR], [LT], True),
        (EXTERNAL_LOCAL, [LT, XT], [LT, XT], [LT], True),
        (EXTERNAL_LOCAL, [XR], [XR], [], True),
        (EXTERNAL_LOCAL, [XT], [XT], [], True),
        (EXTERNAL_LOCAL, [DEAD], [], [], False),
        (INTERNAL_LOCAL, [LR, XR], [], [LR], True),
        (INTERNAL_LOCAL, [LT, XR], [], [LT], True),
        (INTERNAL_LOCAL, [XR], [], [], True),
        (INTERNAL_LOCAL, [XT], [], [], True),
        (INTERNAL_LOCAL, [DEAD], [], [], False),
    ],
)
def test_policy_table(
    facts: object,
    present: list[Endpoint],
    cluster: list[Endpoint],
    local: list[Endpoint],
    has_endpoints: bool,
) -> None:
    made = plan(facts, present)  # type: ignore[arg-type]  # parametrize loses the type
    assert list(made.cluster.endpoints) == cluster
    assert list(made.local.endpoints) == local
    assert made.has_endpoints is has_endpoints
    assert set(made.reachable) == {*cluster, *local}
    assert [e.text for e in made.reachable] == sorted(e.text for e in made.reachable)


def test_a_ready_endpoint_that_terminates_counts_as_ready() -> None:
    both = endpoint("10.0.0.9", ready=True, terminating=True)
    assert plan(PLAIN, [both]).cluster.reason == READY


def test_terminating_endpoints_serve_when_nothing_is_ready() -> None:
    assert plan(PLAIN, [XT]).cluster.reason == TERMINATING_FALLBACK
    assert plan(EXTERNAL_LOCAL, [LT, XR]).local.reason == LOCAL_TERMINATING_FALLBACK


def hinted(address: str, *, zones: str = "", nodes: str = "", ready: bool = True) -> Endpoint:
    return endpoint(address, zones=zones.split(), nodes=nodes.split(), ready=ready)


@pytest.mark.parametrize(
    ("present", "zone", "kept", "note"),
    [
        # every R has a node hint, one for this node
        ([hinted("10.0.0.1", nodes=NODE), hinted("10.0.0.2", nodes="other")], "z", [0], ""),
        # node hints for others only: zone hints next
        (
            [hinted("10.0.0.1", nodes="other", zones="z"),
             hinted("10.0.0.2", nodes="other", zones="y")],
            "z", [0], "none names node",
        ),
        # node hints for others, zone hints for others
        ([hinted("10.0.0.1", nodes="other", zones="y")], "z", [0], "none names zone z"),
        # node hints for others, no zone hints
        ([hinted("10.0.0.1", nodes="other"), hinted("10.0.0.2", nodes="other")], "z", [0, 1], ""),
        # some R without a node hint, all with a zone hint
        (
            [hinted("10.0.0.1", nodes=NODE, zones="y"), hinted("10.0.0.2", zones="z")],
            "z", [1], "a ready endpoint has none",
        ),
        # some R without a zone hint
        (
            [hinted("10.0.0.1", zones="z"), hinted("10.0.0.2")],
            "z", [0, 1], "a ready endpoint has none",
        ),
        # a node without a zone never matches
        ([hinted("10.0.0.1", zones="z"), hinted("10.0.0.2", zones="y")], "", [0, 1], "no zone"),
        # zone hints for others only
        ([hinted("10.0.0.1", zones="y"), hinted("10.0.0.2", zones="x")], "z", [0, 1], "zone z"),
    ],
)  # fmt: skip
def test_hint_table(present: list[Endpoint], zone: str, kept: list[int], note: str) -> None:
    made = plan(PLAIN, present, node(zone=zone))
    assert made.cluster.endpoints == tuple(present[i] for i in kept)
    assert note in " ".join(made.notes)


def test_hints_of_endpoints_that_are_not_ready_are_not_looked_at() -> None:
    ready = hinted("10.0.0.1", zones="z")
    unhinted = hinted("10.0.0.2", ready=False)
    assert plan(PLAIN, [ready, unhinted], node(zone="z")).cluster.endpoints == (ready,)


def test_the_terminating_fallback_ignores_hints() -> None:
    here = endpoint("10.0.0.1", ready=False, terminating=True, zones=["z"])
    there = endpoint("10.0.0.2", ready=False, terminating=True, zones=["y"])
    assert plan(PLAIN, [here, there], node(zone="z")).cluster.endpoints == (here, there)


def test_local_pools_ignore_hints() -> None:
    facts = service(node_port=30080, external_local=True)
    local = endpoint("10.0.0.1", local=True, zones=["y"])
    near = endpoint("10.0.0.2", zones=["z"])
    made = plan(facts, [local, near], node(zone="z"))
    assert made.cluster.endpoints == (near,)
    assert made.local.endpoints == (local,)
    assert made.reachable == (local, near)


def test_every_endpoint_left_out_says_why() -> None:
    made = plan(PLAIN, [LR, XT, DEAD, hinted("10.0.0.7", ready=False)])
    reasons = {found.what: found.reason for found in made.excluded}
    assert reasons == {
        "10.0.0.4:8080": "terminating, and others are ready",
        "10.0.0.5:8080": "neither ready nor serving",
        "10.0.0.7:8080": "not ready",
    }
