"""Stale flows are deleted beside the rounds, never in one.

A round only reports which service ports changed and, once the kernel has their rules, that they are
programmed (`flow_debts` keeps what is owed). The search through the connection tracking table is a
task of its own: it begins after that, takes as long as the table is large, and no round waits for
it. It owes nothing: a search that fails, is refused or is cut off is repeated after a growing
pause, for the service ports that are left.

After a search the cleaner rests for as long as the search took. So it takes half of one CPU at most
while flows keep becoming stale, and what comes meanwhile is done by one search. While a round is
under way, a search that is not waits for it, bit by bit (`RoundsFirst`): two threads of Python do
not run at once, and taking turns would make a round of 2 ms one of 3 ms.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeAlias

from kubeproxy.errors import fault_text
from kubeproxy.facts.ids import Family
from kubeproxy.facts.ids import Protocol as TransportProtocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.kernel.conntrack.table import CloseSockets, Search, Searched, close_none
from kubeproxy.modes.base import Owner
from kubeproxy.plan.conntrack import FlowRules
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.flow_debts import FlowDebts
from kubeproxy.sync.report import FlowReport

LONGEST_REST_SECONDS = 10.0

LONGEST_TURN_SECONDS = 0.005
"""How long a round delays each datagram of a search. Even if rounds never end, a search does."""

DeleteStale: TypeAlias = Callable[[Search], Awaitable[Searched]]
"""Searches the kernel's table and deletes what is stale; see `kernel.conntrack.table`."""


class FlowListener(Protocol):
    """Receives the outcome of each search, for metrics and logs."""

    def flows_cleaned(self, report: FlowReport) -> None: ...


class RoundsFirst:
    """Makes searches wait a moment while a round of any family is under way."""

    def __init__(self) -> None:
        self._rounds = 0
        self._is_quiet = threading.Event()
        self._is_quiet.set()

    @contextmanager
    def round(self) -> Iterator[None]:
        """A round is under way."""
        self._rounds += 1
        self._is_quiet.clear()
        try:
            yield
        finally:
            self._rounds -= 1
            if not self._rounds:
                self._is_quiet.set()

    @property
    def is_round(self) -> bool:
        return not self._is_quiet.is_set()

    def wait_turn(self) -> None:
        """Block the thread of a search until no round is under way, but never for long."""
        self._is_quiet.wait(LONGEST_TURN_SECONDS)


class FlowCleaner:
    """The stale flows of one family."""

    def __init__(
        self,
        family: Family,
        delete_stale: DeleteStale,
        *,
        clock: Clock,
        listener: FlowListener,
        turns: RoundsFirst | None = None,
        close_sockets: CloseSockets = close_none,
    ) -> None:
        """`turns` is shared by the families of a process."""
        self.debts = FlowDebts()
        self.turns = turns or RoundsFirst()
        self._family = family
        self._delete_stale = delete_stale
        self._close_sockets = close_sockets
        self._clock = clock
        self._listener = listener
        self._rest_until = float("-inf")
        self._wake = asyncio.Event()

    def programmed(self, rules: Mapping[Owner, FlowRules], node: NodeFacts) -> None:
        """The kernel has these service ports as they are now. What their flows must be like."""
        if not rules:
            return
        self.debts.set_node(node)
        now = self._clock.monotonic()
        for owner, wanted in rules.items():
            self.debts.programmed(owner, wanted, now)
        self._wake.set()

    async def run(self) -> None:
        """Search whenever something is due, until cancelled."""
        while True:
            await self._wait()
            await self.clean()

    def due_at(self) -> float:
        """The time of the next search as things stand; infinite if nothing is owed."""
        return max(self.debts.next_due(), self._rest_until)

    async def _wait(self) -> None:
        while True:
            self._wake.clear()
            delay = self.due_at() - self._clock.monotonic()
            if delay <= 0:
                return
            try:
                limit = None if delay == float("inf") else delay
                await asyncio.wait_for(self._wake.wait(), limit)
            except TimeoutError:
                continue

    async def clean(self) -> None:
        """Search for what is due now, once, one protocol after the other."""
        for protocol in TransportProtocol:
            owners = self.debts.due(protocol, self._clock.monotonic())
            if owners:
                await self._clean(protocol, owners)

    async def _clean(self, protocol: TransportProtocol, owners: Mapping[Owner, int]) -> None:
        places = self.debts.places(owners)
        started = self._clock.monotonic()
        self.debts.begin(owners, started)
        try:
            searched = await self._delete_stale(
                Search(
                    family=self._family,
                    protocol=protocol,
                    is_stale=partial(self.debts.is_stale, protocol),
                    is_noticed=partial(self.debts.is_noticed, protocol),
                    close_sockets=self._close_sockets,
                    wait_turn=self.turns.wait_turn,
                    destinations=places,
                    addresses=self.debts.addresses(places),
                )
            )
        except Exception as fault:  # whatever it is: the flows are owed still
            searched = Searched(error=fault_text(fault))
        finished = self._clock.monotonic()
        if searched.error:
            self.debts.postpone(owners, finished)
        else:
            self.debts.settle(protocol, owners, searched.refused, finished)
        seconds = finished - started
        self._rest_until = finished + min(seconds, LONGEST_REST_SECONDS)
        self._listener.flows_cleaned(
            FlowReport(
                family=self._family,
                finished_at=self._clock.time(),
                seconds=seconds,
                deleted=searched.deleted,
                reset=searched.reset,
                closed=searched.closed,
                owed=len(self.debts),
                error=searched.error,
                refused=tuple(dict.fromkeys(searched.refused.values())),
                unclosed=searched.unclosed,
            )
        )
