"""Algorithms and weights in a kernel with IPVS: how its schedulers spread connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kpctl.flows.spread import unevenness
from kpctl.places.uml import UserModeKernel

GUEST = Path(__file__).with_name("guest_balance.py")
FAMILIES = pytest.mark.parametrize("family", ["IPv4", "IPv6"])
CLIENTS = 600

pytestmark = pytest.mark.uml


def call(uml: UserModeKernel, function: str, *arguments: object) -> Any:
    return uml.call(GUEST, function, *arguments)


@FAMILIES
@pytest.mark.parametrize("algorithm", ["", "round-robin"])
@pytest.mark.parametrize("weights", [[1, 1, 1], [5, 2, 1]], ids=str)
def test_weights_are_kept_exactly_in_turn(
    uml: UserModeKernel, family: str, algorithm: str, weights: list[int]
) -> None:
    """Also by the default, which is rr and becomes wrr. A second read finds nothing to do."""
    found = call(uml, "spread", family, algorithm, weights, 80)
    total = sum(weights)
    rounds, left = divmod(80, total)
    for pod, weight in zip(found["pods"], weights, strict=True):
        assert rounds * weight <= found["counts"][pod] <= rounds * weight + min(left, weight)
    assert found["drifted"] == 0


@FAMILIES
@pytest.mark.parametrize("algorithm", ["source-hash", "consistent-hash"])
@pytest.mark.parametrize("weights", [[1, 1, 1], [5, 2, 1]], ids=str)
def test_hashes_spread_clients(
    uml: UserModeKernel, family: str, algorithm: str, weights: list[int]
) -> None:
    """The kernel's table for sh has 256 places, so that shares of 8 are exact in it."""
    found = call(uml, "spread", family, algorithm, weights, CLIENTS)
    shares = dict(zip(found["pods"], weights, strict=True))
    assert unevenness(found["counts"], found["pods"], shares) == ""
    assert found["drifted"] == 0


def test_turns_go_round(uml: UserModeKernel) -> None:
    met = call(uml, "turns", "IPv4", [1, 1, 1], 9)
    assert met == met[:3] * 3
    assert len(set(met)) == 3


@pytest.mark.parametrize("algorithm", ["source-hash", "consistent-hash"])
def test_weight_0_moves_its_own_clients_only_and_all_come_back(
    uml: UserModeKernel, algorithm: str
) -> None:
    """The kernel keeps its table while a weight is 0, and takes another server instead."""
    first, (before, meanwhile, after) = call(uml, "moves", "IPv4", algorithm, 4, 200)
    assert first not in meanwhile.values()
    assert before == after
    moved = {source for source in before if before[source] != meanwhile[source]}
    assert moved == {source for source, pod in before.items() if pod == first}


def test_least_connections_fills_up_the_one_that_lost_some(uml: UserModeKernel) -> None:
    first, second = call(uml, "least_connections", [1, 1, 1], 9)
    assert sorted(first.values()) == [3, 3, 3]
    assert list(second.values()) == [3]


def test_least_connections_follows_weights(uml: UserModeKernel) -> None:
    first, _ = call(uml, "least_connections", [4, 2, 1], 14)
    assert sorted(first.values()) == [2, 4, 8]
