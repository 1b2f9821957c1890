"""Which endpoint is checked when, and what the outcome means: no clock, no sockets. Pure.

    add ──▶ waiting ──due──▶ queued ──a place is free──▶ under way ──finish──▶ waiting …
              ▲                                              │
              └──────────────── time-out: `overdue` ─────────┘

Promises: every target is tried once per interval on average; no more than `most_at_once` are under
way, and no more than `most_per_step` begin at once. What cannot begin waits, so that overload makes
checks late and never makes them fail. Time is an argument and counts in ticks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from kubeproxy.checks.condition import PASSING, Condition, Failure, judge
from kubeproxy.checks.wheel import Wheel
from kubeproxy.facts.policy import HealthCheck

TICK_SECONDS = 0.05
"""How often checks under way are looked at. One by one, at each event, they would cost twice as
much: most of it is waking up."""
GRACE_SECONDS = 2 * TICK_SECONDS
"""An answer may wait for us to look, and so may the connection before the request."""
STALL_SECONDS = 0.1
"""A step that comes later than this after it was due: the process did not run."""


class Target(Struct, eq=False):
    """One check of one address and port, however many Services it is for.

    `due` is a tick of the clock, `deadline` a time of `RunningTime`. `descriptor` is that of the
    socket while the check is under way, else -1.
    """

    check: HealthCheck
    address: str
    port: int
    condition: Condition = PASSING
    is_gone: bool = False
    due: int = 0
    deadline: float = 0.0
    descriptor: int = -1


class RunningTime:
    """Time without the moments in which this process did not run.

    A busy or suspended host, or a limit of processor time, delays our looking, not the endpoint's
    answer: such time must not count against it.
    """

    def __init__(self) -> None:
        self._lost = 0.0
        self._expected = float("inf")

    def expect(self, at: float) -> None:
        """The next step is due at this time."""
        self._expected = at

    def woke(self, at: float) -> None:
        """A step begins at this time."""
        late = at - self._expected
        if late > STALL_SECONDS:
            self._lost += late
        self._expected = float("inf")

    def at(self, at: float) -> float:
        return at - self._lost


class Schedule:
    """All targets. `random` returns a number from 0 up to 1."""

    def __init__(
        self, random: Callable[[], float], *, most_at_once: int, most_per_step: int
    ) -> None:
        self._random = random
        self._most_at_once = most_at_once
        self._most_per_step = most_per_step
        self.time = RunningTime()
        self._waiting: Wheel[Target] = Wheel()
        self._queue: deque[Target] = deque()
        self._under_way: set[Target] = set()
        self.targets = 0
        self.failing = 0

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def queued(self) -> int:
        """How many checks are due and wait for others to end."""
        return len(self._queue)

    def add(self, target: Target, now: float) -> None:
        """Check a target from now on, first at random within one interval, so that load spreads."""
        self.targets += 1
        target.due = _tick(now + self._random() * target.check.interval_seconds)
        self._waiting.put(target.due, target)

    def remove(self, target: Target) -> None:
        """Forget a target. What is under way of it must be ended by the caller."""
        target.is_gone = True
        self.targets -= 1
        self.failing -= target.condition.failure is not None
        self._under_way.discard(target)
        self._waiting.discard(target.due, target)

    def start(self, now: float) -> list[Target]:
        """Return the targets whose check begins now."""
        self._queue += self._waiting.take(_tick(now))
        running, random = self.time.at(now), self._random
        started: list[Target] = []
        free = min(self._most_per_step, self._most_at_once - len(self._under_way))
        while self._queue and len(started) < free:
            target = self._queue.popleft()
            if target.is_gone:
                continue
            check = target.check
            target.deadline = running + check.timeout_seconds + GRACE_SECONDS
            spread = (random() - 0.5) * check.jitter_percent / 100
            target.due = _tick(now + check.interval_seconds * (1 + spread))
            started.append(target)
        self._under_way.update(started)
        return started

    def overdue(self, now: float) -> list[Target]:
        """Return the targets whose check has taken too long. They are still under way."""
        running = self.time.at(now)
        return [target for target in self._under_way if target.deadline <= running]

    def finish(self, target: Target, failure: Failure | None) -> bool:
        """A check has ended. Return whether the endpoint fails now and did not, or the reverse."""
        self._under_way.discard(target)
        self._waiting.put(target.due, target)
        before = target.condition
        if failure is None and before is PASSING:
            return False  # nearly always, and therefore first
        after = target.condition = judge(before, failure, target.check)
        change = (after.failure is not None) - (before.failure is not None)
        self.failing += change
        return bool(change)

    def skip(self, target: Target) -> None:
        """A check could not be made, for a reason that is not the endpoint's. The next one may."""
        self._under_way.discard(target)
        self._waiting.put(target.due, target)

    def next_at(self, now: float) -> float | None:
        """Return when the next step is due, or None if nothing is to be done at all."""
        if self._under_way or self._queue:
            return now + TICK_SECONDS
        tick = self._waiting.next_tick()
        # In the middle of the tick: at its beginning, rounding might find it not begun yet.
        return None if tick is None else max(now, (tick + 0.5) * TICK_SECONDS)


def _tick(at: float) -> int:
    return int(at / TICK_SECONDS)
