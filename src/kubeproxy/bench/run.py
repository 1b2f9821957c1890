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
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kubeproxy.bench import user_mode
from kubeproxy.bench.cluster import Cluster
from kubeproxy.bench.commits import CommitClock, RestoreTools, nft_clock, nft_ipv4_clock
from kubeproxy.bench.control import Limits, Session
from kubeproxy.bench.machine import describe_machine, wait_until_idle
from kubeproxy.bench.modes import measure_mode, modes_with_figures
from kubeproxy.bench.program import RunningProxy
from kubeproxy.bench.records import (
    OURS,
    UPSTREAM,
    Measurement,
    ModeFigures,
    Results,
    Size,
    growth,
    summarise,
)
from kubeproxy.bench.traffic import Effort, measure_traffic
from kubeproxy.bench.user_mode import IpvsEffort
from kubeproxy.bench.world import Site, World, proxy_flags, require_programs
from kubeproxy.errors import ProxyError, Unsupported
from kubeproxy.lab.namespaces import require_root

SIDE_BY_SIDE = ("nftables", "iptables")
"""Modes that both programs run here; ipvs needs another kernel."""

MODES = (*SIDE_BY_SIDE, user_mode.MODE)


class Options(msgspec.Struct, frozen=True):
    """What to measure, and for how long."""

    sizes: tuple[Size, ...] = (Size(1000), Size(5000), Size(5000, 50), Size(10000), Size(30000))
    modes: tuple[str, ...] = MODES
    rounds: int = 2
    budget_seconds: float = 1800.0
    upstream_services: int = 1_000_000
    """Upstream is not asked about more services than this."""
    churn_services: int = 5000
    """Churn is measured at this number of services only."""
    idle_seconds: float = 20.0
    """How long each run waits at most for the machine to have nothing else to do."""
    limits: Limits = Limits()
    effort: Effort = Effort()
    with_control: bool = True
    with_many: bool = True
    """Rolling update and churn, as part of the control plane?"""
    with_data: bool = True
    with_modes: bool = True
    ipvs: IpvsEffort = IpvsEffort()
    figures_of: tuple[str, ...] = ()
    """Modes whose own benchmarks are run; none named means all."""
    mode_seconds: float = 240.0
    """How long a mode's own benchmark may take."""

    def words(self) -> dict[str, str]:
        """For the document."""
        return {
            "sizes (services × endpoints)": ", ".join(map(str, self.sizes)),
            "modes": ", ".join(self.modes),
            "rounds": str(self.rounds),
            "cut-off": f"{self.limits.cutoff_seconds:g} s",
            "time budget": f"{self.budget_seconds / 60:g} min",
        }


class Told(msgspec.Struct, frozen=True):
    """Who hears about progress: what happens now, and what was just found."""

    now: Callable[[str], None]
    found: Callable[[Sequence[Measurement]], None]


