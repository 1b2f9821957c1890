"""Measure the iptables mode against the tools themselves and against upstream's way.

Every figure is a ratio of two times measured in turn, in the same run, on the same tables, in
network namespaces of its own. Times are CPU times of this process and the tools together, which
on a quiet machine is the time it takes, and on a busy one still means something. "Upstream's way"
is what its partial sync hands to the tools: a restore that rewrites all top-level chains, and
before it a listing of the nat table, which a large cluster gets at most once in a sync period.

    python -m kpctl.bench.iptables [services [endpoints]]
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import cast

from msgspec import Struct

from kpctl.bench.facts import endpoint, endpoint_slice, node, service
from kpctl.bench.records import Size
from kpctl.look.quiet import IgnoreRounds
from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import Drifted
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.exec import run_tool
from kubeproxy.modes.base import Owner
from kubeproxy.modes.iptables.items import Fragment
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.netfilter.items import ChainGroup
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine, EngineTimes

ROUNDS = 5
_LEAST = "*nat\n:KUBE-BENCH - [0:0]\n-A KUBE-BENCH -j RETURN\nCOMMIT\n"


class Comparison(Struct, frozen=True, gc=False):
    """Two times for the same outcome, ours and another; a ratio below 1 means that ours is less."""

    name: str
    size: Size
    ours_seconds: float
    other_seconds: float
    other: str
    limit: float
    """What the ratio must not exceed."""
    is_cut: bool = False
    """The other was stopped, so it takes more than this."""

    @property
    def ratio(self) -> float:
        return self.ours_seconds / self.other_seconds

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.limit

    def __str__(self) -> str:
        more = "more than " if self.is_cut else ""
        return (
            f"{self.name} at {self.size}: ours {self.ours_seconds:.3f} s, {self.other} "
            f"{more}{self.other_seconds:.3f} s, ratio {self.ratio:.3f} "
            f"({'within' if self.is_met else 'BEYOND'} {self.limit:g})"
        )


class Bench:
    """One proxy over a cluster of a given size."""

    def __init__(self, size: Size, variant: str) -> None:
        self.size = size
        self.variant = variant
        options = Options(tools=ToolOptions(variant=variant))
        self.backend = IptablesBackend(Family.IPV4, options)
        self.engine = Engine(
            self.backend,
            node(large=True),
            clock=SystemClock(),
            listener=IgnoreRounds(),
            times=EngineTimes(min_seconds=0),
        )
        for index in range(size.services):
            self.engine.pipeline.store.set_service(
                service(_name(index), cluster_ip=f"10.96.{index >> 8}.{index & 255}")
            )
            self.set_endpoints(index, range(size.endpoints))

    def set_endpoints(self, index: int, slots: Sequence[int]) -> None:
        found = [endpoint(_address(index, slot)) for slot in slots]
        facts = endpoint_slice(_name(index), found, slice_name=f"s{index}")
        self.engine.pipeline.store.set_slice(facts)

    def fragments(self) -> Mapping[Owner, Fragment]:
        # The pipeline knows no mode; the fragments are those that our backend rendered.
        return cast("Mapping[Owner, Fragment]", self.engine.pipeline.fragments())

    def full_text(self) -> str:
        """Upstream's restore input for everything."""
        return self.backend.describe(self.fragments())

    def partial_text(self, index: int) -> str:
        """Upstream's restore input when one service changed: top-level chains, its own chains."""
        changed = _name(index)
        shown = {
            owner: fragment if str(owner.service) == changed else _without_chains(fragment)
            for owner, fragment in self.fragments().items()
        }
        return self.backend.describe(shown)

    async def round(self) -> None:
        report = await self.engine.round()
        if not report.is_success:
            raise RuntimeError(report.failure_text)


def _name(index: int) -> str:
    return f"ns-{index % 40:02}/svc-{index:05}"


def _address(index: int, slot: int) -> str:
    number = index * 64 + slot
    return f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def _without_chains(fragment: Fragment) -> Fragment:
    """A fragment without the service port's own chains: its rules in the top-level chains."""
    return {item: value for item, value in fragment.items() if not isinstance(item, ChainGroup)}


async def _seconds(work: Callable[[], Awaitable[object]]) -> float:
    """CPU time spent, here and in finished children, kernel included."""
    before = _cpu_seconds()
    await work()
    return _cpu_seconds() - before


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


async def _restore(variant: str, text: str, timeout_seconds: float = 600.0) -> None:
    argv = [f"iptables-{variant}-restore", "-w", "5", "--noflush", "--counters"]
    done = await run_tool(argv, stdin=text.encode(), timeout_seconds=timeout_seconds)
    if not done.is_success:
        raise RuntimeError(done.output)


