"""Control plane: how long until the kernel holds what the API server has, and at what cost.

One `Session` is one run of one program: cold start, single changes, a rolling update, churn. Every
change is undone before the next, so both programs and all rounds meet the same objects. A wait that
passes the cut-off is recorded as "more than" and ends that measure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec

from kpctl.bench.cluster import SPARE, SPARE_SERVICES, Cluster, in_parallel
from kpctl.bench.commits import CommitClock
from kpctl.bench.events import LOOPBACK, Uplink, event_arrivals, received_bytes
from kpctl.bench.moments import Moments
from kpctl.bench.program import RunningProxy
from kpctl.bench.records import Measurement, Size
from kpctl.bench.workload import churn, rolled_services, rolling_update

_LOOK_SECONDS = 0.25
_CALM_LOOKS = 5
"""Longer in all than the minSyncPeriod of both programs, so that a sync that is merely delayed, or
that cleans up after the last one, is not missed and does not fall into the next measure."""

T = TypeVar("T")


class Limits(msgspec.Struct, frozen=True, gc=False):
    """How long and how often things are measured."""

    cutoff_seconds: float = 60.0
    samples: int = 3
    kind_seconds: float = 15.0
    """A slow program gets fewer samples: for a kind of change, none is begun after this time."""
    churn_seconds: float = 10.0
    churn_rate: int = 1000


class _Clocks(msgspec.Struct, frozen=True):
    """When events reached the node, and when the kernel had the changes."""

    events: Moments
    commits: Moments


class Session:
    """One program, started once, and what was measured of it.

    `ipv4_clock` opens a clock for commits of IPv4 alone, where the ordinary one counts both
    families. `uplink` is where events arrive.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: CommitClock,
        proxy: RunningProxy,
        *,
        ipv4_clock: Callable[[], CommitClock] | None,
        uplink: Uplink,
        mode: str,
        program: str,
        limits: Limits,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._proxy = proxy
        self._ipv4_clock = ipv4_clock
        self._uplink = uplink
        self._mode = mode
        self._program = program
        self._limits = limits
        self.found: list[Measurement] = []

    @property
    def size(self) -> Size:
        return self._cluster.size

    def note(self, name: str, value: float, unit: str, *, is_limit: bool = False) -> None:
        self.found.append(
            Measurement(self._mode, name, self.size, self._program, value, unit, is_limit)
        )

    # --- cold start ---

    async def cold_start(self) -> bool:
        """Measure from the start of the process to its last commit. False if it was cut off."""
        limit = self._limits.cutoff_seconds
        is_calm = await self._settle(limit, needs_sync=True)
        last = max(self._clock.since(self._proxy.started_at), default=None)
        if not is_calm or last is None:
            self.note("cold start", limit, "s", is_limit=True)
            return False
        usage = self._proxy.usage()
        self.note("cold start", last - self._proxy.started_at, "s")
        self.note("cold start, CPU", usage.cpu_seconds, "CPU s")
        self.note("memory after cold start", usage.resident_mb, "MB")
        self.note("memory, peak", usage.peak_mb, "MB")
        # The small API server is on loopback, where other things count as well.
        if self._uplink.device != LOOPBACK:
            received = received_bytes(self._proxy.network, self._uplink.device)
            self.note("bytes of the first lists", received / 1e6, "MB")
        return True

    async def _settle(self, limit_seconds: float, *, needs_sync: bool = False) -> bool:
        """Wait until the proxy neither commits nor works. Return False if the limit passes."""
        deadline = time.monotonic() + limit_seconds
        calm = 0
        while calm < _CALM_LOOKS:
            if time.monotonic() > deadline:
                return False
            cpu_seconds, commits = self._proxy.usage().cpu_seconds, len(self._clock)
            await asyncio.sleep(_LOOK_SECONDS)
            is_busy = self._proxy.is_at_work(cpu_seconds) or len(self._clock) != commits
            if not is_busy and needs_sync:
                is_busy = needs_sync = not self._proxy.is_synced()
            calm = 0 if is_busy else calm + 1
        return True

    # --- single changes ---

    async def single_changes(self) -> None:
        """Measure an endpoint replaced, added, removed, and a Service added."""
        with (
            event_arrivals(self._proxy.network, self._uplink) as events,
            self._of_ipv4() as commits,
        ):
            both = _Clocks(events, commits)
            for sample in self._samples(3 * self._limits.kind_seconds):
                if not await self._endpoint_changes(self.size.services // 2 + sample, both):
                    break
            for sample in self._samples(self._limits.kind_seconds):
                if not await self._service_added(sample, both):
                    break

    @contextmanager
    def _of_ipv4(self) -> Iterator[Moments]:
        """Commits of IPv4 alone, because a new Service makes both programs sync IPv6 too."""
        if self._ipv4_clock is None:
            yield self._clock
            return
        with self._proxy.network.inside():
            clock = self._ipv4_clock()
        try:
            yield clock
        finally:
            clock.close()

    def _samples(self, seconds: float) -> Iterator[int]:
        """Numbers of samples: fewer for a slow program, but at least one."""
        began = time.monotonic()
        for sample in range(self._limits.samples):
            if sample == 0 or time.monotonic() - began < seconds:
                yield sample

    async def _endpoint_changes(self, index: int, clocks: _Clocks) -> bool:
        """Measure three changes that lead back to where they started."""
        kept = range(1, self.size.endpoints)
        steps = (
            ("endpoint replaced", (SPARE, *kept)),
            ("endpoint added", (SPARE, 0, *kept)),
            ("endpoint removed", (0, *kept)),
        )
        for name, slots in steps:
            change = partial(self._cluster.set_slots, index, slots)
            if not await self._measure_change(name, change, clocks):
                await self._cluster.set_slots(index, range(self.size.endpoints))
                return False
            await self._settle(self._limits.cutoff_seconds)
        return True

    async def _service_added(self, sample: int, clocks: _Clocks) -> bool:
        index = self.size.services + sample % SPARE_SERVICES
        change = partial(self._cluster.add_service, index)
        is_done = await self._measure_change("Service added", change, clocks)
        await self._settle(self._limits.cutoff_seconds)
        await self._cluster.remove_service(index)
        await self._settle(self._limits.cutoff_seconds)
        return is_done

    async def _measure_change(
        self, name: str, change: Callable[[], Awaitable[None]], clocks: _Clocks
    ) -> bool:
        sent = time.monotonic()
        await change()
        answered = time.monotonic()
        limit = self._limits.cutoff_seconds
        arrived = await clocks.events.first_after(sent, limit)
        commit = await self._last_commit(clocks.commits, sent)
        if commit is None or arrived is None:
            self.note(name, limit * 1000, "ms", is_limit=True)
            return False
        self.note(name, (commit - arrived) * 1000, "ms")
        self.note(f"{name}, from the answer", (commit - answered) * 1000, "ms")
        self.note(f"{name}, from the request", (commit - sent) * 1000, "ms")
        return True

    async def _last_commit(self, commits: Moments, sent: float) -> float | None:
        """The last commit of the sync that a change has caused.

        Upstream begins a sync by removing what an earlier one has left, in a transaction of its
        own. The change itself comes with the last transaction before it rests.
        """
        deadline = sent + self._limits.cutoff_seconds
        if await commits.first_after(sent, self._limits.cutoff_seconds) is None:
            return None
        while time.monotonic() < deadline:
            cpu_seconds, count = self._proxy.usage().cpu_seconds, len(commits)
            await asyncio.sleep(_LOOK_SECONDS)
            if not self._proxy.is_at_work(cpu_seconds) and len(commits) == count:
                return commits.since(sent)[-1]
        return None

    # --- many changes ---

    async def rolling_update(self) -> None:
        """Replace every endpoint of a hundred services, wave by wave."""
        jobs = rolling_update(self._cluster)
        await self._measure_many(f"rolling update of {len(jobs)} endpoints", in_parallel(jobs))
        await self._reset(rolled_services(self._cluster))

    async def churn(self) -> None:
        """Change endpoints all over the cluster."""
        limits, name = self._limits, f"churn of {self._limits.churn_rate} changes/s"
        if not await self._settle(limits.cutoff_seconds, needs_sync=True):
            self.note(f"{name}, lag at the end", limits.cutoff_seconds * 1000, "ms", is_limit=True)
            return
        work = churn(self._cluster, rate=limits.churn_rate, seconds=limits.churn_seconds)
        touched = await self._measure_many(name, work)
        self.note(f"{name}, served", len(touched) / limits.churn_seconds, "changes/s")
        await self._reset(set(touched))

    async def _measure_many(self, name: str, work: Awaitable[T]) -> T:
        before = self._proxy.usage().cpu_seconds
        began = time.monotonic()
        result = await work
        answered = time.monotonic()
        limit = self._limits.cutoff_seconds
        is_calm = await self._settle(limit)
        last = max(self._clock.since(began), default=None)
        if is_calm and last is not None:
            self.note(f"{name}, lag at the end", max(last - answered, 0.0) * 1000, "ms")
            self.note(f"{name}, CPU", self._proxy.usage().cpu_seconds - before, "CPU s")
        else:
            self.note(f"{name}, lag at the end", limit * 1000, "ms", is_limit=True)
        return result

    async def _reset(self, services: Iterable[int]) -> None:
        await self._cluster.reset(services)
        await self._settle(self._limits.cutoff_seconds)
