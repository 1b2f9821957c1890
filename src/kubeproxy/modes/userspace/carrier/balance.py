"""Which endpoint is next: round robin with session affinity for one listener.

State without I/O: time and the shuffling are arguments. Promises: every endpoint is used in turn, a
client with affinity comes back to its endpoint until it has been idle for the time-out, and the
memory for that is bounded. Leaves to others: whether an endpoint answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MAX_CLIENTS = 65_536
"""Affinity records of one listener; beyond, the client that was idle longest is forgotten."""


class Target(NamedTuple):
    """An endpoint to connect to."""

    address: str
    port: int


class _Record(NamedTuple):
    target: Target
    used_at: float


Shuffle = Callable[[list[Target]], None]


class Balancer:
    """The endpoints of one listener, and which client used which."""

    def __init__(self, shuffle: Shuffle) -> None:
        self._shuffle = shuffle
        self._targets: list[Target] = []
        self._next = 0
        self._affinity_seconds = 0
        # In the order of last use, so that the first is always the one to expire next.
        self._records: dict[str, _Record] = {}

    @property
    def clients(self) -> int:
        """How many clients have an affinity record."""
        return len(self._records)

    def update(self, targets: tuple[Target, ...], affinity_seconds: int) -> None:
        """Serve from these endpoints from now on.

        New endpoints are shuffled, so that the proxies of many nodes do not all begin with the
        same one. Clients of endpoints that stay keep theirs; a new time-out holds at once.
        """
        self._affinity_seconds = affinity_seconds
        if not affinity_seconds:
            self._records.clear()
        if sorted(targets) == sorted(self._targets):
            return
        self._targets = list(targets)
        self._shuffle(self._targets)
        self._next = 0
        kept = set(targets)
        self._records = {c: r for c, r in self._records.items() if r.target in kept}

    def pick(self, client: str, now: float, *, ignore_affinity: bool = False) -> Target | None:
        """Return the endpoint for a client's next connection, or None if there is none at all.

        With `ignore_affinity` (its endpoint has just failed) the client gets another one, and
        keeps that.
        """
        if not self._affinity_seconds:
            return self._next_target()
        self._expire(now)
        record = self._records.pop(client, None)
        target = self._next_target() if record is None or ignore_affinity else record.target
        if target is not None:
            if len(self._records) >= MAX_CLIENTS:
                del self._records[next(iter(self._records))]
            self._records[client] = _Record(target, now)
        return target

    def _next_target(self) -> Target | None:
        if not self._targets:
            return None
        target = self._targets[self._next]
        self._next = (self._next + 1) % len(self._targets)
        return target

    def _expire(self, now: float) -> None:
        """Forget clients that were idle for the time-out, counted in whole seconds as in v1.25."""
        while self._records:
            client, record = next(iter(self._records.items()))
            if int(now - record.used_at) < self._affinity_seconds:
                return
            del self._records[client]
