"""Control plane: how long until the kernel holds what the API server said, and at what cost.

One `Session` is one run of one program: cold start, single changes, a rolling update, churn. Every
change is undone before the next, so both programs and all rounds meet the same objects. A wait that
passes the cut-off is reported as "more than" and ends that measure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial

import msgspec

from kubeproxy.bench.cluster import SPARE, Cluster, in_parallel
from kubeproxy.bench.commits import CommitClock, latest_since
from kubeproxy.bench.program import RunningProxy
from kubeproxy.bench.records import Measurement, Size

_LOOK_SECONDS = 0.25
_CALM_LOOKS = 3
_CALM_CPU_SECONDS = 0.03
ROLLING_SERVICES = 100
ROLLING_WAVES = 10


class Limits(msgspec.Struct, frozen=True, gc=False):
    """How long, how often."""

    cutoff_seconds: float = 60.0
    samples: int = 3
    kind_seconds: float = 15.0
    """A slow program gets fewer samples: none is begun after this long."""
    pause_seconds: float = 1.1
    """Between changes: longer than both programs' default minSyncPeriod, so that none is held."""
    churn_seconds: float = 10.0
    churn_rate: int = 1000


class Session:
    """One program, started once, and what was measured of it."""

    def __init__(
        self,
        cluster: Cluster,
        clock: CommitClock,
        proxy: RunningProxy,
        *,
        mode: str,
        program: str,
        limits: Limits,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._proxy = proxy
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
        """From the start of the process to its last commit; False if it was cut off."""
        limit = self._limits.cutoff_seconds
        is_calm = await self._settle(limit, needs_sync=True)
        last = latest_since(self._clock.moments, self._proxy.started_at)
        if not is_calm or last is None:
            self.note("cold start", limit, "s", is_limit=True)
            return False
        usage = self._proxy.usage()
        self.note("cold start", last - self._proxy.started_at, "s")
        self.note("cold start, CPU", usage.cpu_seconds, "CPU s")
        self.note("memory after cold start", usage.resident_mb, "MB")
        self.note("memory, peak", usage.peak_mb, "MB")
        return True

    async def _settle(self, limit_seconds: float, *, needs_sync: bool = False) -> bool:
        """Wait until the proxy neither commits nor works any more; False if the limit passes."""
        deadline = time.monotonic() + limit_seconds
        before = (self._proxy.usage().cpu_seconds, len(self._clock.moments))
        calm = 0
        while calm < _CALM_LOOKS:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
            after = (self._proxy.usage().cpu_seconds, len(self._clock.moments))
            is_busy = after[0] - before[0] > _CALM_CPU_SECONDS or after[1] != before[1]
            if not is_busy and needs_sync:
                is_busy = not self._proxy.is_synced()
                needs_sync = is_busy
            calm = 0 if is_busy else calm + 1
            before = (self._proxy.usage().cpu_seconds, len(self._clock.moments))
        return True

    # --- single changes ---

    async def single_changes(self) -> None:
        """One endpoint replaced, added, removed; one Service added."""
        began = time.monotonic()
        for sample in range(self._limits.samples):
            if sample and time.monotonic() - began > 3 * self._limits.kind_seconds:
                break
            if not await self._endpoint_changes(self.size.services // 2 + sample):
                break
        began = time.monotonic()
        for sample in range(self._limits.samples):
            if sample and time.monotonic() - began > self._limits.kind_seconds:
                break
            if not await self._service_added(self.size.services + sample):
                break

    async def _endpoint_changes(self, index: int) -> bool:
        """Three changes that lead back to where they started."""
        kept = range(1, self.size.endpoints)
        steps = (
            ("endpoint replaced", (SPARE, *kept)),
            ("endpoint added", (SPARE, 0, *kept)),
            ("endpoint removed", (0, *kept)),
        )
        for name, slots in steps:
            change = partial(self._cluster.set_slots, index, slots)
            if not await self._measure_change(name, change):
                await self._cluster.set_slots(index, range(self.size.endpoints))
                return False
        return True

    async def _service_added(self, index: int) -> bool:
        await self._cluster.add_slice(index, self.size)
        await self._settle(self._limits.cutoff_seconds)
        await asyncio.sleep(self._limits.pause_seconds)
        change = partial(self._cluster.announce_service, index)
        is_done = await self._measure_change("Service added", change)
        await self._cluster.remove_service(index)
        await self._settle(self._limits.cutoff_seconds)
        await asyncio.sleep(self._limits.pause_seconds)
        return is_done

    async def _measure_change(self, name: str, change: Callable[[], Awaitable[None]]) -> bool:
        sent = time.monotonic()
        await change()
        answered = time.monotonic()
        limit = self._limits.cutoff_seconds
        commit = await self._clock.burst_after(sent, limit)
        if commit is None:
            self.note(name, limit * 1000, "ms", is_limit=True)
            return False
        self.note(name, (commit - answered) * 1000, "ms")
        self.note(f"{name}, from the request", (commit - sent) * 1000, "ms")
        await asyncio.sleep(self._limits.pause_seconds)
        return True

    # --- many changes ---

    async def rolling_update(self) -> None:
        """Every endpoint of a hundred services is replaced, wave by wave."""
        services = range(min(ROLLING_SERVICES, self.size.services))
        waves = range(1, 1 + min(ROLLING_WAVES, self.size.endpoints))
        jobs = [
            partial(self._cluster.set_slots, index, _rolled(self.size.endpoints, wave))
            for wave in waves
            for index in services
        ]
        await self._measure_many(f"rolling update of {len(jobs)} endpoints", in_parallel(jobs))
        await self._restore(services)

    async def churn(self) -> None:
        """Endpoint changes all over the cluster at a steady rate."""
        count = int(self._limits.churn_rate * self._limits.churn_seconds)
        touched: set[int] = set()
        began = time.monotonic()
        await self._measure_many(
            f"churn of {count} changes", self._churn(count, began, touched), is_rated=count
        )
        await self._restore(touched)

    async def _churn(self, count: int, began: float, touched: set[int]) -> None:
        numbers = iter(range(count))
        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(self._churn_worker(numbers, began, touched))

    async def _churn_worker(self, numbers: Iterator[int], began: float, touched: set[int]) -> None:
        for number in numbers:
            early = began + number / self._limits.churn_rate - time.monotonic()
            if early > 0:
                await asyncio.sleep(early)
            index = number * 7919 % self.size.services
            touched.add(index)
            first = SPARE + number % 32
            await self._cluster.set_slots(index, (first, *range(1, self.size.endpoints)))

    async def _measure_many(self, name: str, work: Awaitable[None], *, is_rated: int = 0) -> None:
        before = self._proxy.usage().cpu_seconds
        began = time.monotonic()
        await work
        answered = time.monotonic()
        limit = self._limits.cutoff_seconds
        is_calm = await self._settle(limit)
        last = latest_since(self._clock.moments, began)
        if is_rated:
            self.note(
                f"{name}, taken by the API server", is_rated / (answered - began), "changes/s"
            )
        if not is_calm or last is None:
            self.note(f"{name}, lag at the end", limit * 1000, "ms", is_limit=True)
            return
        self.note(f"{name}, lag at the end", max(last - answered, 0.0) * 1000, "ms")
        self.note(f"{name}, CPU", self._proxy.usage().cpu_seconds - before, "CPU s")

    async def _restore(self, services: Iterable[int]) -> None:
        slots = range(self.size.endpoints)
        await in_parallel([partial(self._cluster.set_slots, i, slots) for i in services])
        await self._settle(self._limits.cutoff_seconds)
        await asyncio.sleep(self._limits.pause_seconds)


def _rolled(endpoints: int, wave: int) -> tuple[int, ...]:
    """The slots after so many of a service's endpoints were replaced."""
    return (*range(wave, endpoints), *range(SPARE, SPARE + wave))
