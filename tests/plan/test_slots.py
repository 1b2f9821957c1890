"""Slots: every share is there, bounded, spread, and moves as little as theory allows."""

from __future__ import annotations

from collections import Counter
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.plan.slots import (
    MOST_SLOTS,
    TABLE_SIZES,
    bounded_weights,
    consistent_slots,
    repeated_slots,
    rotating_slots,
    table_size,
)

WEIGHTS = st.lists(st.integers(1, 256), min_size=1, max_size=40)


def names(count: int) -> list[str]:
    return [f"10.244.{n // 250}.{n % 250 + 1}:8080" for n in range(count)]


# --- weights ---


def test_weights_are_in_lowest_terms() -> None:
    assert bounded_weights((100, 50, 50)) == (2, 1, 1)


@given(WEIGHTS)
def test_bounded_weights_keep_within_the_limit_and_give_each_a_slot(weights: list[int]) -> None:
    found = bounded_weights(weights)
    assert len(found) == len(weights)
    assert min(found) >= 1
    assert sum(found) <= MOST_SLOTS


@given(WEIGHTS)
def test_bounded_weights_keep_the_order_of_weights(weights: list[int]) -> None:
    found = bounded_weights(weights)
    for (weight, slots), (other, others) in zip(
        zip(weights, found, strict=True), zip(weights[1:], found[1:], strict=True), strict=False
    ):
        if weight > other:
            assert slots >= others


@given(st.lists(st.integers(1, 256), min_size=5, max_size=40))
def test_bounded_weights_are_within_two_slots_of_the_exact_share(weights: list[int]) -> None:
    """One slot for the one that each has at least, and one for rounding."""
    found = bounded_weights(weights)
    for weight, slots in zip(weights, found, strict=True):
        assert abs(slots - sum(found) * weight / sum(weights)) <= 2


def test_more_endpoints_than_slots_have_one_each() -> None:
    assert bounded_weights((256, *([1] * 2000))) == (1,) * 2001


# --- turns ---


@given(WEIGHTS)
def test_each_index_has_its_weight_in_slots(weights: list[int]) -> None:
    for slots in (repeated_slots(weights), rotating_slots(weights)):
        assert Counter(slots) == dict(enumerate(weights))


@given(WEIGHTS)
def test_turns_are_spread_evenly(weights: list[int]) -> None:
    """In any beginning of the cycle no endpoint is a whole turn ahead of or behind its share."""
    slots = rotating_slots(weights)
    total = sum(weights)
    seen = [0] * len(weights)
    for length, index in enumerate(slots, 1):
        seen[index] += 1
        due = length * weights[index] / total
        # Ties with others of the same due time may delay a turn by as many places.
        assert abs(seen[index] - due) <= 1 + len(weights) * weights[index] / total


def test_without_weights_turns_go_round() -> None:
    assert rotating_slots((1, 1, 1)) == (0, 1, 2)
    assert rotating_slots((5, 1, 1)) == (0, 0, 0, 1, 0, 0, 2)


# --- consistent tables ---


@pytest.mark.parametrize("size", TABLE_SIZES)
def test_table_sizes_are_prime(size: int) -> None:
    """Only then does every step lead through every slot."""
    assert all(size % divisor for divisor in range(2, int(size**0.5) + 1))


def test_the_size_does_not_follow_the_number_of_endpoints() -> None:
    assert {table_size(count) for count in range(1, 256)} == {1021}
    assert [table_size(count) for count in (256, 1023, 1024, 20000)] == [4093, 4093, 16381, 65521]


@pytest.mark.parametrize("count", [2, 3, 10, 50, 100, 255])
def test_a_consistent_table_is_full_and_even(count: int) -> None:
    """Turn by turn no endpoint can be more than one slot ahead."""
    held = Counter(consistent_slots(names(count)))
    assert set(held) == set(range(count))
    assert max(held.values()) - min(held.values()) <= 1


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30, 100])
def test_when_an_endpoint_goes_few_slots_move_but_its_own(count: int) -> None:
    """Counted for every endpoint that may go.

    At least its own slots must move: size/count. Each of these is taken earlier than before by
    another endpoint, which leaves the slot it had to a later one, and so on. Such a chain ends when
    the table is full: a slot is met by one probe in `size`, and filling the last part of a table
    takes ever more probes, `size * ln(size)` in all, so a chain has no more than ln(size) links on
    average. Small pools stay far below; what holds for all sizes is 5 % of the table.
    """
    before = names(count)
    table = consistent_slots(before)
    extra = 0
    for gone in range(count):
        after = before[:gone] + before[gone + 1 :]
        new = consistent_slots(after)
        moved = [
            place
            for place, (old, now) in enumerate(zip(table, new, strict=True))
            if before[old] != after[now]
        ]
        own = sum(index == gone for index in table)
        assert own <= len(moved) <= own + 0.05 * len(table)
        extra += len(moved) - own
    assert extra / count <= len(table) / count * log(len(table))


def test_a_hash_by_number_of_endpoints_would_move_nearly_all() -> None:
    """What consistent tables are for: of ten endpoints one goes, and 9 of 10 flows move."""
    moved = sum(flow % 10 != flow % 9 for flow in range(9000))
    assert moved / 9000 > 0.85


def test_adding_an_endpoint_back_restores_the_table() -> None:
    before = names(10)
    table = consistent_slots(before)
    consistent_slots(before[1:])
    assert consistent_slots(list(before)) == table


@given(st.lists(st.integers(1, 256), min_size=2, max_size=20))
def test_weights_hold_in_a_consistent_table(weights: list[int]) -> None:
    held = Counter(consistent_slots(names(len(weights)), weights))
    total = sum(weights)
    for index, weight in enumerate(weights):
        share = 1021 * weight / total
        assert abs(held[index] - share) <= 2 + 0.02 * 1021 / len(weights)