class Benchmark:
    """One whole run."""

    def __init__(self, options: Options, told: Told) -> None:
        self.options = options
        self._told = told
        self._deadline = time.monotonic() + options.budget_seconds
        self._given_up: set[tuple[str, str, Size]] = set()
        self.found: list[Measurement] = []
        self.notes: list[str] = []

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def end(self, reason: str) -> None:
        """Begin nothing more."""
        self._deadline = time.monotonic()
        self.notes.append(reason)

    async def run(self, world: World) -> None:
        async with world.cluster() as cluster:
            for size in sorted(self.options.sizes):
                if self._is_over(f"{size}"):
                    break
                await self._load(cluster, size)
                for number in range(self.options.rounds):
                    await self._round(world, cluster, number)

    async def _load(self, cluster: Cluster, size: Size) -> None:
        began = time.monotonic()

        def told(done: int, total: int) -> None:
            self._told.now(f"loading {size} into the API server: {done} of {total}")

        await cluster.become(size, told)
        self._told.now(f"{size} loaded in {time.monotonic() - began:.1f} s")

    async def _round(self, world: World, cluster: Cluster, number: int) -> None:
        programs = (OURS, UPSTREAM) if number % 2 == 0 else (UPSTREAM, OURS)
        for mode in (mode for mode in SIDE_BY_SIDE if mode in self.options.modes):
            for program in programs:
                what = f"{mode}, {cluster.size}, round {number + 1}, {program}"
                if self._is_skipped(mode, program, cluster.size) or self._is_over(what):
                    continue
                self._told.now(what)
                await self._one(world, cluster, mode=mode, program=program, number=number)

    def _is_skipped(self, mode: str, program: str, size: Size) -> bool:
        if (mode, program, size) in self._given_up:
            return True
        return program == UPSTREAM and size.services > self.options.upstream_services

    def _is_over(self, what: str) -> bool:
        if self.seconds_left > 0:
            return False
        self.notes.append(f"not measured, the time budget was used up: {what}")
        return True

    async def _one(
        self, world: World, cluster: Cluster, *, mode: str, program: str, number: int
    ) -> None:
        if not wait_until_idle(self.options.idle_seconds):
            self.notes.append(
                f"the machine was busy with something else: {mode}, {cluster.size}, {program}"
            )
        with world.site() as site, self._started(world, site, mode, program) as (clock, proxy):
            session = Session(
                cluster,
                clock,
                proxy,
                ipv4_clock=nft_ipv4_clock if mode == "nftables" else None,
                mode=mode,
                program=program,
                limits=self.options.limits,
            )
            try:
                await self._measure(session, site, mode=mode, program=program, number=number)
            except ProxyError as error:
                self.notes.append(f"{mode}, {cluster.size}, {program}: {error}")
                await cluster.restore()
            finally:
                self.found += session.found
                self._told.found(session.found)

    async def _measure(
        self, session: Session, site: Site, *, mode: str, program: str, number: int
    ) -> None:
        options, size = self.options, session.size
        if not await session.cold_start():
            self._given_up.add((mode, program, size))
            return
        if options.with_control:
            await session.single_changes()
        # The rest is many events in itself; once for each program is enough.
        if options.with_control and options.with_many and number == 0:
            await session.rolling_update()
            if size == Size(options.churn_services):
                await session.churn()
        if options.with_data and (number == 0 or not options.with_control):
            session.found += measure_traffic(
                site, mode=mode, program=program, size=size, effort=options.effort
            )

    @contextlib.contextmanager
    def _started(
        self, world: World, site: Site, mode: str, program: str
    ) -> Iterator[tuple[CommitClock, RunningProxy]]:
        """A running proxy and the clock that watches its kernel."""
        with tempfile.TemporaryDirectory(dir=world.folder) as folder:
            environment: dict[str, str] = {}
            if mode == "iptables":
                tools = RestoreTools(Path(folder) / "tools")
                clock, environment = tools.clock(), tools.environment()
            else:
                with site.node.inside():
                    clock = nft_clock()
            proxy = RunningProxy(
                program,
                proxy_flags(mode, world.kubeconfig()),
                network=site.node,
                environment=environment,
                log=Path(folder) / "log",
            )
            try:
                yield clock, proxy
            finally:
                proxy.stop()
                clock.close()


def run_benchmark(options: Options, told: Told) -> Results:
    """Measure; interrupted, it returns what it has."""
    require_root()
    # Whoever stops us wants the namespaces, processes and files gone, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    benchmark = Benchmark(options, told)
    if options.with_control or options.with_data:
        _side_by_side(benchmark)
    if options.with_control and user_mode.MODE in options.modes:
        _measure_ipvs(benchmark, told)
    records = summarise(benchmark.found)
    figures = tuple(_mode_figures(benchmark, told)) if options.with_modes else ()
    return Results(
        started_at=started,
        machine=describe_machine(),
        options=options.words(),
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
                benchmark.end("interrupted: what follows was not measured")


def _measure_ipvs(benchmark: Benchmark, told: Told) -> None:
    if reason := user_mode.why_not():
        benchmark.notes.append(f"ipvs was not measured: {reason}")
        return

    def found(measured: Sequence[Measurement]) -> None:
        benchmark.found += measured
        told.found(measured)

    try:
        user_mode.measure_ipvs(
            benchmark.options.ipvs,
            told=told.now,
            found=found,
            seconds_left=lambda: benchmark.seconds_left,
        )
    except ProxyError as error:
        benchmark.notes.append(f"ipvs: {error}")


def _mode_figures(benchmark: Benchmark, told: Told) -> Iterator[ModeFigures]:
    """What is left of the time goes to the modes' own benchmarks."""
    wanted = benchmark.options.figures_of
    for mode in (mode for mode in modes_with_figures() if mode in wanted or not wanted):
        left = benchmark.seconds_left
        if left <= 0:
            benchmark.notes.append(f"not measured, the time budget was used up: {mode} by itself")
            continue
        told.now(f"the figures of {mode} by itself")
        yield measure_mode(mode, limit_seconds=min(left, benchmark.options.mode_seconds))
