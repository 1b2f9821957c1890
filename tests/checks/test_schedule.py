"""Which target is checked when, without a clock and without sockets."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeproxy.checks.condition import Failure
from kubeproxy.checks.schedule import GRACE_SECONDS, STALL_SECONDS, TICK_SECONDS, Schedule, Target
from kubeproxy.checks.wheel import Wheel
from kubeproxy.facts.policy import CheckKind, HealthCheck

BAD = Failure("refused", "connection refused")
CHECK = HealthCheck(CheckKind.TCP, interval_seconds=10, timeout_seconds=1, fall=2)


def make(most_at_once: int = 100, most_per_step: int = 100, seed: int = 1) -> Schedule:
    return Schedule(Random(seed).random, most_at_once=most_at_once, most_per_step=most_per_step)


def target(number: int = 1, check: HealthCheck = CHECK) -> Target:
    return Target(check, f"10.0.0.{number}", 80)


class World:
    """Steps through time as the checker does, with endpoints that answer as given."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.now = 0.0
        self.starts: list[tuple[float, Target]] = []
        self.silent: set[Target] = set()
        self.failing: set[Target] = set()
        self.most_under_way = 0
        self.changes: list[Target] = []

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.schedule.next_at(self.now)) is not None and due < end:
            self.now = due
            self.step()
        self.now = end

    def step(self) -> None:
        for found in self.schedule.overdue(self.now):
            self._finish(found, BAD)
        for found in self.schedule.start(self.now):
            self.starts.append((self.now, found))
            self.most_under_way = max(self.most_under_way, self.schedule.under_way)
            if found not in self.silent:
                self._finish(found, BAD if found in self.failing else None)

    def _finish(self, found: Target, failure: Failure | None) -> None:
        if self.schedule.finish(found, failure):
            self.changes.append(found)


def test_nothing_is_due_without_targets() -> None:
    assert make().next_at(5.0) is None


def test_every_target_is_checked_once_per_interval() -> None:
    world = World(make())
    targets = [target(number) for number in range(50)]
    for each in targets:
        world.schedule.add(each, 0.0)
    world.run(100)
    counts = Counter(found for _, found in world.starts)
    assert counts.keys() == set(targets)
    assert all(9 <= count <= 11 for count in counts.values())


def test_load_is_spread_over_the_interval_from_the_first_check_on() -> None:
    world = World(make())
    for number in range(200):
        world.schedule.add(target(number), 0.0)
    world.run(10)
    seconds = Counter(int(at) for at, _ in world.starts)
    assert len(seconds) == 10
    assert max(seconds.values()) < 40


@given(seed=st.integers(), jitter=st.integers(0, 100))
@settings(max_examples=20)
def test_jitter_moves_each_check_around_the_interval(seed: int, jitter: int) -> None:
    check = HealthCheck(CheckKind.TCP, jitter_percent=jitter)
    world = World(make(seed=seed))
    world.schedule.add(target(check=check), 0.0)
    world.run(200)
    times = [at for at, _ in world.starts]
    gaps = [after - before for before, after in pairwise(times)]
    room = 10 * jitter / 100 / 2 + 2 * TICK_SECONDS
    assert all(10 - room <= gap <= 10 + room for gap in gaps)


def test_what_does_not_answer_ends_after_the_time_out() -> None:
    world = World(make())
    quiet = target()
    world.silent.add(quiet)
    world.schedule.add(quiet, 0.0)
    while not world.starts:
        world.run(0.1)
    began = world.starts[0][0]
    world.run(began + 1 + GRACE_SECONDS - 0.01 - world.now)
    assert world.schedule.under_way == 1
    world.run(0.02 + TICK_SECONDS)
    assert world.schedule.under_way == 0
    assert quiet.condition.streak == 1


def test_a_change_is_reported_once_and_counted() -> None:
    world = World(make())
    bad = target()
    world.failing.add(bad)
    world.schedule.add(bad, 0.0)
    world.run(100)
    assert world.changes == [bad]
    assert (world.schedule.targets, world.schedule.failing) == (1, 1)
    world.failing.clear()
    world.run(100)
    assert world.changes == [bad, bad]
    assert world.schedule.failing == 0


