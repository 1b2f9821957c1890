"""What the table "Scale: before and after" needs and no other part measures.

Whole proxies: how long one needs from its start until its first watch is open, what it does and
holds while nothing happens, and the largest cluster. A small API server on the node's loopback
serves both programs, and sees when a watch opens. The rest is measured with the daemon's own
engine, without upstream beside it, in processes of their own (`scale_engine`).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from kpctl.apiserver.small import SeenRequest
from kpctl.bench.commits import nft_clock
from kpctl.bench.control import Limits, Session
from kpctl.bench.feed import Feed
from kpctl.bench.machine import wait_until_idle
from kpctl.bench.program import (
    PROGRAMS,
    RunningProxy,
    command_of,
    private_mb,
    programs_of_round,
    proxy_flags,
    switches_of,
    until_at_rest,
)
from kpctl.bench.records import OURS, UPSTREAM, Measurement, Size
from kpctl.bench.scale_engine import EngineRow, measure_row
from kpctl.bench.world import Access, Site, require_programs
from kubeproxy.errors import ProxyError

SCALE = "scale"
MODE = "nftables"
_LOOK_SECONDS = 0.001


class ScaleEffort(msgspec.Struct, frozen=True, gc=False):
    """Sizes and numbers of samples. An empty tuple or no samples leaves a measure out."""

    rounds: int = 1
    programs: tuple[str, ...] = PROGRAMS
    small: Size = Size(100)
    """Of the cluster for starts and for idling."""
    starts: int = 5
    idle_seconds: float = 30.0
    """How long a proxy is observed while nothing happens."""
    calm_seconds: float = 35.0
    """How long it is left alone before, after it has come to rest: ours looks for what another mode
    may have left 30 s after the first sync, 60 s later, and so on at ever longer intervals."""
    largest: tuple[Size, ...] = (Size(100_000),)
    """Clusters that one proxy of ours is started with."""
    first_rounds: tuple[Size, ...] = (Size(10_000),)
    repairs: tuple[Size, ...] = (Size(10_000), Size(30_000))
    restarts: tuple[Size, ...] = (Size(10_000), Size(30_000), Size(100_000))
    changes: tuple[Size, ...] = (Size(10_000), Size(100_000))
    large_services: tuple[Size, ...] = (Size(1, 5000),)
    iptables_nft: tuple[Size, ...] = (Size(5000),)
    userspace: tuple[Size, ...] = (Size(2, 1),)
    """What that benchmark has."""
    samples: int = 20
    """Of what takes milliseconds."""
    cutoff_seconds: float = 300.0
    row_seconds: float = 900.0
    """How long one process may take."""
    quiet_seconds: float = 20.0
    """How long each measure waits at most for the machine to have nothing else to do."""

    def engine_rows(self) -> Iterator[EngineRow]:
        """What the engine measures by itself, the quick ones first."""
        kinds = (
            ("large Service", self.large_services, self.samples),
            ("facts", self.first_rounds, 1),
            ("first round", self.first_rounds, 1),
            ("iptables-nft", self.iptables_nft, 1),
            ("repair", self.repairs, min(self.samples, 5)),
            ("changes", self.changes, self.samples),
            ("userspace", self.userspace, min(self.samples, 5)),
            ("restart", self.restarts, 1),
        )
        for name, sizes, samples in kinds:
            yield from (EngineRow(name, size, samples) for size in sizes)


Started = Callable[[str], None]
Found = Callable[[Sequence[Measurement]], None]
IsOver = Callable[[str], bool]


class Report(msgspec.Struct, frozen=True):
    """Where progress, results and failures go."""

    started: Started
    found: Found
    is_over: IsOver
    failed: Started


class ProxyCase(msgspec.Struct, frozen=True):
    """One proxy on a node of its own, served by a feed."""

    feed: Feed
    program: str
    effort: ScaleEffort

    @property
    def size(self) -> Size:
        return self.feed.cluster.size

    def row(self, name: str, value: float, unit: str) -> Measurement:
        return Measurement(MODE, name, self.size, self.program, value, unit)

    @asynccontextmanager
    async def node(self) -> AsyncIterator[tuple[Site, Access, Path]]:
        """A fresh network, and a folder for what the program writes."""
        site = Site()
        try:
            site.wire()
            with tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as folder:
                async with self.feed.reached_from(site) as access:
                    yield site, access, Path(folder)
        finally:
            site.close()

    def start(self, site: Site, access: Access, folder: Path) -> RunningProxy:
        command = (*command_of(self.program, folder), *access.flags, *proxy_flags(MODE))
        return RunningProxy(command, network=site.node, environment={}, log=folder / "log")


async def start_up(case: ProxyCase) -> list[Measurement]:
    """What a start takes until Services are watched.

    Upstream watches its Node earlier, before it has looked at the host.
    """
    async with case.node() as (site, access, folder):
        before = len(case.feed.requests)
        proxy = case.start(site, access, folder)
        try:
            watch = await _first_watch(case, proxy, before)
            cpu_seconds = proxy.usage().cpu_seconds
        finally:
            proxy.stop()
    return [
        case.row("start-up until Services are watched", watch.at - proxy.started_at, "s"),
        case.row("start-up until Services are watched, CPU", cpu_seconds, "CPU s"),
    ]


async def _first_watch(case: ProxyCase, proxy: RunningProxy, before: int) -> SeenRequest:
    deadline = time.monotonic() + case.effort.cutoff_seconds
    while time.monotonic() < deadline:
        for request in case.feed.requests[before:]:
            if request.is_watch and request.path.endswith("/services"):
                return request
        proxy.require_alive()
        await asyncio.sleep(_LOOK_SECONDS)
    raise ProxyError("it did not watch Services")


async def idle(case: ProxyCase) -> list[Measurement]:
    """Leave the program alone. How often it woke up, and what memory it has for itself."""
    seconds = case.effort.idle_seconds
    async with case.node() as (site, access, folder):
        proxy = case.start(site, access, folder)
        try:
            await until_at_rest(proxy, case.effort.cutoff_seconds)
            await asyncio.sleep(case.effort.calm_seconds)
            before = switches_of(proxy.pid)
            await asyncio.sleep(seconds)
            after = switches_of(proxy.pid)
            private = private_mb(proxy.pid)
        finally:
            proxy.stop()
    # A thread that has ended since counts nothing; one that is new counts all it did.
    count = sum(value - before.get(thread, 0) for thread, value in after.items())
    return [
        case.row("idle, wake-ups", count * 60 / seconds, "per minute"),
        case.row("idle, private memory", private, "MB"),
    ]


async def cold_start(case: ProxyCase) -> list[Measurement]:
    """A cold start as the control plane's part measures it, with its records."""
    async with case.node() as (site, access, folder):
        with site.node.inside():
            clock = nft_clock()
        proxy = case.start(site, access, folder)
        session = Session(
            case.feed.cluster,
            clock,
            proxy,
            ipv4_clock=None,
            uplink=access.uplink,
            mode=MODE,
            program=case.program,
            limits=Limits(cutoff_seconds=case.effort.cutoff_seconds),
        )
        try:
            await session.cold_start()
        finally:
            proxy.stop()
            clock.close()
    return session.found


