"""Which endpoint is next: round robin with session affinity for one listener.

State without I/O: time and the shuffling are arguments. Promises: every endpoint is used in turn, a
client with affinity comes back to its endpoint until it has been idle for the time-out, endpoints
that failed lately are passed over unless all did, and the memory for all that is bounded. Leaves to
others: connecting, and reporting how that ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kubeproxy.modes.userspace.carrier.budget import Budget
from kubeproxy.modes.userspace.carrier.health import EndpointHealth

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
    """The endpoints of one listener, and which client used which.

    `memory` is what all listeners together may remember of clients.
    """

    def __init__(self, shuffle: Shuffle, memory: Budget | None = None) -> None:
        self._shuffle = shuffle
        self._memory = memory or Budget(2 * MAX_CLIENTS, reserved=0)
        self._targets: list[Target] = []
        self._serving: frozenset[Target] = frozenset()
        self._next = 0
        self._health: EndpointHealth[Target] = EndpointHealth()
        self._affinity_seconds = 0
        # In the order of last use, so that the first is always the one to expire next.
        self._records: dict[str, _Record] = {}

    @property
    def clients(self) -> int:
        """How many clients have an affinity record."""
        return len(self._records)

    @property
    def failures(self) -> int:
        """How many endpoints have failed and not answered since."""
        return len(self._health)

    def update(self, targets: tuple[Target, ...], affinity_seconds: int) -> None:
        """Serve from these endpoints from now on.

        New endpoints are shuffled, so that the proxies of many nodes do not all begin with the
        same one. Clients of endpoints that stay keep theirs; a new time-out holds at once.
        """
        self._affinity_seconds = affinity_seconds
        if not affinity_seconds:
            self._keep({})
        if sorted(targets) == sorted(self._targets):
            return
        self._targets = list(targets)
        self._shuffle(self._targets)
        self._next = 0
        self._serving = frozenset(targets)
        self._keep({c: r for c, r in self._records.items() if r.target in self._serving})
        self._health.keep(self._serving)

    def clear(self) -> None:
        """Forget everything: the listener is closed."""
        self.update((), 0)

    def _keep(self, records: dict[str, _Record]) -> None:
        self._memory.release(len(self._records) - len(records))
        self._records = records

    def failed(self, target: Target, now: float) -> None:
        """Pass over an endpoint for a while: it refused, or did not answer."""
        if target in self._serving:
            self._health.failed(target, now)

    def answered(self, target: Target) -> None:
        self._health.answered(target)

    def is_due(self, target: Target, now: float) -> bool:
        """May the endpoint be picked while there are others?"""
        return not self._health.is_avoided(target, now)

    def pick(self, client: str, now: float, *, ignore_affinity: bool = False) -> Target | None:
        """Return the endpoint for a client's next connection, or None if there is none at all.

        With `ignore_affinity` (its endpoint has just failed) the client gets another one, and
        keeps that. That an endpoint failed for other clients does not move a client: its own
        connection decides.
        """
        if not self._affinity_seconds:
            return self._next_target(now)
        self.expire(now)
        record = self._records.get(client)
        target = self._next_target(now) if record is None or ignore_affinity else record.target
        if target is not None:
            self._remember(client, _Record(target, now))
        return target

    def _remember(self, client: str, record: _Record) -> None:
        """Make this the client that was used last; out of memory, the first is forgotten."""
        self._forget(client)
        held = len(self._records)
        if held and not (held < MAX_CLIENTS and self._memory.allows(held, 1)):
            self._forget(next(iter(self._records)))
        if self._memory.allows(0, 1):
            self._memory.take(1)
            self._records[client] = record

    def _forget(self, client: str) -> None:
        if self._records.pop(client, None) is not None:
            self._memory.release(1)

    def _next_target(self, now: float) -> Target | None:
        if not self._targets:
            return None
        index = self._next if not self._health else self._next_due(now)
        self._next = (index + 1) % len(self._targets)
        return self._targets[index]

    def _next_due(self, now: float) -> int:
        """The next endpoint that is not avoided; simply the next if all are."""
        count = len(self._targets)
        for index in (place % count for place in range(self._next, self._next + count)):
            target = self._targets[index]
            if self.is_due(target, now):
                self._health.picked(target, now)
                return index
        return self._next

    def expire(self, now: float) -> None:
        """Forget clients that were idle for the time-out, counted in whole seconds as in v1.25."""
        while self._records:
            client, record = next(iter(self._records.items()))
            if int(now - record.used_at) < self._affinity_seconds:
                return
            self._forget(client)
