"""What the nftables mode takes to keep a table: a lost element repaired, a table taken over.

Everything runs in network namespaces of its own, with the daemon's own engine. Other processes are
real ones: elements are deleted by `nft`.

    python -m kpctl.bench.nftables_upkeep [services [endpoints]]
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from kpctl.bench.nftables import Bench, cluster_ip
from kpctl.bench.records import Size
from kpctl.places.scratch import scratch_namespace
from kubeproxy.modes.nftables.names import SERVICE_POOLS, TABLE_NAME


class Repair(Struct, frozen=True, gc=False):
    """Another process deletes one element: seconds until it is back, and full reads meanwhile."""

    size: Size
    median_seconds: float
    worst_seconds: float
    full_reads: int

    def __str__(self) -> str:
        return (
            f"one element deleted, {self.size}: repaired after {self.median_seconds:.2f} s, worst "
            f"{self.worst_seconds:.2f} s, {self.full_reads} full reads"
        )


class Restart(Struct, frozen=True, gc=False):
    """The first round of a proxy on an empty kernel, and of one that finds all it wants."""

    size: Size
    cold_seconds: float
    restart_seconds: float
    changes: int

    def __str__(self) -> str:
        return (
            f"restart, {self.size}: {self.restart_seconds:.2f} s with {self.changes} changes, "
            f"cold {self.cold_seconds:.2f} s ({self.restart_seconds / self.cold_seconds:.2f} ×)"
        )


async def repair(size: Size, *, times: int = 5) -> Repair:
    """Delete one slot after another, each time of another Service."""
    with scratch_namespace():
        bench = Bench(size)
        await bench.round()
        gc.collect()
        gc.freeze()
        bench.engine.mark_synced()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(bench.engine.run())
            watching = group.create_task(bench.backend.watch(bench.engine.report_drift))
            await asyncio.sleep(0.5)
            reads = bench.listener.full_rounds
            spent = [await _lose(bench, number) for number in range(times)]
            reads = bench.listener.full_rounds - reads
            running.cancel()
            watching.cancel()
        gc.unfreeze()
        await bench.close()
    return Repair(size, median(spent), max(spent), reads)


async def _lose(bench: Bench, number: int) -> float:
    """Delete an element with `nft`. Return the seconds from its end until a round repaired it."""
    address = cluster_ip(number * 7919 % bench.size.services)
    element = f"{{ {address} . tcp . 80 . 0x1 }}"
    repaired = bench.listener.repaired
    command = ("nft", "delete", "element", "ip", TABLE_NAME, SERVICE_POOLS, element)
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0
    started = time.perf_counter()
    while bench.listener.repaired == repaired:
        await asyncio.sleep(0.001)
    return time.perf_counter() - started


async def restart(size: Size) -> Restart:
    """Build the table with one proxy, and take it over with another."""
    with scratch_namespace():
        cold, _ = await _first_round(size)
        again, changes = await _first_round(size)
    return Restart(size, cold, again, changes)


async def _first_round(size: Size) -> tuple[float, int]:
    bench = Bench(size)
    gc.collect()
    started = time.perf_counter()
    report = await bench.engine.round()
    spent = time.perf_counter() - started
    await bench.close()
    assert report.is_success, report.failure_text
    return spent, report.changes


def main(argv: Sequence[str]) -> int:
    numbers = [int(text) for text in argv] or [10_000]
    size = Size(*numbers[:2])
    print(asyncio.run(repair(size)))
    print(asyncio.run(restart(size)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
