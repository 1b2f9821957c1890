"""The side-by-side benchmark from beginning to end: sizes, rounds, modes, programs, budget.

Sizes are loaded once each, smallest first. In every round each mode meets both programs, in an
order that changes from round to round, each time on a fresh node. When the time budget ends, what
is left is named in the results instead of measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from kpctl.bench import user_mode
from kpctl.bench.cluster import Cluster
from kpctl.bench.commits import CommitClock, RestoreTools, nft_clock, nft_ipv4_clock
from kpctl.bench.conntrack import FlowEffort, measure_flows
from kpctl.bench.control import Limits, Session
from kpctl.bench.feed import Feed
from kpctl.bench.fleet import FleetEffort, extrapolate, measure_fleet
from kpctl.bench.ipvs_guest import MODE as IPVS
from kpctl.bench.machine import describe_machine, revision, wait_until_idle
from kpctl.bench.modes import BALANCE, measure_mode, modes_with_figures
from kpctl.bench.program import RunningProxy, command_of, programs_of_round, proxy_flags
from kpctl.bench.promise import PromiseEffort, check_promises, measure_promise
from kpctl.bench.records import (
    UPSTREAM,
    Measurement,
    ModeFigures,
    Results,
    Run,
    Size,
    growth,
    summarise,
)
from kpctl.bench.scale import SCALE, ScaleEffort, measure_scale
from kpctl.bench.traffic import Effort, measure_traffic
from kpctl.bench.user_mode import IpvsEffort
from kpctl.bench.world import Access, Site, World, require_programs
from kpctl.lab.namespaces import require_root
from kubeproxy.errors import ProxyError, Unsupported

SIDE_BY_SIDE = ("nftables", "iptables")
"""Modes that both programs run here; ipvs needs another kernel."""

MODES = (*SIDE_BY_SIDE, IPVS)

PARTS = ("control", "data", "conntrack", "fleet", "promise", SCALE, "modes", "balance")
"""Everything that can be measured side by side, or of a mode by itself."""

_INTERRUPTED = "interrupted: what follows was not measured"


class Options(msgspec.Struct, frozen=True):
    """What to measure, and for how long."""

    sizes: tuple[Size, ...] = (Size(1000), Size(5000), Size(5000, 50), Size(10000), Size(30000))
    modes: tuple[str, ...] = MODES
    rounds: int = 2
    budget_seconds: float = 7200.0
    upstream_services: int = 1_000_000
    """Upstream is not measured with more services than this."""
    real_services: int = 20_000
    """Larger clusters are served by the small API server: the real one is filled too slowly."""
    churn_size: Size = Size(5000)
    """Churn is measured at this size only."""
    idle_seconds: float = 20.0
    """How long each run waits at most for the machine to have nothing else to do."""
    limits: Limits = Limits()
    effort: Effort = Effort()
    parts: frozenset[str] = frozenset(PARTS)
    """What is measured."""
    with_many: bool = True
    """Rolling update and churn, as part of the control plane?"""
    flows: int = 500_000
    """In the connection tracking table."""
    proxies: int = 50
    """In the fleet."""
    ipvs_sizes: tuple[Size, ...] = (Size(100), Size(1000), Size(2000, 5))
    """For the user-mode kernel, where upstream's time grows quickly."""
    figures_of: tuple[str, ...] = ()
    """Modes whose own benchmarks are run; none named means all."""
    mode_seconds: float = 240.0
    """How long a mode's own benchmark may take."""
    balance_seconds: float = 1800.0
    command: str = ""
    """As it was typed, for the document."""

    def ipvs(self) -> IpvsEffort:
        return IpvsEffort(
            sizes=tuple(sorted(self.ipvs_sizes)),
            rounds=self.rounds,
            upstream_services=self.upstream_services,
            limits=self.limits,
            traffic=self.effort,
            with_many=self.with_many,
            with_data="data" in self.parts,
        )

    def promise(self) -> PromiseEffort:
        return PromiseEffort(
            modes=self.modes,
            rounds=self.rounds,
            rate=self.limits.churn_rate,
            seconds=self.limits.churn_seconds,
            cutoff_seconds=self.limits.cutoff_seconds,
        )


