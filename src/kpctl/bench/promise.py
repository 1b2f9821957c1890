"""Network programming latency under a thousand changes a second, seen from outside.

Each change gives a Service an endpoint whose address was never used before. The latency of a change
is from the moment at which the API server has it to the moment at which the kernel was given that
address (`programmed`). Measured with the default `minSyncPeriod` and with none. A small API server
serves both programs: the real one does not take so many changes beside a proxy on two processors.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from kpctl.bench.cluster import pod_ip
from kpctl.bench.commits import RestoreTools
from kpctl.bench.feed import Feed
from kpctl.bench.machine import wait_until_idle
from kpctl.bench.program import (
    PROGRAMS,
    RunningProxy,
    command_of,
    programs_of_round,
    proxy_flags,
    until_at_rest,
)
from kpctl.bench.programmed import NftObserver, Observer, RestoreObserver
from kpctl.bench.records import OURS, UPSTREAM, Measurement, Record, Size, percentile
from kpctl.bench.workload import churn
from kpctl.bench.world import Site, require_programs
from kubeproxy.errors import ProxyError

MODES = ("nftables", "iptables")
PAUSES = {
    "default": (),
    "0": ("--iptables-min-sync-period=0s", "--ipvs-min-sync-period=0s"),
}
"""Flags by minSyncPeriod."""
LIMITS_MS = {"default": 1000.0, "0": 50.0}
"""What is promised for the 99th percentile."""


class PromiseEffort(msgspec.Struct, frozen=True, gc=False):
    """What is measured, and how long to wait for anything."""

    size: Size = Size(10000)
    rate: int = 1000
    seconds: float = 10.0
    rounds: int = 1
    modes: tuple[str, ...] = MODES
    programs: tuple[str, ...] = PROGRAMS
    ipvs_sizes: tuple[Size, ...] = (Size(100), Size(5000))
    """In the user-mode kernel (`user_mode`), where each Service is changed once."""
    ipvs_upstream: int = 100
    """Upstream is not measured there with more Services than this."""
    cutoff_seconds: float = 60.0
    start_seconds: float = 300.0
    idle_seconds: float = 20.0
    """How long each run waits at most for the machine to have nothing else to do."""


class Case(msgspec.Struct, frozen=True, gc=False):
    """One run."""

    mode: str
    program: str
    pause: str

    def __str__(self) -> str:
        return f"{self.mode}, minSyncPeriod {self.pause}, {self.program}"


def cases(effort: PromiseEffort, modes: Sequence[str] = MODES) -> Iterator[Case]:
    """All runs in these modes, both programs in turn."""
    for number in range(effort.rounds):
        for mode in (mode for mode in modes if mode in effort.modes):
            for pause in PAUSES:
                for program in programs_of_round(number):
                    if program in effort.programs:
                        yield Case(mode, program, pause)


def measure_name(rate: int, pause: str) -> str:
    return f"network programming at {rate} changes/s, minSyncPeriod {pause}"


_P99 = re.compile(r"network programming at \d+ changes/s, minSyncPeriod (?P<pause>\w+), p99")


@contextmanager
def _started(
    case: Case, site: Site, folder: Path, flags: Sequence[str]
) -> Iterator[tuple[RunningProxy, Observer]]:
    environment: dict[str, str] = {}
    observer: Observer = NftObserver(folder)
    if case.mode == "iptables":
        tools = RestoreTools(folder / "tools", keeps_inputs=True)
        observer, environment = RestoreObserver(tools), tools.environment()
    command = (*command_of(case.program, folder), *flags, *proxy_flags(case.mode))
    proxy = RunningProxy(
        (*command, *PAUSES[case.pause]),
        network=site.node,
        environment=environment,
        log=folder / "log",
    )
    try:
        yield proxy, observer
    finally:
        proxy.stop()


def latencies(
    sent: dict[str, float], programmed: dict[str, float], limit_seconds: float
) -> list[float]:
    """Of every change; one that was never programmed counts with the limit."""
    never = float("inf")
    return [
        min(max(programmed.get(address, never) - moment, 0.0), limit_seconds)
        for address, moment in sent.items()
    ]


async def _one(case: Case, feed: Feed, effort: PromiseEffort) -> list[Measurement]:
    rows: list[Measurement] = []
    name = measure_name(effort.rate, case.pause)

    def note(what: str, value: float, unit: str, *, is_limit: bool = False) -> None:
        rows.append(
            Measurement(
                case.mode, f"{name}, {what}", effort.size, case.program, value, unit, is_limit
            )
        )

    sent: dict[str, float] = {}

    def changing(index: int, slot: int) -> None:
        # A long churn comes back to the addresses it began with: their first time counts.
        sent.setdefault(pod_ip(index, slot), time.monotonic())

    site = Site()
    try:
        site.wire()
        async with feed.reached_from(site) as access:
            with (
                tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as folder,
                _started(case, site, Path(folder), access.flags) as (proxy, observer),
            ):
                await until_at_rest(proxy, effort.start_seconds)
                with observer.observing(site.node):
                    before = proxy.usage().cpu_seconds
                    await churn(
                        feed.cluster, rate=effort.rate, seconds=effort.seconds, changing=changing
                    )
                    # What is not programmed by the limit counts with the limit.
                    with suppress(ProxyError):
                        await until_at_rest(proxy, effort.cutoff_seconds)
                found = latencies(sent, observer.first_times(), effort.cutoff_seconds)
                for percent in (50, 99):
                    value = percentile(found, percent)
                    is_limit = value >= effort.cutoff_seconds
                    note(f"p{percent}", value * 1000, "ms", is_limit=is_limit)
                note("CPU", proxy.usage().cpu_seconds - before, "CPU s")
                note("served", len(sent) / effort.seconds, "changes/s")
    finally:
        site.close()
    return rows


Started = Callable[[str], None]
Found = Callable[[Sequence[Measurement]], None]
IsOver = Callable[[str], bool]


async def _measure(
    effort: PromiseEffort, *, started: Started, found: Found, is_over: IsOver, failed: Started
) -> None:
    with tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as folder:
        feed = Feed(Path(folder))
        started(f"loading {effort.size}")
        await feed.load(effort.size)
        for case in cases(effort):
            if is_over(f"promise, {case}"):
                return
            started(f"promise, {case}")
            wait_until_idle(effort.idle_seconds)
            try:
                found(await _one(case, feed, effort))
            except ProxyError as error:
                failed(f"promise, {case}: {error}")
            await feed.cluster.restore()


def measure_promise(
    effort: PromiseEffort, *, started: Started, found: Found, is_over: IsOver, failed: Started
) -> None:
    """Measure both programs in each mode, one after the other."""
    if UPSTREAM in effort.programs:
        require_programs()
    asyncio.run(_measure(effort, started=started, found=found, is_over=is_over, failed=failed))


def check_promises(records: Iterable[Record]) -> list[str]:
    """What was promised and what was found, in sentences."""
    found = ((record, _P99.fullmatch(record.name)) for record in records)
    return [_sentence(record, LIMITS_MS[match["pause"]]) for record, match in found if match]


def _sentence(record: Record, limit_ms: float) -> str:
    ours = record.ours
    words = "not measured"
    if ours is not None:
        is_met = ours <= limit_ms and OURS not in record.more_than
        words = f"{ours:.0f} ms ({'within' if is_met else 'BEYOND'} {limit_ms:.0f} ms)"
    more = "more than " if UPSTREAM in record.more_than else ""
    other = "" if record.upstream is None else f", upstream {more}{record.upstream:.0f} ms"
    return f"{record.mode} at {record.size}, {record.name}: ours {words}{other}"
