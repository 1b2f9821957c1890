"""Checks targets from the event loop that also syncs, in short steps.

Promises: between two steps the loop is free for at least as long as a step took, and a step takes
a few milliseconds at most; with nothing to check there is no timer, no socket and no epoll. Which
targets there are, and what it means that one fails, is left to `sync/checks`.

Why not a thread or a process: the work is system calls and little else, a thread would fight for
the interpreter at each of them, and a process costs 12 MB on every node and a protocol.
`docs/decisions/0094-health-checks.md` has the figures.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence

from kubeproxy.checks.condition import Failure
from kubeproxy.checks.schedule import Schedule, Target
from kubeproxy.checks.sockets import CheckSockets
from kubeproxy.facts.policy import HealthCheck
from kubeproxy.go.duration import Duration, format_duration
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit

logger = get_logger(__name__)

MOST_AT_ONCE = 2048
"""Checks under way: twice as many as 10,000 silent endpoints need with the default times."""
MOST_PER_STEP = 256
STEP_SECONDS = 0.003
"""How long a step goes on with checks under way before it leaves the rest to the next."""
_SHARE_OF_DESCRIPTORS = 4

SUCCESS, SKIPPED = "success", "skipped"
"""Outcomes of a check besides the kinds of `Failure`."""


class Checker:
    """Everything that is checked on this node.

    `changed` gets targets that begin or cease to fail, all of one step at once: many endpoints may
    fail together.
    """

    def __init__(
        self,
        changed: Callable[[Sequence[Target]], None],
        *,
        random: Callable[[], float] = random.random,
        most_at_once: int = MOST_AT_ONCE,
    ) -> None:
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._schedule = Schedule(
            random,
            most_at_once=min(most_at_once, _allowed_descriptors()),
            most_per_step=MOST_PER_STEP,
        )
        self._sockets = CheckSockets(self._finished, self._skipped)
        self._timer: asyncio.TimerHandle | None = None
        self._looking_since: float | None = None
        """When the first of the steps began that look at what has arrived; None between them."""
        self._changes: list[Target] = []
        self._log_limit = LogLimit()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """How many checks have ended, by kind of check and outcome."""

    @property
    def targets(self) -> int:
        return self._schedule.targets

    @property
    def failing(self) -> int:
        return self._schedule.failing

    @property
    def waiting(self) -> int:
        """How many checks are due and wait, because too many are under way."""
        return self._schedule.queued

    def add(self, check: HealthCheck, address: str, port: int) -> Target:
        """Check an address and port from now on."""
        target = Target(check, address, port)
        now = self._loop.time()
        self._schedule.add(target, now)
        self._arm(now)
        return target

    def remove(self, target: Target) -> None:
        self._sockets.abandon(target)
        self._schedule.remove(target)

    def close(self) -> None:
        """End everything."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._sockets.close()

    def _arm(self, now: float, not_before: float = 0.0) -> None:
        """Have a step when the next one is due, unless there is an earlier one."""
        due = self._schedule.next_at(now)
        if due is None:
            return
        at = max(due, not_before)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._schedule.time.expect(at)
        self._timer = self._loop.call_at(at, self._step)

    def _step(self) -> None:
        now, began = self._loop.time(), time.thread_time()
        self._schedule.time.woke(now)
        self._timer = None
        try:
            # What has arrived goes before what is late: overdue is what had not arrived in time
            # when all that had was begun to be looked at, maybe some steps ago.
            since = now if self._looking_since is None else self._looking_since
            self._looking_since = since
            if self._sockets.go_on(began + STEP_SECONDS):
                self._looking_since = None
                self._end_overdue(since)
                for target in self._schedule.start(now):
                    self._sockets.begin(target)
            self._report()
        finally:
            ended = self._loop.time()
            self._arm(ended, not_before=ended + time.thread_time() - began)

    def _end_overdue(self, now: float) -> None:
        for target in self._schedule.overdue(now):
            self._sockets.abandon(target)
            self._finished(target, silence(target.check))

    def _finished(self, target: Target, failure: Failure | None) -> None:
        self.outcomes[target.check.kind, failure.kind if failure else SUCCESS] += 1
        if self._schedule.finish(target, failure):
            self._changes.append(target)

    def _report(self) -> None:
        if self._changes:
            changes, self._changes = self._changes, []
            self._changed(changes)

    def _skipped(self, target: Target, reason: str) -> None:
        self.outcomes[target.check.kind, SKIPPED] += 1
        self._schedule.skip(target)
        if self._log_limit.is_due(reason):
            logger.error(reason, "Health checks cannot be made; endpoints stay as they are")


def silence(check: HealthCheck) -> Failure:
    """The failure of an endpoint that did not answer in time."""
    limit = format_duration(Duration.of_seconds(check.timeout_seconds))
    return Failure("timeout", f"no answer within {limit}")


def _allowed_descriptors() -> int:
    """Leave most descriptors to everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_AT_ONCE if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_DESCRIPTORS