class Progress(msgspec.Struct, frozen=True):
    """Called with what happens now, and with what was just measured."""

    now: Callable[[str], None]
    found: Callable[[Sequence[Measurement]], None]


class Subject(msgspec.Struct, frozen=True, gc=False):
    """What is measured: a mode, a program, and the size of the cluster."""

    mode: str
    program: str
    size: Size

    def __str__(self) -> str:
        return f"{self.mode}, {self.size}, {self.program}"


class Source(Protocol):
    """Objects, and an API server that gives them to a node."""

    @property
    def cluster(self) -> Cluster: ...

    def reached_from(self, site: Site) -> AbstractAsyncContextManager[Access]: ...


Measure = Callable[[Subject, Session, Site], Awaitable[None]]


class Benchmark:
    """One whole run."""

    def __init__(self, options: Options, progress: Progress) -> None:
        self.options = options
        self._progress = progress
        self._deadline = time.monotonic() + options.budget_seconds
        self._given_up: set[Subject] = set()
        self.found: list[Measurement] = []
        self.notes: list[str] = []

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def end(self, reason: str) -> None:
        """Start no further measure."""
        self._deadline = time.monotonic()
        self.notes.append(reason)

    async def run(self, world: World) -> None:
        feed = Feed(world.folder)
        async with world.served() as served:
            for size in sorted(self.options.sizes):
                if self.is_over(f"{size}"):
                    break
                is_large = size.services > self.options.real_services
                if is_large or self._has_churn(size):
                    await feed.load(size)
                if not is_large:
                    await self._load(served.cluster, size)
                for number in range(self.options.rounds):
                    await self._round(world, feed if is_large else served, number, self._measure)
                    if self._has_churn(size):
                        await self._round(world, feed, number, self._churn)

    async def _load(self, cluster: Cluster, size: Size) -> None:
        def loaded(done: int, total: int) -> None:
            self._progress.now(f"loading {size} into the API server: {done} of {total}")

        await cluster.become(size, loaded)

    def _has_churn(self, size: Size) -> bool:
        options = self.options
        return "control" in options.parts and options.with_many and size == options.churn_size

    async def _round(self, world: World, source: Source, number: int, measure: Measure) -> None:
        size = source.cluster.size
        for mode in (mode for mode in SIDE_BY_SIDE if mode in self.options.modes):
            for program in programs_of_round(number):
                who = Subject(mode, program, size)
                what = f"{mode}, {size}, round {number + 1}, {program}"
                if self._is_skipped(who) or self.is_over(what):
                    continue
                self._progress.now(what)
                await self._one(world, source, who, measure)

    def _is_skipped(self, who: Subject) -> bool:
        if who in self._given_up:
            return True
        return who.program == UPSTREAM and who.size.services > self.options.upstream_services

    def is_over(self, what: str) -> bool:
        """Is the time budget used up? If so, note what is not measured."""
        if self.seconds_left > 0:
            return False
        self.notes.append(f"not measured, the time budget was used up: {what}")
        return True

    async def _one(self, world: World, source: Source, who: Subject, measure: Measure) -> None:
        if not wait_until_idle(self.options.idle_seconds):
            self.notes.append(f"the machine was busy with something else: {who}")
        with world.site() as site:
            async with source.reached_from(site) as access:
                with self._started(world, site, who, access.flags) as (clock, proxy):
                    session = Session(
                        source.cluster,
                        clock,
                        proxy,
                        ipv4_clock=nft_ipv4_clock if who.mode == "nftables" else None,
                        uplink=access.uplink,
                        mode=who.mode,
                        program=who.program,
                        limits=self.options.limits,
                    )
                    try:
                        await measure(who, session, site)
                    except ProxyError as error:
                        self.notes.append(f"{who}: {error}")
                        await source.cluster.restore()
                    finally:
                        self.found += session.found
                        self._progress.found(session.found)

    async def _measure(self, who: Subject, session: Session, site: Site) -> None:
        options = self.options
        if not await session.cold_start():
            self._given_up.add(who)
            return
        if "control" in options.parts:
            await session.single_changes()
            if options.with_many:
                await session.rolling_update()
        if "data" in options.parts:
            session.found += measure_traffic(
                site, mode=who.mode, program=who.program, size=who.size, effort=options.effort
            )

    async def _churn(self, who: Subject, session: Session, site: Site) -> None:
        await session.churn()

    @contextlib.contextmanager
    def _started(
        self, world: World, site: Site, who: Subject, flags: Sequence[str]
    ) -> Iterator[tuple[CommitClock, RunningProxy]]:
        """A running proxy and the clock that watches its kernel."""
        with tempfile.TemporaryDirectory(dir=world.folder) as folder:
            environment: dict[str, str] = {}
            if who.mode == "iptables":
                tools = RestoreTools(Path(folder) / "tools")
                clock, environment = tools.clock(), tools.environment()
            else:
                with site.node.inside():
                    clock = nft_clock()
            proxy = RunningProxy(
                (*command_of(who.program, Path(folder)), *flags, *proxy_flags(who.mode)),
                network=site.node,
                environment=environment,
                log=Path(folder) / "log",
            )
            try:
                yield clock, proxy
            finally:
                proxy.stop()
                clock.close()


