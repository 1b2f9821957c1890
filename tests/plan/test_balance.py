"""What algorithms and weights make of a plan."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, node, plan, service

from kubeproxy.facts.policy import Algorithm
from kubeproxy.plan.balance import slots_of
from kubeproxy.plan.types import Pool, Verdict

A, B, C = (endpoint(f"10.244.1.{number}") for number in (1, 2, 3))


def test_a_service_without_annotations_is_planned_as_if_there_were_none() -> None:
    found = plan(service(), [A, B])
    assert found.algorithm is None
    assert found.cluster.weights == ()
    assert found.quiesced == ()
    assert found.notes == ()


@pytest.mark.parametrize("algorithm", Algorithm)
def test_what_a_service_asks_for_is_planned(algorithm: Algorithm) -> None:
    assert plan(service(algorithm=algorithm), [A, B]).algorithm is algorithm


def test_what_the_mode_cannot_do_is_a_note_and_the_default_is_used() -> None:
    iptables = node(mode="iptables", algorithms=(Algorithm.RANDOM,))
    found = plan(service(algorithm=Algorithm.SOURCE_HASH), [A], iptables)
    assert found.algorithm is None
    assert found.notes == (
        "algorithm source-hash is not possible in iptables mode: its default is used",
    )


def test_weights_are_in_the_order_of_endpoints_and_in_lowest_terms() -> None:
    found = plan(service(), [A, B, C], weights={A.address: 10, C.address: 5, B.address: 5})
    assert found.cluster.weights == (2, 1, 1)


def test_equal_weights_are_as_good_as_none() -> None:
    assert plan(service(), [A, B], weights={A.address: 7, B.address: 7}).cluster.weights == ()


def test_weight_0_takes_no_new_connection() -> None:
    """It is left out with that reason, and stays known to modes that hold open connections."""
    found = plan(service(), [A, B], weights={A.address: 0})
    assert found.cluster.endpoints == (B,)
    assert found.quiesced == (A,)
    assert [(e.what, e.reason) for e in found.excluded] == [
        (A.text, "weight 0: takes no new connection")
    ]


def test_an_endpoint_that_does_not_serve_is_not_quiesced() -> None:
    dead = endpoint("10.244.1.9", ready=False, serving=False)
    found = plan(service(), [A, dead], weights={dead.address: 0})
    assert found.quiesced == ()
    assert found.excluded[0].reason == "neither ready nor serving"


def test_if_all_have_weight_0_connections_are_rejected() -> None:
    found = plan(service(), [A, B], weights={A.address: 0, B.address: 0})
    assert found.frontends[0].verdict is Verdict.REJECT


def test_a_terminating_endpoint_serves_if_all_ready_ones_have_weight_0() -> None:
    leaving = endpoint("10.244.1.9", ready=False, terminating=True)
    found = plan(service(), [A, leaving], weights={A.address: 0})
    assert found.cluster.endpoints == (leaving,)


def test_weights_hold_in_each_pool() -> None:
    here = endpoint("10.244.1.5", local=True), endpoint("10.244.1.6", local=True)
    weights = {A.address: 4, here[0].address: 2}
    found = plan(service(node_port=30080, external_local=True), [A, *here], weights=weights)
    assert found.cluster.weights == (4, 2, 1)
    assert found.local.weights == (2, 1)


def test_slots_follow_the_algorithm() -> None:
    pool = Pool((A, B), weights=(3, 2))
    assert slots_of(Pool((A, B)), None) == range(2)
    assert slots_of(pool, None) == (0, 0, 0, 1, 1)
    assert slots_of(pool, Algorithm.SOURCE_HASH) == (0, 0, 0, 1, 1)
    assert slots_of(pool, Algorithm.ROUND_ROBIN) == (0, 1, 0, 0, 1)
    assert len(slots_of(pool, Algorithm.CONSISTENT_HASH)) == 1021
    assert slots_of(Pool((A,)), Algorithm.CONSISTENT_HASH) == range(1)
