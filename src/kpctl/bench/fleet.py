"""Many proxies against one API server: what each costs it, and how soon each is served.

Every proxy has a network namespace of its own with a cable to the real API server. For each
program the API server is started again. The same churn runs twice, without proxies and with them,
so that the difference is what the proxies cost. All proxies start at once. Single changes follow:
the packet of an event has the kernel's stamp at every node, and every node's kernel reports its
commit.

Processor time and bytes do not depend on how busy the machine is; lags do, since proxies, API
server and its store share it. `extrapolate` shows the arithmetic for a cluster of 5,000 nodes.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from kpctl.bench.cluster import SPARE, Cluster
from kpctl.bench.commits import CommitClock, nft_clock
from kpctl.bench.events import event_arrivals
from kpctl.bench.machine import wait_until_idle
from kpctl.bench.moments import Moments
from kpctl.bench.program import PROGRAMS, RunningProxy, command_of, programs_of_round, proxy_flags
from kpctl.bench.records import OURS, UPSTREAM, Measurement, Record, Size, percentile
from kpctl.bench.workload import churn
from kpctl.bench.world import Node, Served, World, require_programs
from kubeproxy.errors import ProxyError

MODE = "nftables"
NODES = 5000
"""Of the cluster that figures are extrapolated to."""
_LOOK_SECONDS = 0.2
_CALM_SECONDS = 0.6
_REST_SECONDS, _REST_LOOKS = 0.1, 30
_REQUESTS = re.compile(
    r"^(apiserver_request_total|apiserver_longrunning_requests)\{([^}]*)\} (\S+)$", re.M
)
_RESOURCES = frozenset({"services", "endpointslices", "nodes", "servicecidrs", "events"})
_WRITES = frozenset({"PATCH", "DELETE", "APPLY", "PUT"})
"""Verbs of the benchmark's own requests."""


class FleetEffort(msgspec.Struct, frozen=True, gc=False):
    """How many proxies, and what they meet."""

    proxies: int = 50
    size: Size = Size(500)
    rounds: int = 1
    samples: int = 10
    churn_rate: int = 20
    churn_seconds: float = 20.0
    cutoff_seconds: float = 300.0
    programs: tuple[str, ...] = PROGRAMS
    idle_seconds: float = 20.0
    """How long each run waits at most for the machine to have nothing else to do."""


class Spent(msgspec.Struct, frozen=True, gc=False):
    """What the API server has spent so far: processor time, bytes to each node, requests."""

    cpu_seconds: float
    sent: tuple[int, ...]
    requests: float


def count_requests(metrics: str) -> float:
    """Requests of proxies, by an API server's metrics page: answered, and watches that are open.

    A watch is counted as a request when it ends.
    """
    total = 0.0
    for _, labels, value in _REQUESTS.findall(metrics):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if found.get("resource") in _RESOURCES and found.get("verb") not in _WRITES:
            total += float(value)
    return total


