"""Reports edits of our iptables rules by other programs, soon but not too often.

Asks a watcher once a second and reports what it found. Each report makes the engine list the
tables, which may take a second of processor time in a big cluster, and programs that edit their own
rules all the time must not keep us busy with that. Hence `Pace`.

Promises: an edit is reported within two seconds, and within ten (in a cluster so big that listing
takes longer than half a second: twenty times that) if there were others shortly before; the
listings that reports cause take at most a twentieth of one processor. Leaves to others: the repair.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from kubeproxy.errors import KernelError
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import DriftListener
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.watchers import open_watcher
from kubeproxy.modes.netfilter.sinks.xtables import Xtables

POLL_SECONDS = 1.0
BURST = 3
PAUSE_SECONDS = 10.0
READ_SHARE = 20.0
"""A listing is followed by a pause this many times as long, at least."""
RETRY_SECONDS = 60.0

Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]

logger = get_logger(__name__)


class Pace:
    """How often to report: three times at once, then once in ten seconds. Time is an argument."""

    def __init__(self) -> None:
        self._tokens = float(BURST)
        self._last = float("-inf")

    def allows(self, now: float, read_seconds: float) -> bool:
        """May there be a report now, if listing the tables takes so long?"""
        return self._refilled(now) >= 1 and now >= self._last + read_seconds * READ_SHARE

    def spend(self, now: float) -> None:
        self._tokens, self._last = self._refilled(now) - 1, now

    def _refilled(self, now: float) -> float:
        return min(self._tokens + (now - self._last) / PAUSE_SECONDS, BURST)


class EditMonitor:
    """Watches the tables of one sink."""

    def __init__(
        self,
        tables: Xtables,
        sink: NetfilterSink,
        *,
        sleep: Sleep = asyncio.sleep,
        clock: Clock = time.monotonic,
    ) -> None:
        """`sleep` and `clock` are arguments so that tests need not wait."""
        self._tables = tables
        self._sink = sink
        self._sleep = sleep
        self._clock = clock

    async def run(self, drifted: DriftListener) -> None:
        """Until cancelled, call `drifted` when another program edits what is ours."""
        unseen = ""
        while True:
            try:
                await self._watch(drifted, unseen)
            except KernelError as error:
                logger.error(error, "Edits of iptables rules go unnoticed; trying again")
            unseen = "perhaps, while nothing could be noticed"
            await self._sleep(RETRY_SECONDS)

    async def _watch(self, drifted: DriftListener, unseen: str) -> None:
        version = await self._tables.probe()
        watcher = open_watcher(self._tables.family, self._sink.scope, is_nft=version.is_nft)
        self._tables.watcher = watcher
        try:
            await self._poll(watcher.take, drifted, unseen)
        finally:
            self._tables.watcher = None
            watcher.close()

    async def _poll(self, take: Callable[[], str], drifted: DriftListener, found: str) -> None:
        """Report what was found and what `take` returns, at the pace that listings allow."""
        pace = Pace()
        while True:
            await self._sleep(POLL_SECONDS)
            found = take() or found
            now = self._clock()
            if found and pace.allows(now, self._sink.read_seconds):
                pace.spend(now)
                drifted(f"another program edited iptables: {found}")
                found = ""
