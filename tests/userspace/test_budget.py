"""Sharing descriptors, and saying things not too often."""

from __future__ import annotations

from kubeproxy.modes.userspace.carrier.budget import RESERVED, Budget, Complaints


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


def test_two_greedy_listeners_end_at_a_third_each_and_a_newcomer_finds_room() -> None:
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


def test_a_complaint_is_repeated_only_after_a_while_with_its_count() -> None:
    said: list[tuple[str, str]] = []
    complaints = Complaints(lambda text, label: said.append((text, label)), every_seconds=10)
    for now in (0.0, 1.0, 2.0, 11.0):
        complaints.note("ns/web", "endpoint does not answer", "10.0.0.1:80", now)
    complaints.note("ns/other", "endpoint does not answer", "10.0.0.2:80", 11.0)
    assert said == [
        ("endpoint does not answer: 10.0.0.1:80", "ns/web"),
        ("endpoint does not answer: 10.0.0.1:80 (and 2 times more before)", "ns/web"),
        ("endpoint does not answer: 10.0.0.2:80", "ns/other"),
    ]


def test_a_service_that_is_gone_leaves_no_memory() -> None:
    said: list[str] = []
    complaints = Complaints(lambda text, _label: said.append(text))
    complaints.note("ns/web", "x", "y", 0.0)
    complaints.forget("ns/web")
    complaints.note("ns/web", "x", "y", 1.0)
    assert said == ["x: y", "x: y"]