@contextlib.asynccontextmanager
async def _started(bench: Bench) -> AsyncIterator[None]:
    """Run the block in a namespace of its own, prepared as at start-up."""
    with scratch_namespace():
        await bench.backend.start(bench.engine.pipeline.node)
        yield


async def full_sync(size: Size, *, variant: str = "legacy", rounds: int = 3) -> Comparison:
    """A whole first round in empty tables, against feeding upstream's text to the tool.

    The round lists, plans, renders and restores.
    """
    ours, theirs = [], []
    for _ in range(rounds):
        bench = Bench(size, variant)
        async with _started(bench):
            ours.append(await _seconds(bench.round))
        text = bench.full_text()
        async with _started(bench):
            theirs.append(await _seconds(lambda: _restore(variant, text)))  # noqa: B023 - run here
    return Comparison(
        f"full sync ({variant})", size, median(ours), median(theirs), "plain restore", 1.1
    )


async def full_check(size: Size, *, variant: str = "legacy") -> Comparison:
    """A full sync that finds everything in place, against writing it all again."""
    bench = Bench(size, variant)
    async with _started(bench):
        await bench.round()

        async def check() -> None:
            bench.engine.request(full=True)
            await bench.round()

        ours = await _seconds(check)
        theirs = await _seconds(lambda: _restore(variant, bench.full_text()))
    return Comparison(f"full check ({variant})", size, ours, theirs, "plain restore", 1.5)


async def one_endpoint(size: Size, *, variant: str, rounds: int = ROUNDS) -> list[Comparison]:
    """One endpoint changes in a running cluster.

    The last comparison is with the smallest restore there can be, one rule in one chain: what it
    takes is the kernel's and the tool's own, which no proxy can undercut.
    """
    bench = Bench(size, variant)
    times: dict[str, list[float]] = {name: [] for name in ("ours", "upstream", "rewrite", "least")}
    async with _started(bench):
        await bench.round()
        for number in range(rounds):
            index = size.services // (number + 2)
            bench.set_endpoints(index, [*range(size.endpoints - 1), 40 + number])
            times["ours"].append(await _seconds(bench.round))
            text = bench.partial_text(index)
            listing = await _seconds(lambda: run_tool([f"iptables-{variant}-save", "-t", "nat"]))
            rewriting = await _seconds(lambda: _restore(variant, text))  # noqa: B023 - run here
            times["rewrite"].append(rewriting)
            times["upstream"].append(listing + rewriting)
            times["least"].append(await _seconds(lambda: _restore(variant, _LEAST)))
    ours = median(times["ours"])
    others = (
        ("upstream", "upstream's partial sync", 0.1 if variant == "nft" else 0.6),
        ("rewrite", "the same within 30 s of the last, without its listing", 1.0),
        ("least", "a restore of one rule", 1.5),
    )
    return [
        Comparison(f"one endpoint ({variant})", size, ours, median(times[key]), other, limit)
        for key, other, limit in others
    ]


async def first_sync(bench: Bench) -> tuple[float, float]:
    """Measure a first round in empty tables: seconds by the clock, and of the CPU."""
    async with _started(bench):
        started = time.perf_counter()
        cpu_seconds = await _seconds(bench.round)
        return time.perf_counter() - started, cpu_seconds


async def cold_start(size: Size, *, cut_seconds: float = 60.0) -> Comparison:
    """iptables-nft from nothing: bounded restores against one restore of everything."""
    bench = Bench(size, "nft")
    _, ours = await first_sync(bench)
    text = bench.full_text()
    is_cut = False
    async with _started(bench):

        async def restore_all() -> None:
            nonlocal is_cut
            try:
                await _restore("nft", text, timeout_seconds=cut_seconds)
            except Drifted:
                is_cut = True  # killed after its time

        theirs = await _seconds(restore_all)
    return Comparison("cold start (nft)", size, ours, theirs, "one restore", 0.5, is_cut=is_cut)


async def run(size: Size) -> list[Comparison]:
    """All figures of the mode."""
    found = [await full_sync(size), await full_check(size)]
    found += await one_endpoint(size, variant="legacy")
    found += await one_endpoint(size, variant="nft")
    found.append(await cold_start(size))
    return found


def main(argv: Sequence[str]) -> int:
    """Print the figures. Return 0 if all limits hold, else 1."""
    numbers = [int(word) for word in argv] or [5000]
    found = asyncio.run(run(Size(*numbers)))
    for comparison in found:
        print(comparison)
    return 0 if all(comparison.is_met for comparison in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
