"""Endpoints on their way out: when what is carried to them must end.

Why here: the carrier owns both sockets of a connection, so it can end it for both peers at once.
Promise: while nothing drains it costs nothing; then one comparison for each iteration of the event
loop. Leaves to others: who goes (`plan.draining`), and how a connection is ended (`tcp`, `udp`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from weakref import WeakMethod

from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.plan.draining import Deadlines, Leaving


class Drain:
    """The endpoints of one listener that are on their way out.

    `end`, a method of that listener, is called with those whose time is up. It does not keep the
    listener alive: with two references in a circle thousands of closed listeners would wait for
    the garbage collector, which looks at what is old when there is a quarter more of it.
    """

    def __init__(self, drains: Drains, end: Callable[[Collection[Target]], None]) -> None:
        self._drains = drains
        self._end = WeakMethod(end)
        self._leaving = Leaving[Target]()
        self._limit_seconds = 0.0

    def update(self, balance: Balance, used: Iterable[Target], now: float) -> None:
        """Let go what is `used` and may not go on for ever, and keep what may."""
        if balance.drain_seconds is None:
            self._leaving = Leaving()
        else:
            kept = {*balance.targets, *balance.keep}
            self._limit_seconds = balance.drain_seconds
            self._leaving.discard(kept)
            self._leaving.add({target for target in used if target not in kept}, now)
        self.expire(now)

    def expire(self, now: float) -> None:
        """End what has had its time."""
        gone = self._leaving.expired(self._limit_seconds, now)
        self._leaving.discard(gone)
        self._drains.note(self, self._leaving.next_due(self._limit_seconds))
        # Whatever is carried keeps its listener: without one there is nothing to end.
        if gone and (end := self._end()) is not None:
            end(gone)


class Drains:
    """What drains in all listeners: a source of timers."""

    def __init__(self) -> None:
        self._due = Deadlines[Drain]()

    def note(self, drain: Drain, due_at: float) -> None:
        """Call this one at that time; never, if that is infinite."""
        if due_at == float("inf"):
            self._due.discard(drain)
        else:
            self._due.set(drain, due_at)

    def next_deadline(self) -> float | None:
        first = self._due.first()
        return None if first == float("inf") else first

    def expire(self, now: float) -> None:
        for drain in self._due.take(now):
            drain.expire(now)