def run_benchmark(options: Options, progress: Progress) -> Results:
    """Measure everything. An interrupted run returns what it has."""
    require_root()
    # As with Ctrl-C, so that namespaces, processes and files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = datetime.now(UTC)
    benchmark = Benchmark(options, progress)
    if options.parts & {"control", "data"}:
        _side_by_side(benchmark)
    if options.parts & {"control", "promise"} and IPVS in options.modes:
        _measure_ipvs(benchmark, progress)
    if "conntrack" in options.parts and "nftables" in options.modes:
        _measure_flows(benchmark, progress)
    if "fleet" in options.parts and "nftables" in options.modes and not benchmark.is_over("fleet"):
        _measure_fleet(benchmark, progress)
    if "promise" in options.parts and not benchmark.is_over("network programming"):
        _measure_promise(benchmark, progress)
    if SCALE in options.parts and not benchmark.is_over(SCALE):
        _measure_scale(benchmark, progress)
    records = summarise(benchmark.found)
    figures = tuple(_figures(benchmark, progress))
    for part, lines in (
        ("fleet", extrapolate(records)),
        ("promise", check_promises(records)),
    ):
        if lines:
            figures += (ModeFigures(part, f"kpctl bench --part {part}", tuple(lines)),)
    run = Run(
        started_at=started.strftime("%Y-%m-%d %H:%M UTC"),
        minutes=(datetime.now(UTC) - started).total_seconds() / 60,
        revision=revision(),
        command=options.command,
    )
    return Results(
        runs=(run,),
        machine=describe_machine(),
        records=records,
        growth=growth(records),
        notes=tuple(benchmark.notes),
        figures=figures,
    )


def _side_by_side(benchmark: Benchmark) -> None:
    unknown = set(benchmark.options.modes) - set(MODES)
    if unknown:
        raise Unsupported(f"side by side there is {' and '.join(MODES)}, not {sorted(unknown)[0]}")
    require_programs()
    if not set(benchmark.options.modes) & set(SIDE_BY_SIDE):
        return
    with tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as folder:
        world = World(Path(folder))
        with world.inside():
            try:
                asyncio.run(benchmark.run(world))
            except KeyboardInterrupt:
                benchmark.end(_INTERRUPTED)