class Fleet:
    """All proxies of one program, started at once."""

    def __init__(
        self, served: Served, nodes: Sequence[Node], world: World, effort: FleetEffort
    ) -> None:
        self._served = served
        self._nodes = nodes
        self._world = world
        self._effort = effort
        self._proxies: list[RunningProxy] = []

    @property
    def _cluster(self) -> Cluster:
        return self._served.cluster

    @contextmanager
    def started(self, program: str, folder: Path) -> Iterator[None]:
        """Start one proxy on each node, one right after the other; stop them in the end."""
        try:
            for number, node in enumerate(self._nodes):
                own = folder / str(number)
                own.mkdir()
                self._proxies.append(
                    RunningProxy(
                        (*command_of(program, own), *self._served.flags, *proxy_flags(MODE)),
                        network=node.network,
                        environment={},
                        log=own / "log",
                    )
                )
            yield
        finally:
            for proxy in self._proxies:
                proxy.stop()
            self._proxies = []

    async def until_synced(self) -> float:
        """Wait until all have synced. Return how long that took since the first was started."""
        began = self._proxies[0].started_at
        waiting = list(self._proxies)
        while waiting:
            if time.monotonic() > began + self._effort.cutoff_seconds:
                raise ProxyError(f"{len(waiting)} of {len(self._proxies)} proxies did not sync")
            await asyncio.sleep(_LOOK_SECONDS)
            # One at a time: the pages of all of them would be work of their own.
            while waiting and waiting[-1].is_synced():
                waiting.pop()
        return time.monotonic() - began

    async def until_quiet(self, commits: Sequence[Moments]) -> None:
        """Wait until no kernel was changed for a moment."""
        while True:
            count = sum(map(len, commits))
            await asyncio.sleep(_CALM_SECONDS)
            if sum(map(len, commits)) == count:
                return

    def usage(self) -> tuple[float, float]:
        """Processor time and resident memory of one proxy, on average."""
        found = [proxy.usage() for proxy in self._proxies]
        count = len(found)
        return sum(u.cpu_seconds for u in found) / count, sum(u.resident_mb for u in found) / count

    async def spent(self) -> Spent:
        page = (await self._served.admin.read("/metrics")).decode()
        sent = self._world.bytes_sent()
        return Spent(
            cpu_seconds=self._world.server_usage().cpu_seconds,
            sent=tuple(sent[node.uplink] for node in self._nodes),
            requests=count_requests(page),
        )

    async def churn(self) -> tuple[Spent, Spent, int]:
        """What the API server has spent before and after the churn, and the number of changes."""
        await self._until_server_rests()
        before = await self.spent()
        effort = self._effort
        touched = await churn(self._cluster, rate=effort.churn_rate, seconds=effort.churn_seconds)
        await asyncio.sleep(_CALM_SECONDS)
        after = await self.spent()
        await self._cluster.reset(set(touched))
        return before, after, len(touched)

    async def _until_server_rests(self) -> None:
        """Wait until the API server does next to nothing, as some time after its start."""
        for _ in range(_REST_LOOKS):
            before = self._world.server_usage().cpu_seconds
            await asyncio.sleep(1.0)
            if self._world.server_usage().cpu_seconds - before < _REST_SECONDS:
                return

    async def lags(
        self, events: Sequence[Moments], commits: Sequence[Moments]
    ) -> tuple[list[float], list[float]]:
        """For single changes: when each node had the event, and when its kernel was programmed."""
        arrived: list[float] = []
        programmed: list[float] = []
        for sample in range(self._effort.samples):
            await self.until_quiet(commits)
            await asyncio.sleep(1.0)  # the usual pause between two syncs
            slots = (SPARE + sample, *range(1, self._cluster.size.endpoints))
            sent = time.monotonic()
            await self._cluster.set_slots(sample, slots)
            arrived += await self._firsts(events, sent)
            await self._firsts(commits, sent)
            await self.until_quiet(commits)
            # Upstream's first transaction removes what the sync before has left.
            programmed += [moments.since(sent)[-1] - sent for moments in commits]
        return arrived, programmed

    async def _firsts(self, moments: Sequence[Moments], sent: float) -> list[float]:
        found = []
        for each in moments:
            first = await each.first_after(sent, self._effort.cutoff_seconds)
            if first is None:
                raise ProxyError("a change did not reach every node")
            found.append(first - sent)
        return found


@contextmanager
def _commits(node: Node) -> Iterator[CommitClock]:
    with node.network.inside():
        clock = nft_clock()
    try:
        yield clock
    finally:
        clock.close()


Started = Callable[[str], None]
Found = Callable[[Sequence[Measurement]], None]
IsOver = Callable[[str], bool]


