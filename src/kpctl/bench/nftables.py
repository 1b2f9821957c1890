"""Times of the nftables mode: cold start, one endpoint, and a churn of endpoints.

Everything runs in network namespaces of its own, with the daemon's own engine; only the API
server is left out. Times that are compared are measured in the same run.

    python -m kpctl.bench.nftables [services [endpoints]]
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

from msgspec import Struct

from kpctl.bench.facts import endpoint, endpoint_slice, node, service
from kpctl.bench.nftables_upstream import PlainService, upstream_table
from kpctl.bench.records import Size
from kpctl.look.quiet import IgnoreRounds
from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.options import Options
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine, EngineTimes
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.sync.report import RoundReport

PORT, TARGET_PORT = 80, 8080


class Spent(Struct, frozen=True, gc=False):
    """Time by the clock and of the CPU."""

    seconds: float
    cpu_seconds: float


class ColdStart(Struct, frozen=True, gc=False):
    """From an empty table to the last commit, and the same for `nft -f` on upstream's shape.

    CPU seconds, the kernel's included, are more reliable than the clock on a shared machine.
    """

    size: Size
    seconds: float
    cpu_seconds: float
    batches: int
    megabytes_sent: float
    resident_megabytes: float
    kernel_seconds: float
    """In commits, which are part of `seconds`."""
    nft: Spent | None = None

    def __str__(self) -> str:
        text = (
            f"cold start, {self.size}: {self.seconds:.2f} s (CPU {self.cpu_seconds:.2f} s) in "
            f"{self.batches} transactions, {self.megabytes_sent:.1f} MB sent, "
            f"{self.resident_megabytes:.0f} MB resident"
        )
        if self.nft is None:
            return text
        return (
            f"{text}; nft -f of upstream's shape {self.nft.seconds:.2f} s "
            f"(CPU {self.nft.cpu_seconds:.2f} s): {self.nft.seconds / self.seconds:.1f} × "
            f"(CPU {self.nft.cpu_seconds / self.cpu_seconds:.1f} ×)"
        )


class OneChange(Struct, frozen=True, gc=False):
    """One endpoint changes: milliseconds from event to commit, and the kernel's part of it."""

    size: Size
    kind: str
    median_ms: float
    worst_ms: float
    kernel_ms: float
    work_ms: float
    """Without the wait for packets under way, which comes before what they may have read goes."""
    bytes_sent: int

    def __str__(self) -> str:
        return (
            f"one endpoint {self.kind}, {self.size}: median {self.median_ms:.2f} ms "
            f"(kernel {self.kernel_ms:.2f} ms, "
            f"without waiting for packets {self.work_ms:.2f} ms), worst {self.worst_ms:.2f} ms, "
            f"{self.bytes_sent} bytes"
        )


class Churn(Struct, frozen=True, gc=False):
    """A steady stream of endpoint changes."""

    size: Size
    rate: int
    seconds: float
    changes: int
    rounds: int
    cpu_percent: float
    median_lag_ms: float
    worst_lag_ms: float

    def __str__(self) -> str:
        return (
            f"churn of {self.changes / self.seconds:.0f}/s for {self.seconds:.0f} s, {self.size}: "
            f"{self.rounds} rounds, CPU {self.cpu_percent:.0f} %, lag median "
            f"{self.median_lag_ms:.0f} ms, worst {self.worst_lag_ms:.0f} ms"
        )


class TimedNftables(Nftables):
    """nf_tables whose commits are timed, and whose waits for packets under way."""

    def __init__(self, family: int) -> None:
        super().__init__(family)
        self.seconds = 0.0
        self.waited = 0.0

    def commit(self, transaction: nft.Transaction) -> tuple[nft.Refusal, ...]:
        started = time.perf_counter()
        try:
            return super().commit(transaction)
        finally:
            self.seconds += time.perf_counter() - started

    def wait_for_readers(self) -> None:
        started = time.perf_counter()
        super().wait_for_readers()
        self.waited += time.perf_counter() - started


class Rounds(IgnoreRounds):
    """Counts rounds that read everything, and rounds that repaired something."""

    def __init__(self) -> None:
        self.full_rounds = 0
        self.repaired = 0

    async def round_finished(self, report: RoundReport, pipeline: Pipeline) -> None:
        self.full_rounds += report.is_full
        self.repaired += bool(report.drifted_items)


class Bench:
    """One proxy over a cluster of a given size, in the current namespace."""

    def __init__(self, size: Size, *, min_seconds: float = 0.0) -> None:
        self.size = size
        self.nftables = TimedNftables(Family.IPV4.af)
        self.backend = NftablesBackend(Family.IPV4, Options(), lambda _: self.nftables)
        self.listener = Rounds()
        self.engine = Engine(
            self.backend,
            node(),
            clock=SystemClock(),
            listener=self.listener,
            times=EngineTimes(min_seconds=min_seconds),
        )
        for index in range(size.services):
            facts = service(_name(index), cluster_ip=cluster_ip(index))
            self.engine.pipeline.store.set_service(facts)
            self.set_endpoints(index, range(size.endpoints))

    def set_endpoints(self, index: int, slots: Sequence[int]) -> None:
        found = [endpoint(_pod_ip(index, slot), TARGET_PORT) for slot in slots]
        facts = endpoint_slice(_name(index), found, slice_name=f"s{index}")
        self.engine.pipeline.store.set_slice(facts)

    async def round(self) -> tuple[int, int]:
        """Run one round. Return the number of transactions and of bytes."""
        report = await self.engine.round()
        if not report.is_success:
            raise RuntimeError(report.failure_text)
        return report.batches, report.bytes_sent

    async def close(self) -> None:
        await self.backend.close()


