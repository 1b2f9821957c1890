"""Which endpoint is next: an algorithm with session affinity on top, for one listener.

State without I/O: time, shuffling and drawing are arguments. Promises: a client with affinity comes
back to its endpoint until it has been idle for the time-out, endpoints that failed lately are
passed over unless all did, and the memory for all that is bounded. Leaves to others: the algorithm
(`choosing`), connecting, and reporting how that ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.userspace.carrier.budget import Budget
from kubeproxy.modes.userspace.carrier.choosing import Chooser, Draw
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

    def __init__(
        self, shuffle: Shuffle, memory: Budget | None = None, draw: Draw = random.randrange
    ) -> None:
        self._memory = memory or Budget(2 * MAX_CLIENTS, reserved=0)
        self._chooser: Chooser[Target] = Chooser(shuffle, draw)
        self._serving: frozenset[Target] = frozenset()
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

    def update(
        self,
        targets: tuple[Target, ...],
        affinity_seconds: int,
        algorithm: Algorithm | None = None,
        weights: tuple[int, ...] = (),
    ) -> None:
        """Serve from these endpoints from now on.

        Clients of endpoints that stay keep theirs; a new time-out holds at once.
        """
        self._affinity_seconds = affinity_seconds
        if not affinity_seconds:
            self._keep({})
        if not self._chooser.update(targets, algorithm, weights):
            return
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

    def began(self, target: Target) -> None:
        """Count a connection that is open, or about to be."""
        self._chooser.began(target)

    def ended(self, target: Target) -> None:
        """Count a connection that was begun no more."""
        self._chooser.ended(target)

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
            return self._next_target(client, now)
        self.expire(now)
        record = self._records.get(client)
        if record is None or ignore_affinity:
            target = self._next_target(client, now)
        else:
            target = record.target
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

    def _next_target(self, client: str, now: float) -> Target | None:
        """The algorithm's next endpoint that is not avoided; simply its next if all are."""
        if not self._health:
            return self._chooser.choose(client)
        target = self._chooser.choose(client, lambda each: self.is_due(each, now))
        if target is not None and self.is_due(target, now):
            self._health.picked(target, now)
        return target

    def expire(self, now: float) -> None:
        """Forget clients that were idle for the time-out, counted in whole seconds as in v1.25."""
        while self._records:
            client, record = next(iter(self._records.items()))
            if int(now - record.used_at) < self._affinity_seconds:
                return
            self._forget(client)
