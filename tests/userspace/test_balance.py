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


# --- endpoints that do not answer ---


def test_an_endpoint_that_failed_is_avoided_for_a_while() -> None:
    """Then one connection tries it, and the others do not wait for the outcome."""
    turns = balancer(A, B, C)
    assert turns.pick("x", 0.0) == A
    turns.failed(A, 0.25)
    assert [turns.pick("x", 0.25) for _ in range(4)] == [B, C, B, C]
    assert [turns.pick("x", 10.25) for _ in range(4)] == [A, B, C, B]


def test_an_endpoint_that_keeps_failing_is_avoided_twice_as_long_up_to_a_minute() -> None:
    turns, now, pauses = balancer(A, B), 0.0, []
    for _ in range(5):
        while turns.pick("x", now) != A:
            now += 0.5
        turns.failed(A, now)
        started = now
        while not turns.is_due(A, now):
            now += 0.5
        pauses.append(now - started)
    assert pauses == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_an_answer_clears_an_endpoint_at_once() -> None:
    turns = balancer(A, B)
    turns.failed(A, 0.0)
    turns.answered(A)
    assert {turns.pick("x", 0.1) for _ in range(2)} == {A, B}
    turns.failed(A, 1.0)
    assert turns.is_due(A, 11.0)


def test_when_all_endpoints_failed_all_are_tried() -> None:
    turns = balancer(A, B)
    turns.failed(A, 0.0)
    turns.failed(B, 0.0)
    assert [turns.pick("x", 1.0) for _ in range(4)] == [A, B, A, B]


def test_attempts_that_began_together_count_as_one_failure() -> None:
    """A hundred clients at once do not make an endpoint a hundred times as bad."""
    turns = balancer(A, B)
    for _ in range(100):
        turns.failed(A, 0.25)
    assert turns.is_due(A, 10.25)


def test_a_trial_without_an_outcome_is_repeated() -> None:
    """The client may leave before the endpoint has answered or failed."""
    turns = balancer(A, B)
    turns.failed(A, 0.0)
    assert {turns.pick("x", 10.0) for _ in range(4)} == {A, B}
    assert A in {turns.pick("x", 15.0) for _ in range(2)}


def test_a_client_with_affinity_keeps_an_endpoint_that_failed_for_another_client() -> None:
    """Its own connection decides: one lost packet must not move every client."""
    turns = balancer(A, B, affinity_seconds=100)
    assert turns.pick("x", 0.0) == A
    turns.failed(A, 1.0)
    assert turns.pick("x", 2.0) == A
    assert turns.pick("y", 2.0) == B
    assert turns.pick("x", 2.0, ignore_affinity=True) == B


def test_an_endpoint_that_comes_back_has_a_fresh_start() -> None:
    turns = balancer(A, B)
    turns.failed(A, 0.0)
    turns.update((B, C), 0)
    assert turns.failures == 0
    turns.update((A, B), 0)
    assert A in {turns.pick("x", 1.0) for _ in range(2)}


_EVENTS = st.lists(
    st.tuples(st.sampled_from(["pick", "failed", "answered", "wait"]), st.integers(0, 4)),
    max_size=80,
)


@given(_EVENTS, st.integers(1, 5))
def test_whatever_happens_a_usable_endpoint_is_preferred_and_memory_is_bounded(
    events: list[tuple[str, int]], count: int
) -> None:
    """One that failed lately is picked only if all did; nothing that does not serve is kept."""
    targets = tuple(Target(f"10.0.0.{n}", 80) for n in range(count))
    turns, now = balancer(*targets), 0.0
    for event, number in events:
        if event == "wait":
            now += number * 4
        elif event == "pick":
            due = {target for target in targets if turns.is_due(target, now)}
            found = turns.pick("x", now)
            assert found in (due or targets)
        elif event == "failed":
            turns.failed(Target(f"10.0.0.{number}", 80), now)
        else:
            turns.answered(Target(f"10.0.0.{number}", 80))
        assert turns.failures <= count


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=300), st.integers(2, 5))
def test_a_dead_endpoint_costs_few_connections(pauses: list[float], count: int) -> None:
    """One in ten seconds at first and one in a minute later, however many connections there are."""
    targets = tuple(Target(f"10.0.0.{n}", 80) for n in range(count))
    turns, now, dials = balancer(*targets), 0.0, 0
    for pause in pauses:
        now += pause
        while turns.pick("x", now) == targets[0]:
            dials += 1
            turns.failed(targets[0], now)
    assert dials <= 4 + max(now - 70, 0) / 60


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