def _name(index: int) -> str:
    return f"ns-{index % 40:02}/svc-{index:05}"


def _ip(first: int, number: int) -> str:
    return f"{first + (number >> 24)}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def cluster_ip(index: int) -> str:
    return _ip(10, index + 1)


def _pod_ip(index: int, slot: int) -> str:
    return _ip(20, index * 64 + slot)


def upstream_text(size: Size) -> str:
    """Upstream's table for the same services."""
    services = []
    for index in range(size.services):
        namespace, _, name = _name(index).partition("/")
        pods = tuple((_pod_ip(index, slot), TARGET_PORT) for slot in range(size.endpoints))
        services.append(PlainService(namespace, name, cluster_ip(index), PORT, pods))
    return upstream_table(services)


def nft_load(size: Size, *, timeout_seconds: float = 600.0) -> Spent:
    """Measure `nft -f` on upstream's table, in a fresh namespace."""
    text = upstream_text(size)
    with scratch_namespace():
        started, cpu = time.perf_counter(), _child_cpu_seconds()
        subprocess.run(
            ["nft", "-f", "-"], input=text, text=True, check=True, timeout=timeout_seconds
        )
        return Spent(time.perf_counter() - started, _child_cpu_seconds() - cpu)


def _child_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _resident_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def cold_start(size: Size, *, compare: bool = True) -> ColdStart:
    """Measure a first round with all facts and no table: plan, render, compile and commit."""
    nft_spent = nft_load(size) if compare else None
    with scratch_namespace():
        bench = Bench(size)
        gc.collect()
        started, cpu = time.perf_counter(), time.process_time()
        batches, sent = await bench.round()
        spent = Spent(time.perf_counter() - started, time.process_time() - cpu)
        await bench.close()
    return ColdStart(
        size=size,
        seconds=spent.seconds,
        cpu_seconds=spent.cpu_seconds,
        batches=batches,
        megabytes_sent=sent / 1e6,
        resident_megabytes=_resident_megabytes(),
        kernel_seconds=bench.nftables.seconds,
        nft=nft_spent,
    )


async def one_change(size: Size, *, rounds: int = 100) -> list[OneChange]:
    """Measure replacing, adding, and removing an endpoint, each time in another service."""
    slots = list(range(size.endpoints))
    kinds: list[tuple[str, Callable[[int], list[int]]]] = [
        ("replaced", lambda _: [*slots[:-1], 60]),
        ("added", lambda _: [*slots[:-1], 60, 61]),
        ("removed", lambda _: [*slots[:-1], 60]),
    ]
    with scratch_namespace():
        bench = Bench(size)
        await bench.round()
        gc.collect()
        found = [await _measure(bench, kind, after, rounds) for kind, after in kinds]
        await bench.close()
    return found


async def _measure(
    bench: Bench, kind: str, after: Callable[[int], list[int]], rounds: int
) -> OneChange:
    times, kernel, work, sent = list[float](), list[float](), list[float](), 0
    for number in range(min(rounds, bench.size.services)):
        index = number * 7919 % bench.size.services
        bench.nftables.seconds = bench.nftables.waited = 0.0
        started = time.perf_counter()
        bench.set_endpoints(index, after(index))
        _, sent = await bench.round()
        times.append((time.perf_counter() - started) * 1000)
        kernel.append(bench.nftables.seconds * 1000)
        work.append(times[-1] - bench.nftables.waited * 1000)
    return OneChange(
        size=bench.size,
        kind=kind,
        median_ms=median(times),
        worst_ms=max(times),
        kernel_ms=median(kernel),
        work_ms=median(work),
        bytes_sent=sent,
    )


async def churn(
    size: Size, *, rate: int = 1000, seconds: float = 60.0, min_seconds: float = 0.0
) -> Churn:
    """Measure replacing endpoints at a steady rate, with the lag from a change to its commit."""
    with scratch_namespace():
        bench = Bench(size, min_seconds=min_seconds)
        await bench.round()
        gc.collect()
        gc.freeze()
        lags: list[float] = []
        cpu, started, made, rounds = time.process_time(), time.perf_counter(), 0, 0
        while (elapsed := time.perf_counter() - started) < seconds:
            waiting: list[float] = []
            while made < elapsed * rate:
                bench.set_endpoints(made * 7919 % size.services, _turn(made, size.endpoints))
                waiting.append(started + made / rate)
                made += 1
            if waiting:
                await bench.round()
                rounds += 1
                now = time.perf_counter()
                lags += [now - moment for moment in waiting]
            await asyncio.sleep(max(min_seconds, 0.002))
        total = time.perf_counter() - started
        used = (time.process_time() - cpu) / total * 100
        gc.unfreeze()
        await bench.close()
    ordered = sorted(lags)
    return Churn(size, rate, total, made, rounds, used, median(ordered) * 1000, ordered[-1] * 1000)


def _turn(number: int, endpoints: int) -> list[int]:
    """The endpoints after this change: the last one is another pod than before."""
    return [*range(endpoints - 1), 40 + number // 5000 % 16]


async def run(size: Size) -> list[ColdStart | OneChange | Churn]:
    """Measure a cold start and single changes at one size."""
    found: list[ColdStart | OneChange | Churn] = [await cold_start(size)]
    found += await one_change(size)
    return found


def main(argv: Sequence[str]) -> int:
    numbers = [int(text) for text in argv] or [10_000]
    size = Size(*numbers[:2])
    for figure in asyncio.run(run(size)):
        print(figure)
    print(asyncio.run(churn(Size(min(size.services, 5000), size.endpoints))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
