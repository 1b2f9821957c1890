"""Sharing descriptors between listeners."""

from __future__ import annotations

from kubeproxy.modes.userspace.carrier.budget import RESERVED, Budget


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