Measure = Callable[[ProxyCase], Awaitable[list[Measurement]]]


async def _proxies(effort: ScaleEffort, number: int, report: Report) -> None:
    """Everything that needs whole proxies, in one round."""
    with tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as folder:
        feed = Feed(Path(folder))
        await feed.load(effort.small)
        for program in (p for p in programs_of_round(number) if p in effort.programs):
            case = ProxyCase(feed, program, effort)
            for _ in range(effort.starts):
                await _try("start-up", start_up, case, report)
            if effort.idle_seconds:
                await _try("idle", idle, case, report)
        for size in effort.largest:
            if report.is_over(f"{size} in one proxy"):
                return
            report.started(f"loading {size}")
            await feed.load(size)
            await _try("cold start", cold_start, ProxyCase(feed, OURS, effort), report)


async def _try(what: str, measure: Measure, case: ProxyCase, report: Report) -> None:
    """Measure, or note why not."""
    what = f"{what}, {case.size}, {case.program}"
    if report.is_over(what):
        return
    report.started(what)
    wait_until_idle(case.effort.quiet_seconds)
    try:
        report.found(await measure(case))
    except ProxyError as error:
        report.failed(f"{what}: {error}")


def _engine(effort: ScaleEffort, report: Report) -> None:
    for row in effort.engine_rows():
        if report.is_over(str(row)):
            continue
        report.started(f"the engine by itself: {row}")
        wait_until_idle(effort.quiet_seconds)
        try:
            report.found(measure_row(row, effort.row_seconds))
        except ProxyError as error:
            report.failed(f"{row}: {error}")


def measure_scale(
    effort: ScaleEffort, *, started: Started, found: Found, is_over: IsOver, failed: Started
) -> None:
    """Measure everything. What fails is reported and left out."""
    if UPSTREAM in effort.programs:
        require_programs()
    report = Report(started, found, is_over, failed)
    for number in range(effort.rounds):
        asyncio.run(_proxies(effort, number, report))
        _engine(effort, report)