def _measure_ipvs(benchmark: Benchmark, progress: Progress) -> None:
    """What else is measured of ipvs needs a kernel that has it."""
    options = benchmark.options
    if reason := user_mode.why_not():
        benchmark.notes.append(f"ipvs was not measured: {reason}")
        return
    try:
        with user_mode.user_mode_kernel() as kernel:
            if "control" in options.parts:
                user_mode.measure_ipvs(
                    kernel,
                    options.ipvs(),
                    started=progress.now,
                    found=_taken_by(benchmark, progress),
                    is_over=benchmark.is_over,
                )
            if "promise" in options.parts:
                user_mode.measure_programming(
                    kernel,
                    options.promise(),
                    started=progress.now,
                    found=_taken_by(benchmark, progress),
                    is_over=benchmark.is_over,
                )
    except ProxyError as error:
        benchmark.notes.append(f"ipvs: {error}")


def _measure_flows(benchmark: Benchmark, progress: Progress) -> None:
    options = benchmark.options
    effort = FlowEffort(options.flows, options.rounds, options.limits.cutoff_seconds)
    try:
        measure_flows(
            effort,
            started=progress.now,
            found=_taken_by(benchmark, progress),
            is_over=benchmark.is_over,
        )
    except ProxyError as error:
        benchmark.notes.append(f"a large connection tracking table was not measured: {error}")


def _measure_fleet(benchmark: Benchmark, progress: Progress) -> None:
    effort = FleetEffort(proxies=benchmark.options.proxies, rounds=benchmark.options.rounds)
    try:
        measure_fleet(
            effort,
            started=progress.now,
            found=_taken_by(benchmark, progress),
            is_over=benchmark.is_over,
        )
    except ProxyError as error:
        benchmark.notes.append(f"a fleet was not measured: {error}")
    except KeyboardInterrupt:
        benchmark.end(_INTERRUPTED)


def _measure_promise(benchmark: Benchmark, progress: Progress) -> None:
    try:
        measure_promise(
            benchmark.options.promise(),
            started=progress.now,
            found=_taken_by(benchmark, progress),
            is_over=benchmark.is_over,
            failed=benchmark.notes.append,
        )
    except ProxyError as error:
        benchmark.notes.append(f"network programming was not measured: {error}")
    except KeyboardInterrupt:
        benchmark.end(_INTERRUPTED)


def _measure_scale(benchmark: Benchmark, progress: Progress) -> None:
    try:
        measure_scale(
            ScaleEffort(rounds=benchmark.options.rounds),
            started=progress.now,
            found=_taken_by(benchmark, progress),
            is_over=benchmark.is_over,
            failed=benchmark.notes.append,
        )
    except ProxyError as error:
        benchmark.notes.append(f"scale was not measured: {error}")
    except KeyboardInterrupt:
        benchmark.end(_INTERRUPTED)


def _taken_by(benchmark: Benchmark, progress: Progress) -> Callable[[Sequence[Measurement]], None]:
    """Take what a part has measured."""

    def found(measured: Sequence[Measurement]) -> None:
        benchmark.found += measured
        progress.found(measured)

    return found


def _figures(benchmark: Benchmark, progress: Progress) -> Iterator[ModeFigures]:
    """Run the benchmarks that are programs of their own in the time that is left."""
    options = benchmark.options
    modes = modes_with_figures() if "modes" in options.parts else ()
    wanted = [mode for mode in modes if mode in options.figures_of or not options.figures_of]
    limits = dict.fromkeys(wanted, options.mode_seconds)
    if "balance" in options.parts:
        limits[BALANCE] = options.balance_seconds
    for name, limit in limits.items():
        left = benchmark.seconds_left
        if left <= 0:
            benchmark.notes.append(f"not measured, the time budget was used up: {name} by itself")
            continue
        progress.now(f"the figures of {name} by itself")
        yield measure_mode(name, limit_seconds=min(left, limit))
