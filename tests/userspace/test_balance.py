"""Round robin and session affinity, with time as an argument."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.modes.userspace.carrier.balance import MAX_CLIENTS, Balancer, Target

A, B, C = (Target(f"10.0.0.{n}", 80) for n in (1, 2, 3))


def keep_order(_targets: list[Target]) -> None:
    """A shuffle that leaves things as they are."""


def balancer(*targets: Target, affinity_seconds: int = 0) -> Balancer:
    made = Balancer(keep_order)
    made.update(targets, affinity_seconds)
    return made


def test_every_endpoint_has_its_turn() -> None:
    turns = balancer(A, B, C)
    assert [turns.pick("x", 0.0) for _ in range(5)] == [A, B, C, A, B]


def test_without_endpoints_there_is_nothing_to_pick() -> None:
    assert balancer().pick("x", 0.0) is None
    assert balancer(affinity_seconds=10).pick("x", 0.0) is None


def test_new_endpoints_are_shuffled_and_equal_ones_are_not() -> None:
    """An update that changes nothing does not disturb whose turn it is."""
    calls: list[int] = []
    turns = Balancer(lambda targets: calls.append(len(targets)))
    turns.update((A, B), 0)
    assert turns.pick("x", 0.0) == A
    turns.update((B, A), 0)
    assert turns.pick("x", 0.0) == B
    assert calls == [2]


def test_a_client_with_affinity_comes_back_to_its_endpoint() -> None:
    turns = balancer(A, B, affinity_seconds=10)
    assert [turns.pick(client, 0.0) for client in ("x", "y", "x", "y", "x")] == [A, B, A, B, A]


def test_affinity_lasts_from_the_last_use_in_whole_seconds() -> None:
    """10.9 seconds are still 10 whole ones too many; 9.9 are 9."""
    turns = balancer(A, B, affinity_seconds=10)
    assert turns.pick("x", 0.0) == A
    assert turns.pick("x", 9.9) == A
    assert turns.pick("x", 19.8) == A
    assert turns.pick("x", 29.8) == B


def test_a_failed_endpoint_is_replaced_for_good() -> None:
    """The first failure makes affinity count no more, and what is picked then is remembered."""
    turns = balancer(A, B, C, affinity_seconds=10)
    assert turns.pick("x", 0.0) == A
    assert turns.pick("x", 1.0, ignore_affinity=True) == B
    assert turns.pick("x", 2.0) == B


def test_clients_of_a_removed_endpoint_get_another_and_the_others_keep_theirs() -> None:
    turns = balancer(A, B, affinity_seconds=10)
    assert (turns.pick("x", 0.0), turns.pick("y", 0.0)) == (A, B)
    turns.update((B, C), 10)
    assert turns.pick("y", 1.0) == B
    assert turns.pick("x", 1.0) in (B, C)
    assert turns.clients == 2


def test_a_new_time_out_holds_at_once() -> None:
    """Also for clients that came under the old one."""
    turns = balancer(A, B, affinity_seconds=10800)
    assert turns.pick("x", 0.0) == A
    turns.update((A, B), 5)
    assert turns.pick("x", 6.0) == B


def test_without_affinity_nothing_is_remembered() -> None:
    turns = balancer(A, B, affinity_seconds=10)
    turns.pick("x", 0.0)
    turns.update((A, B), 0)
    assert turns.clients == 0


def test_memory_for_affinity_is_bounded() -> None:
    """The client that was idle longest is forgotten first."""
    turns = balancer(A, B, affinity_seconds=10)
    for number in range(MAX_CLIENTS + 1):
        turns.pick(str(number), 0.0)
    assert turns.clients == MAX_CLIENTS


@given(st.integers(1, 8), st.integers(1, 50))
def test_turns_differ_by_at_most_one(endpoints: int, picks: int) -> None:
    """However many endpoints and connections there are."""
    targets = tuple(Target(f"10.0.0.{n}", 80) for n in range(endpoints))
    turns = balancer(*targets)
    counts = Counter(turns.pick("x", 0.0) for _ in range(picks))
    assert max(counts.values()) - min(counts[t] for t in targets) <= 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 5)), max_size=40))
def test_a_client_changes_endpoint_only_after_the_time_out(visits: list[tuple[str, float]]) -> None:
    """Between two visits less than the time-out apart, the endpoint is the same."""
    turns = balancer(A, B, C, affinity_seconds=3)
    now = 0.0
    last: dict[str, tuple[float, Target | None]] = {}
    for client, pause in visits:
        now += pause
        found = turns.pick(client, now)
        if client in last and int(now - last[client][0]) < 3:
            assert found == last[client][1]
        last[client] = (now, found)