async def _one(
    world: World, served: Served, program: str, effort: FleetEffort
) -> list[Measurement]:
    """Measure one program, from the start of all proxies to single changes."""
    rows: list[Measurement] = []

    def note(name: str, value: float, unit: str) -> None:
        rows.append(
            Measurement(
                MODE, f"fleet of {effort.proxies}: {name}", effort.size, program, value, unit
            )
        )

    with ExitStack() as stack:
        nodes = [stack.enter_context(world.node()) for _ in range(effort.proxies)]
        fleet = Fleet(served, nodes, world, effort)
        alone_before, alone_after, alone_changes = await fleet.churn()
        idle = world.server_usage()
        commits = [stack.enter_context(_commits(node)) for node in nodes]
        before = await fleet.spent()
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=world.folder))
        stack.enter_context(fleet.started(program, Path(folder)))
        note("start of all, until the last has synced", await fleet.until_synced(), "s")
        await fleet.until_quiet(commits)
        after = await fleet.spent()
        proxies, usage = effort.proxies, world.server_usage()
        note("start, requests", (after.requests - before.requests) / proxies, "per proxy")
        note("start, bytes", _bytes(before, after) / 1024, "kB per proxy")
        note("start, API server CPU", _cpu(before, after) / proxies * 1000, "ms per proxy")
        note(
            "start, API server memory",
            max(usage.peak_mb - idle.resident_mb, 0.0) * 1024 / proxies,
            "kB per proxy",
        )
        cpu_seconds, resident_mb = fleet.usage()
        note("start, CPU", cpu_seconds, "CPU s per proxy")
        note("memory", resident_mb, "MB per proxy")
        before, after, changes = await fleet.churn()
        alone = _cpu(alone_before, alone_after) / alone_changes
        shared = max(_cpu(before, after) / changes - alone, 0.0)
        note("churn, requests", (after.requests - before.requests) / proxies, "per proxy")
        note("churn, bytes of a change", _bytes(before, after) / changes / 1024, "kB per proxy")
        note("churn, API server CPU of a change", shared / proxies * 1e6, "µs per proxy")
        note("churn, CPU", fleet.usage()[0] - cpu_seconds, "CPU s per proxy")
        uplink = served.uplink
        events = [stack.enter_context(event_arrivals(n.network, uplink)) for n in nodes]
        arrived, programmed = await fleet.lags(events, commits)
        for percent in (50, 99):
            note(f"watch lag, p{percent}", percentile(arrived, percent) * 1000, "ms")
            note(f"programmed, p{percent}", percentile(programmed, percent) * 1000, "ms")
        await served.cluster.reset(range(effort.samples))
    return rows


def _cpu(before: Spent, after: Spent) -> float:
    return after.cpu_seconds - before.cpu_seconds


def _bytes(before: Spent, after: Spent) -> float:
    """Sent to one node, on average."""
    return (sum(after.sent) - sum(before.sent)) / len(after.sent)


async def _measure(
    world: World, effort: FleetEffort, *, started: Started, found: Found, is_over: IsOver
) -> None:
    async with world.served() as served:
        started(f"loading {effort.size} into the API server")
        await served.cluster.become(effort.size)
        for number in range(effort.rounds):
            for program in (p for p in programs_of_round(number) if p in effort.programs):
                what = f"fleet of {effort.proxies}, {effort.size}, round {number + 1}, {program}"
                if is_over(what):
                    return
                started(what)
                wait_until_idle(effort.idle_seconds)
                world.restart_server()
                found(await _one(world, served, program, effort))


def measure_fleet(effort: FleetEffort, *, started: Started, found: Found, is_over: IsOver) -> None:
    """Measure both programs, one after the other."""
    require_programs()
    with tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as folder:
        world = World(Path(folder))
        with world.inside():
            asyncio.run(_measure(world, effort, started=started, found=found, is_over=is_over))


class _Rule(msgspec.Struct, frozen=True, gc=False):
    """How one figure of a proxy becomes one of a cluster."""

    name: str
    words: str
    factor: float
    unit: str


_RULES = (
    _Rule("start, requests", "requests when all nodes start at once", NODES, "requests"),
    _Rule("start, bytes", "bytes when all start at once", NODES / 1024 / 1024, "GB"),
    _Rule("start, API server CPU", "API server CPU when all start", NODES / 1000, "CPU s"),
    _Rule("start, API server memory", "API server memory at its peak", NODES / 1024 / 1024, "GB"),
    _Rule("churn, bytes of a change", "bytes for each change/s", NODES / 1024, "MB/s"),
    _Rule("churn, API server CPU of a change", "API server CPU of a change", NODES / 1e6, "CPU s"),
)  # fmt: skip


def extrapolate(records: Iterable[Record]) -> list[str]:
    """A cluster of 5,000 nodes, in sentences that show the arithmetic."""
    found: Mapping[str, Record] = {
        name: record
        for record in records
        if (name := record.name.partition(": ")[2]) and record.name.startswith("fleet of ")
    }
    return [
        f"{NODES} nodes, {rule.words}: "
        + "; ".join(
            f"{program} {value:.3g} {record.unit} × {NODES} = {value * rule.factor:.3g} {rule.unit}"
            for program, value in ((OURS, record.ours), (UPSTREAM, record.upstream))
            if value is not None
        )
        for rule in _RULES
        if (record := found.get(rule.name)) is not None
    ]