def test_no_more_than_allowed_are_under_way_and_the_others_wait() -> None:
    """Overload makes checks late; it makes none fail."""
    check = HealthCheck(CheckKind.TCP, interval_seconds=1, timeout_seconds=1, fall=100)
    world = World(make(most_at_once=10))
    targets = [target(number, check) for number in range(100)]
    world.silent.update(targets)
    for each in targets:
        world.schedule.add(each, 0.0)
    world.run(60)
    assert world.most_under_way == 10
    assert world.schedule.queued > 0
    counts = Counter(found for _, found in world.starts)
    # Ten per second at most, so that each has its turn every ten seconds.
    assert set(counts.values()) <= {4, 5, 6}


def test_no_more_than_allowed_begin_in_one_step() -> None:
    schedule = make(most_per_step=3)
    for number in range(10):
        schedule.add(target(number), 0.0)
    assert [len(schedule.start(10.0)) for _ in range(5)] == [3, 3, 3, 1, 0]


@pytest.mark.parametrize("state", ["waiting", "queued", "under way"])
def test_a_target_that_goes_is_not_checked_any_more(state: str) -> None:
    schedule = make(most_at_once=1)
    targets = [target(1), target(2)]
    for each in targets:
        schedule.add(each, 0.0)
    (first,) = schedule.start(10.0) if state != "waiting" else targets[:1]
    (other,) = set(targets) - {first}
    gone, stays = (other, first) if state == "queued" else (first, other)
    schedule.remove(gone)
    assert schedule.targets == 1
    if state == "queued":
        schedule.finish(stays, None)
    assert schedule.start(100.0) == [stays]
    assert schedule.overdue(200.0) == [stays]
    schedule.finish(stays, None)
    assert schedule.start(300.0) == [stays]


def test_a_failing_target_that_goes_is_not_counted_any_more() -> None:
    world = World(make())
    bad = target()
    world.failing.add(bad)
    world.schedule.add(bad, 0.0)
    world.run(100)
    world.schedule.remove(bad)
    assert world.schedule.failing == 0


def test_what_this_host_cannot_do_is_no_result() -> None:
    schedule = make()
    each = target()
    schedule.add(each, 0.0)
    assert schedule.start(10.0) == [each]
    schedule.skip(each)
    assert each.condition.streak == 0
    assert schedule.start(21.0) == [each]


def test_time_in_which_this_process_did_not_run_does_not_count() -> None:
    """The host was suspended for an hour: the answer may well have arrived in time."""
    schedule = make()
    each = target()
    schedule.add(each, 0.0)
    schedule.start(10.0)
    schedule.time.expect(10.02)
    schedule.time.woke(3600.0)
    assert schedule.overdue(3600.0) == []
    schedule.time.expect(3600.02)
    schedule.time.woke(3600.02 + STALL_SECONDS / 2)
    assert schedule.overdue(3600.5) == []
    assert schedule.overdue(3601.01 + GRACE_SECONDS) == [each]


def test_a_step_that_comes_a_little_late_counts() -> None:
    schedule = make()
    each = target()
    schedule.add(each, 0.0)
    schedule.start(10.0)
    for tick in range(20):
        schedule.time.expect(10.0 + tick * 0.05)
        schedule.time.woke(10.0 + tick * 0.05 + 0.05)
    assert schedule.overdue(11.0 + GRACE_SECONDS) == [each]


# --- the wheel ---

_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "discard", "take"]), st.integers(0, 30), st.integers(0, 5))
)


@given(_ACTIONS)
def test_the_wheel_is_a_table_of_due_times(actions: list[tuple[str, int, int]]) -> None:
    wheel: Wheel[int] = Wheel()
    table: dict[int, int] = {}
    for action, tick, item in actions:
        if action == "put" and item not in table:
            wheel.put(tick, item)
            table[item] = tick
        elif action == "discard":
            wheel.discard(table.pop(item, tick), item)
        elif action == "take":
            due = {each for each, at in table.items() if at <= tick}
            assert set(wheel.take(tick)) == due
            table = {each: at for each, at in table.items() if each not in due}
        assert wheel.next_tick() == min(table.values(), default=None)
