"""Runs inside the user-mode kernel: one proxy in ipvs mode, fed by an API server in this process.

IPVS has no events. The kernel's state is polled, often enough to know when it was complete, and
neither program is asked anything. Results are plain values, because they cross to the host, and
None stands for a measure that was cut off.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from kpctl.bench.cluster import SERVICE_PORT, SPARE, SPARE_SERVICES, cluster_ip, in_parallel, pod_ip
from kpctl.bench.control import Limits
from kpctl.bench.feed import Feed
from kpctl.bench.program import RunningProxy, proxy_flags
from kpctl.bench.promise import PAUSES, measure_name
from kpctl.bench.records import Size, percentile
from kpctl.bench.traffic import Effort, measure_traffic
from kpctl.bench.workload import churn, rolled_services, rolling_update
from kpctl.bench.world import NODE_ADDRESS, Site, ip
from kpctl.places.network import PrivateNetwork
from kubeproxy.errors import Unsupported
from kubeproxy.kernel.ipset.table import Ipset
from kubeproxy.kernel.ipvs.table import Ipvs
from kubeproxy.kernel.modules import load_module

MODE = "ipvs"
_CLUSTER_IP_SET = "KUBE-CLUSTER-IP"
_HEAD_LINES = 3
_LOOK_SECONDS = 0.002
_SAMPLED_EVERY = 16
_PAUSE_SECONDS = 1.5
"""Between changes: longer than the minSyncPeriod of both programs."""


class Task(msgspec.Struct, frozen=True):
    """What to measure of one program."""

    program: str
    command: tuple[str, ...]
    size: Size
    limits: Limits = Limits()
    traffic: Effort = Effort()
    with_many: bool = True
    with_data: bool = True
    pause: str = "default"


class Row(msgspec.Struct, frozen=True):
    """One measured value; None is more than the limit."""

    program: str
    name: str
    value: float | None
    unit: str


def measure(task: Mapping[str, object]) -> object:
    """Measure one program. Called by the host."""
    return msgspec.to_builtins(asyncio.run(_measure(msgspec.convert(task, Task))))


def measure_programming(task: Mapping[str, object]) -> object:
    """Measure how long changes take under churn. Called by the host."""
    return msgspec.to_builtins(asyncio.run(_measure_programming(msgspec.convert(task, Task))))


async def _measure(task: Task) -> list[Row]:
    async with _started(task) as (session, site):
        if await session.control() and task.with_data:
            session.data(site)
        return session.rows


async def _measure_programming(task: Task) -> list[Row]:
    async with _started(task) as (session, _):
        await session.programming()
        return session.rows


@asynccontextmanager
async def _started(task: Task) -> AsyncIterator[tuple[Session, Site]]:
    """A proxy on a node of its own, fed by an API server in this process."""
    if reason := await load_module("ip_vs"):
        raise Unsupported(f"IPVS cannot be loaded here: {reason}")
    feed, site = Feed(Path("/run")), Site()
    try:
        site.wire()
        with site.node.inside():
            ip(f"address add {NODE_ADDRESS}/32 dev lo")
        await feed.load(task.size)
        async with feed.reached_from(site) as access:
            command = (*task.command, *access.flags, *proxy_flags(MODE), *PAUSES[task.pause])
            log = Path("/run/bench.log")
            proxy = RunningProxy(command, network=site.node, environment={}, log=log)
            try:
                yield Session(task, feed, proxy), site
            finally:
                proxy.stop()
    finally:
        site.close()


class Kernel:
    """Reads what IPVS in a node's namespace holds."""

    def __init__(self, network: PrivateNetwork) -> None:
        self._network = network
        with network.inside():
            self._table = Ipvs()

    def close(self) -> None:
        self._table.close()

    def endpoints(self, index: int) -> set[str]:
        """The endpoints to which new connections to a service go."""
        found = self._table.destinations(socket.IPPROTO_TCP, cluster_ip(index), SERVICE_PORT)
        return {destination.address for destination in found if destination.weight}

    def counts(self) -> tuple[int, int]:
        """Virtual and real servers in all, and cluster IPs in their set."""
        with self._network.inside():
            lines = len(Path("/proc/net/ip_vs").read_bytes().splitlines()) - _HEAD_LINES
            with Ipset() as sets:
                found = sets.find(_CLUSTER_IP_SET)
        return lines, len(found.entries) if found else 0


