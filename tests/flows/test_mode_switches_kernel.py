"""Every change of mode under load: no new connection fails, and no open one breaks."""

from __future__ import annotations

import os
from itertools import permutations, product

import pytest

from kpctl.apiserver.build import NoGo, built
from kpctl.flows.switches import (
    HERE,
    IPTABLES_NFT,
    NFTABLES,
    UPSTREAM,
    USERSPACE,
    Kind,
    Outcome,
    pairs,
    switch,
    table,
)
from kpctl.lab.topology import Topology

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1800)]

SURGING = tuple(Kind(kind.mode, is_overlapping=True) for kind in UPSTREAM)
"""The way of a DaemonSet with maxSurge: ours starts, and waits, while upstream's still runs."""
ENOUGH = 100
"""Connections. Each load goes on until each endpoint has had some after the change."""


@pytest.fixture(autouse=True)
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")


def labels(pair: tuple[Kind, Kind]) -> str:
    before, after = pair
    return f"{before.label}{' beside' if before.is_overlapping else ''} - {after.label}"


def assert_seamless(outcome: Outcome) -> None:
    assert outcome.wrong == []
    assert outcome.connections > ENOUGH


@pytest.mark.parametrize("pair", pairs(HERE), ids=labels)
async def test_a_mode_takes_over_from_another(topology: Topology, pair: tuple[Kind, Kind]) -> None:
    assert_seamless(await switch(topology, *pair))


@pytest.mark.api
@pytest.mark.parametrize(
    "pair",
    [
        *product(UPSTREAM, (NFTABLES, IPTABLES_NFT, USERSPACE)),
        *product(SURGING, (NFTABLES,)),
    ],
    ids=labels,
)
async def test_a_mode_takes_over_from_upstreams(
    topology: Topology, pair: tuple[Kind, Kind]
) -> None:
    try:
        program = built("kube-proxy")
    except NoGo as error:
        pytest.skip(f"no kube-proxy of upstream's: {error}")
    assert_seamless(await switch(topology, *pair, upstream=program))


def test_the_table_has_a_row_for_each_change() -> None:
    rows = table([Outcome("a", "b", 7, []), Outcome("b", "a", 8, ["broken"])]).splitlines()
    assert rows[2:] == ["| a | b | 7 | 0 |", "| b | a | 8 | 1 |"]
    assert {(a.label, b.label) for a, b in pairs(HERE)} == set(
        permutations((kind.label for kind in HERE), 2)
    )
