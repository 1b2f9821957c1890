"""The benchmark of algorithms: what it computes, and that it runs, with few connections."""

from __future__ import annotations

import pytest

from kpctl.bench.balance_cost import Cost, Spent, costs
from kpctl.bench.balance_field import CONTROL, DEFAULT, VARIANTS, client_address, variants_of
from kpctl.bench.balance_spread import Spread, haproxy, ours
from kpctl.bench.records import Size
from kubeproxy.modes.registry import mode_names


def test_deviations_are_from_the_share_of_the_weight() -> None:
    assert Spread("x", {"a": 40, "b": 20, "c": 20}, heavy=2).deviations() == [0, 0, 0]
    assert Spread("x", {"a": 15, "b": 5}).deviations() == [0.5, -0.5]


def test_a_spread_is_shown_beside_what_chance_allows() -> None:
    text = str(Spread("HAProxy, random", {"a": 5050, "b": 4950}))
    assert text == (
        "10,000 connections over 2 endpoints, HAProxy, random: largest deviation from its share"
        " 1.00%, standard deviation 1.00% (a fair choice at random: 1.41%)"
    )


def test_a_cost_is_shown_beside_the_default() -> None:
    size = Size(10)
    spent = Spent(50.0, 40.0)
    default = Cost("nftables", "connect", size, DEFAULT.name, spent, spent, "µs")
    other = Cost("nftables", "connect", size, "round-robin", Spent(51.0, 39.0), spent, "µs")
    assert str(default) == "nftables, connect, 10 × 10, default: 50 µs; processor time 40 µs"
    assert str(other) == (
        "nftables, connect, 10 × 10, round-robin: 51 µs, +2.0%; processor time 39 µs, -2.5%"
    )


def test_where_processor_time_is_counted_in_ticks_there_is_none_to_show() -> None:
    none = Cost("ipvs", "connect", Size(10), "weights", Spent(9.9, 0.0), Spent(9.0, 0.0), "µs")
    assert str(none) == "ipvs, connect, 10 × 10, weights: 9.9 µs, +10.0%"


@pytest.mark.parametrize("mode", mode_names())
def test_a_mode_is_measured_with_what_it_can_do_besides_its_default(mode: str) -> None:
    names = [variant.name for variant in variants_of(mode)]
    assert (names[0], names[-1]) == ("default", "weights")
    assert set(names) <= {variant.name for variant in VARIANTS}
    assert len(names) == {"nftables": 5, "iptables": 3, "ipvs": 5, "userspace": 6}[mode]


def test_every_client_has_another_address() -> None:
    assert len({client_address(number) for number in range(100_000)}) == 100_000
    assert client_address(99_999).startswith("198.19.")


@pytest.mark.kernel
@pytest.mark.parametrize("mode", ["nftables", "iptables", "userspace"])
async def test_every_variant_is_measured(mode: str) -> None:
    found = await costs(mode, Size(8), changes=2, connects=2)
    names = [*(v.name for v in variants_of(mode)), CONTROL.name]
    assert [cost.variant for cost in found] == names * 2
    assert all(cost.value.clock > 0 and cost.value.processor > 0 for cost in found)


@pytest.mark.kernel
async def test_turns_spread_exactly() -> None:
    found = {spread.who: spread async for spread in ours("nftables", 40)}
    turns = found["ours in nftables mode, round-robin"]
    assert set(turns.counts.values()) == {4}


@pytest.mark.kernel
def test_haproxy_is_measured_the_same_way() -> None:
    found = {spread.who: spread for spread in haproxy(20)}
    assert all(sum(spread.counts.values()) == 20 for spread in found.values())
    # The connection that found out whether it listens took a turn.
    assert max(found["HAProxy, roundrobin"].counts.values()) <= 2 + 1