class Session:
    """One program, started once, and what was measured of it."""

    def __init__(self, task: Task, feed: Feed, proxy: RunningProxy) -> None:
        self.rows: list[Row] = []
        self._task = task
        self._size = task.size
        self._limits = task.limits
        self._cluster = feed.cluster
        self._proxy = proxy
        self._kernel = Kernel(proxy.network)

    def _note(self, name: str, value: float | None, unit: str) -> None:
        self.rows.append(Row(self._task.program, name, value, unit))

    async def control(self) -> bool:
        """Measure everything but packets. Return False if the cold start was cut off."""
        try:
            if not await self._cold_start():
                return False
            for sample in range(self._limits.samples):
                if not await self._changes(sample):
                    break
            if self._task.with_many:
                await self._rolling_update()
                await self._churn()
            return True
        finally:
            self._kernel.close()

    def data(self, site: Site) -> None:
        task = self._task
        found = measure_traffic(
            site, mode=MODE, program=task.program, size=task.size, effort=task.traffic
        )
        self.rows += [Row(m.program, m.name, m.value, m.unit) for m in found]

    async def _cold_start(self) -> bool:
        done = await self._until(self._is_complete)
        self._note("cold start", None if done is None else done - self._proxy.started_at, "s")
        if done is None:
            return False
        await asyncio.sleep(2 * _PAUSE_SECONDS)
        usage = self._proxy.usage()
        self._note("cold start, CPU", usage.cpu_seconds, "CPU s")
        self._note("memory after cold start", usage.resident_mb, "MB")
        self._note("memory, peak", usage.peak_mb, "MB")
        return True

    def _is_complete(self) -> bool:
        """Does the kernel have all virtual servers, real servers and set entries?

        Listing all of them is expensive, so three services must be there first.
        """
        services, endpoints = self._size.services, self._size.endpoints
        if not all(self._holds(index) for index in (0, services // 2, services - 1)):
            return False
        servers, addresses = self._kernel.counts()
        return servers >= services * (1 + endpoints) and addresses >= services

    def _holds(self, index: int) -> bool:
        """Does the kernel have exactly the endpoints that the service has?"""
        wanted = {pod_ip(index, slot) for slot in self._cluster.slots[index]}
        return self._kernel.endpoints(index) == wanted

    async def _changes(self, sample: int) -> bool:
        """Make one change of each kind and undo them. Return False if one was cut off."""
        index = self._size.services // 2 + sample
        added = self._size.services + sample % SPARE_SERVICES
        kept = range(1, self._size.endpoints)
        steps: Sequence[tuple[str, Callable[[], Awaitable[None]], int]] = (
            ("endpoint replaced", partial(self._cluster.set_slots, index, (SPARE, *kept)), index),
            ("endpoint added", partial(self._cluster.set_slots, index, (SPARE, 0, *kept)), index),
            ("endpoint removed", partial(self._cluster.set_slots, index, (0, *kept)), index),
            ("Service added", partial(self._cluster.add_service, added), added),
        )
        for name, change, where in steps:
            await asyncio.sleep(_PAUSE_SECONDS)
            changed = time.monotonic()
            await change()
            done = await self._until(partial(self._holds, where))
            self._note(name, None if done is None else (done - changed) * 1000, "ms")
            if done is None:
                return False
        await self._cluster.remove_service(added)
        return await self._until(lambda: not self._kernel.endpoints(added)) is not None

    async def _rolling_update(self) -> None:
        jobs, services = rolling_update(self._cluster), rolled_services(self._cluster)
        before = self._proxy.usage().cpu_seconds
        await in_parallel(jobs)
        await self._catch_up(f"rolling update of {len(jobs)} endpoints", services, before)

    async def _churn(self) -> None:
        limits, before = self._limits, self._proxy.usage().cpu_seconds
        touched = await churn(self._cluster, rate=limits.churn_rate, seconds=limits.churn_seconds)
        name = f"churn of {limits.churn_rate} changes/s"
        await self._catch_up(name, set(touched), before)
        self._note(f"{name}, served", len(touched) / limits.churn_seconds, "changes/s")

    async def _catch_up(self, name: str, services: Iterable[int], cpu_before: float) -> None:
        """Measure until the kernel has all changes made so far, then undo them."""
        made, waiting = time.monotonic(), list(services)
        changed = tuple(waiting)

        def has_all() -> bool:
            while waiting and self._holds(waiting[-1]):
                waiting.pop()
            return not waiting

        done = await self._until(has_all)
        self._note(f"{name}, lag at the end", None if done is None else (done - made) * 1000, "ms")
        if done is not None:
            self._note(f"{name}, CPU", self._proxy.usage().cpu_seconds - cpu_before, "CPU s")
        await self._cluster.reset(changed)
        await self._until(lambda: all(map(self._holds, changed)))

    async def programming(self) -> None:
        """Measure the latency of some changes among many, from the change to the kernel."""
        limits, name = self._limits, measure_name(self._limits.churn_rate, self._task.pause)
        try:
            if await self._until(self._is_complete) is None:
                self._note(f"{name}, p99", None, "ms")
                return
            await asyncio.sleep(2 * _PAUSE_SECONDS)
            before = self._proxy.usage().cpu_seconds
            sample = _Sample(self._kernel)
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(sample.watch())
                touched = await churn(
                    self._cluster,
                    rate=limits.churn_rate,
                    seconds=limits.churn_seconds,
                    changing=sample.add,
                )
                await self._until(lambda: not sample.waiting)
                watching.cancel()
        finally:
            self._kernel.close()
        for percent in (50, 99):
            values = [*sample.found, *(limits.cutoff_seconds for _ in sample.waiting)]
            value = percentile(values, percent)
            is_limit = value >= limits.cutoff_seconds
            self._note(f"{name}, p{percent}", None if is_limit else value * 1000, "ms")
        self._note(f"{name}, CPU", self._proxy.usage().cpu_seconds - before, "CPU s")
        self._note(f"{name}, served", len(touched) / limits.churn_seconds, "changes/s")

    async def _until(self, is_true: Callable[[], bool]) -> float | None:
        """Poll until it is true. Return that moment, or None at the limit.

        Polling may be expensive and there is but one processor, so it gets a third of the time at
        most. The API server runs in between.
        """
        deadline = time.monotonic() + self._limits.cutoff_seconds
        while (began := time.monotonic()) < deadline:
            self._proxy.require_alive()
            if is_true():
                return time.monotonic()
            await asyncio.sleep(max(_LOOK_SECONDS, 2 * (time.monotonic() - began)))
        return None


class _Sample:
    """Every so many changes of a churn are observed: the kernel is asked for those alone."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._count = itertools.count()
        self.waiting: dict[int, tuple[str, float]] = {}
        """By service: the address that is new to it, and since when."""
        self.found: list[float] = []

    def add(self, index: int, slot: int) -> None:
        if next(self._count) % _SAMPLED_EVERY == 0:
            self.waiting.setdefault(index, (pod_ip(index, slot), time.monotonic()))

    async def watch(self) -> None:
        """Look until cancelled, for a third of the time at most."""
        while True:
            began = time.monotonic()
            for index, (address, since) in list(self.waiting.items()):
                if address in self._kernel.endpoints(index):
                    self.found.append(time.monotonic() - since)
                    del self.waiting[index]
            await asyncio.sleep(max(_LOOK_SECONDS, 2 * (time.monotonic() - began)))
