"""Sharing descriptors between listeners."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.modes.userspace.carrier.budget import LISTENER_ROOM, RESERVED, Budget


def fill(budget: Budget, held: dict[str, int], names: tuple[str, ...]) -> None:
    """Let each take one after the other until none may."""
    taken = True
    while taken:
        taken = False
        for name in names:
            if budget.allows(held.get(name, 0), 1):
                budget.take(1)
                held[name] = held.get(name, 0) + 1
                taken = True


def test_one_greedy_listener_ends_at_half() -> None:
    budget, held = Budget(RESERVED + 100), dict[str, int]()
    fill(budget, held, ("greedy",))
    assert 50 <= held["greedy"] <= 51


def test_two_greedy_listeners_end_at_a_third_each_and_a_new_one_finds_room() -> None:
    budget, held = Budget(RESERVED + 99), dict[str, int]()
    fill(budget, held, ("a", "b"))
    assert abs(held["a"] - held["b"]) <= 1
    assert 32 <= held["a"] <= 34
    assert budget.allows(0, 2)


def test_what_is_released_can_be_taken_again() -> None:
    budget = Budget(RESERVED + 2)
    budget.take(2)
    assert not budget.allows(0, 1)
    budget.release(2)
    assert budget.allows(0, 2)


def test_a_tiny_limit_allows_nothing_rather_than_failing() -> None:
    assert not Budget(10).allows(0, 1)


def test_what_is_not_closed_yet_is_not_free() -> None:
    """A flood of sessions that replace each other must not run over the limit in between."""
    budget = Budget(RESERVED + 10)
    budget.take(4)
    assert budget.allows(4, 2)
    assert not budget.allows(4, 2, closing=3)


@given(st.integers(10, 2000), st.integers(1, 6))
def test_greedy_clients_leave_room_for_another(limit: int, greedy: int) -> None:
    """One ends at half of what its service may hold, two at a third each, and so on."""
    budget, clients, held = Budget(limit, reserved=0), [0] * greedy, 0
    taken = True
    while taken:
        taken = False
        for number, count in enumerate(clients):
            if budget.allows(held, 1) and budget.allows_client(count, held):
                budget.take(1)
                clients[number], held, taken = count + 1, held + 1, True
    assert max(clients) - min(clients) <= 1
    assert max(clients) <= limit / 2 / (greedy + 1) + 2
    if limit > 100:
        assert budget.allows(held, 1)
        assert budget.allows_client(0, held)


def test_a_new_listener_needs_room_for_its_first_connections() -> None:
    budget = Budget(RESERVED + LISTENER_ROOM)
    assert not budget.is_crowded()
    assert budget.is_crowded(closing=1)
    budget.take(1)
    assert budget.is_crowded()
