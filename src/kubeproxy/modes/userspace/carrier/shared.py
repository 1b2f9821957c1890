"""What the listeners of one carrier share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Protocol

from kubeproxy.facts.address import join_host_port
from kubeproxy.modes.userspace.carrier.balance import MAX_CLIENTS, Balancer
from kubeproxy.modes.userspace.carrier.budget import Budget
from kubeproxy.modes.userspace.carrier.direction import PipePool
from kubeproxy.modes.userspace.carrier.drains import Drains
from kubeproxy.modes.userspace.carrier.hops import Address, Hops
from kubeproxy.modes.userspace.carrier.messages import Route
from kubeproxy.modes.userspace.carrier.reactor import Reactor, Timeouts
from kubeproxy.modes.userspace.carrier.service_log import ServiceLog

DIAL_SECONDS = (0.25, 0.5, 1.0, 2.0)
"""How long each attempt to connect may take; there are as many attempts. As in v1.25."""

PAUSE_SECONDS = 0.1
LASTING_SECONDS = 5.0
"""A connection that is this old gets what only old ones need. Most end before."""
"""How long a listener that found no free descriptor waits before it accepts again."""

ALL_CLIENTS = 4 * MAX_CLIENTS
"""Affinity records of all listeners together: some 60 MB."""

SWEEP_SECONDS = 10.0
MOST_ROUTES = 5000
"""Of how many routes the connections are counted and reported."""
EVICTED_AT_ONCE = 32


class Holder(Protocol):
    """A listener with connections or sessions, open or closed."""

    service: str

    @property
    def held(self) -> int:
        """How many descriptors these take."""

    def evict(self, count: int) -> None:
        """End so many of them, the latest first."""

    def routes(self) -> Iterator[tuple[Route, Address]]:
        """Where each of them goes, and its client."""


class Shared:
    """The event loop, its timers, descriptors, pipes and log; and counters of connections."""

    def __init__(self, reactor: Reactor, *, limit: int, write: Callable[[str, str], None]) -> None:
        self.reactor = reactor
        self.budget = Budget(limit)
        self.affinity = Budget(ALL_CLIENTS, reserved=0)
        self.hops = Hops()
        self.service_log = ServiceLog(write)
        self.pipes = PipePool()
        self.dial_timeouts = tuple(Timeouts(seconds) for seconds in DIAL_SECONDS)
        self.pauses = Timeouts(PAUSE_SECONDS)
        self.lasting = Timeouts(LASTING_SECONDS)
        self.connections = 0
        self.sessions = 0
        self._holders: dict[Holder, None] = {}
        self.carried = CarriedRoutes(self._holders)
        self.sweep = AffinitySweep(self.affinity)
        for timeouts in (*self.dial_timeouts, self.pauses, self.lasting):
            reactor.add_timers(timeouts)
        reactor.add_timers(self.sweep)
        self.drains = Drains()
        reactor.add_timers(self.drains)

    def log(self, service: str, kind: str, detail: str) -> None:
        self.service_log.log(service, kind, detail, self.reactor.now)

    def allows(self, held: int, cost: int) -> bool:
        """May a listener that holds this many descriptors take `cost` more?"""
        return self.budget.allows(held, cost, closing=self.reactor.closing)

    def take(self, holder: Holder, cost: int) -> None:
        self.budget.take(cost)
        self._holders[holder] = None

    def release(self, holder: Holder, cost: int) -> None:
        self.budget.release(cost)
        if not holder.held:
            self._holders.pop(holder, None)

    def make_room(self) -> bool:
        """End some connections of the listener that has most, if a new listener needs the room.

        Return whether it must wait for that: descriptors are free after this iteration.
        """
        if not self.budget.is_crowded(closing=self.reactor.closing):
            return False
        greediest = max(self._holders, key=lambda holder: holder.held, default=None)
        if greediest is None:
            return self.reactor.closing > 0
        held = f"{greediest.held} descriptors, more than any other service"
        self.log(greediest.service, "the latest connections end for a new service", held)
        greediest.evict(EVICTED_AT_ONCE)
        return True

    def new_balancer(self) -> Balancer:
        balancer = Balancer(random.shuffle, self.affinity)
        self.sweep.balancers[balancer] = None
        return balancer

    def drop_balancer(self, balancer: Balancer) -> None:
        """Free the memory of a listener that is closed."""
        balancer.clear()
        self.sweep.balancers.pop(balancer, None)


class CarriedRoutes:
    """How many connections went where, bounded: the route that is known longest is forgotten."""

    def __init__(self, holders: Mapping[Holder, None]) -> None:
        self._holders = holders
        self._totals: dict[Route, int] = {}

    def add(self, route: Route) -> None:
        """Count a connection that was made."""
        totals = self._totals
        totals[route] = totals.get(route, 0) + 1
        if len(totals) > MOST_ROUTES:
            del totals[next(iter(totals))]

    def report(
        self, most_flows: int
    ) -> tuple[tuple[tuple[Route, int, int], ...], tuple[tuple[Route, str], ...], bool]:
        """Counts now and in total, some connections one by one, and whether something is left out.

        Its cost is the number of open connections: some 10 ms for 30,000.
        """
        open_now: dict[Route, int] = {}
        flows: list[tuple[Route, str]] = []
        for holder in self._holders:
            for route, client in holder.routes():
                open_now[route] = open_now.get(route, 0) + 1
                if len(flows) < most_flows:
                    flows.append((route, join_host_port(*client[:2])))
        routes = {**dict.fromkeys(open_now), **dict.fromkeys(self._totals)}
        counts = tuple(
            (route, open_now.get(route, 0), self._totals.get(route, 0))
            for route in islice(routes, MOST_ROUTES)
        )
        return counts, tuple(flows), len(routes) > MOST_ROUTES


class AffinitySweep:
    """Makes listeners without traffic forget their clients when time is up.

    They would otherwise keep their share of the records until a client comes again.
    """

    def __init__(self, records: Budget) -> None:
        self.balancers: dict[Balancer, None] = {}
        self._records = records
        self._last = 0.0

    def next_deadline(self) -> float | None:
        return self._last + SWEEP_SECONDS if self._records.used else None

    def expire(self, now: float) -> None:
        if self._records.used and now >= self._last + SWEEP_SECONDS:
            self._last = now
            for balancer in self.balancers:
                balancer.expire(now)
