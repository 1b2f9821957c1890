"""Stale UDP flows in a large connection tracking table: how long they stay, and what waits for it.

Both programs meet the same table: a fifth of the flows goes to Services, the rest past them. Then
endpoints are replaced, and the kernel's own events show when the flows to the old ones are gone.
Meanwhile one more change is made elsewhere: what it takes longer than without flows is what the
search adds to it. Both programs sync without a pause between two syncs, which would hide that.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from kpctl.bench.cluster import (
    POD_PORT,
    SERVICE_PORT,
    SPARE,
    Cluster,
    cluster_ip,
    in_parallel,
    pod_ip,
)
from kpctl.bench.commits import CommitClock, nft_clock
from kpctl.bench.events import Uplink, event_arrivals
from kpctl.bench.feed import Feed
from kpctl.bench.machine import wait_until_idle
from kpctl.bench.moments import Moments
from kpctl.bench.program import PROGRAMS, RunningProxy, command_of, programs_of_round, proxy_flags
from kpctl.bench.records import Measurement, Size
from kpctl.bench.world import Site
from kpctl.places.flows import ASSURED, REPLIED, NewFlow, insert_flows
from kpctl.places.network import PrivateNetwork
from kubeproxy.errors import ProxyError, Unsupported
from kubeproxy.plan.conntrack import pack_socket

MODE = "nftables"
MANY_SERVICES = 100
_TO_SERVICES = 5
"""One in so many flows goes to a Service."""
_LIMIT = Path("/proc/sys/net/netfilter/nf_conntrack_max")
_ROOM = 1000
_NO_PAUSE = "--iptables-min-sync-period=0s"
_SAMPLES = 3
_LOOK_SECONDS = 0.1
_CALM_LOOKS = 5
_SOL_NETLINK, _ADD_MEMBERSHIP, _SO_RCVBUFFORCE = 270, 1, 33
_NETLINK_NETFILTER, _GROUP_DESTROY = 12, 3
_PORTS_PER_CLIENT = 50_000


class FlowEffort(msgspec.Struct, frozen=True, gc=False):
    """How many flows, how often, and how long to wait for anything."""

    flows: int = 500_000
    rounds: int = 2
    cutoff_seconds: float = 60.0
    size: Size = Size(1000)
    programs: tuple[str, ...] = PROGRAMS
    idle_seconds: float = 60.0
    """How long each run waits at most for the machine to have nothing else to do."""


def why_not(flows: int) -> str:
    """Return why a table of this size cannot be made here, or nothing."""
    most = int(_LIMIT.read_text())
    if most >= flows + _ROOM:
        return ""
    wanted = f"sysctl -w net.netfilter.nf_conntrack_max={flows + _ROOM}"
    return f"a namespace may have {most} flows here; {wanted} on the host allows {flows}"


def made_flows(count: int, size: Size) -> Iterator[NewFlow]:
    """Flows of as many clients: to Services in turn, to each endpoint of them in turn; and past."""
    clients = int(ipaddress.ip_address("172.16.0.0"))
    for number in range(count):
        address = str(ipaddress.ip_address(clients + number // _PORTS_PER_CLIENT))
        client = pack_socket(address, 10_000 + number % _PORTS_PER_CLIENT)
        to, by = _ends(number, size)
        yield NewFlow(client, to, by, status=REPLIED | ASSURED, seconds=36_000)


def _ends(number: int, size: Size) -> tuple[bytes, bytes]:
    turn, rest = divmod(number, _TO_SERVICES)
    if rest:
        foreign = pack_socket(f"198.18.{turn % 200}.{rest}", 53)
        return foreign, foreign
    index, slot = turn % size.services, turn // size.services % size.endpoints
    return pack_socket(cluster_ip(index), SERVICE_PORT), pack_socket(pod_ip(index, slot), POD_PORT)


def stale_of(flows: int, size: Size, services: range) -> int:
    """How many flows go to slot 0 of these services."""
    turns = range(-(-flows // _TO_SERVICES))
    return sum(
        turn % size.services in services and turn // size.services % size.endpoints == 0
        for turn in turns
    )


class FlowSession:
    """One program in front of one table."""

    def __init__(
        self, cluster: Cluster, *, site: Site, program: str, effort: FlowEffort, folder: Path
    ) -> None:
        self._cluster = cluster
        self._site = site
        self._program = program
        self._effort = effort
        self._folder = folder
        self._others = iter(range(cluster.size.services - 1, 0, -1))
        """Services for changes elsewhere, each used once."""
        self.found: list[Measurement] = []

    async def run(self, flags: tuple[str, ...], uplink: Uplink) -> None:
        with (
            event_arrivals(self._site.node, uplink) as events,
            _deletions(self._site.node) as deletions,
            _commits(self._site.node) as commits,
        ):
            self._events, self._deletions, self._commits = events, deletions, commits
            with self._proxy(flags):
                for _ in range(_SAMPLES):
                    await self._lag("endpoint added, empty table")
                with self._site.node.inside():
                    insert_flows(made_flows(self._effort.flows, self._cluster.size))
                await self._replace("one endpoint", range(1))
                await self._replace(
                    f"an endpoint of {MANY_SERVICES} Services", range(1, 1 + MANY_SERVICES)
                )
            await self._replace_while_down(flags)

    @contextmanager
    def _proxy(self, flags: tuple[str, ...]) -> Iterator[RunningProxy]:
        command = (*command_of(self._program, self._folder), *flags, *proxy_flags(MODE), _NO_PAUSE)
        proxy = RunningProxy(
            command, network=self._site.node, environment={}, log=self._folder / "log"
        )
        self._running = proxy
        try:
            yield proxy
        finally:
            proxy.stop()

    def _note(self, name: str, value: float, unit: str, *, is_limit: bool = False) -> None:
        size = self._cluster.size
        self.found.append(Measurement(MODE, name, size, self._program, value, unit, is_limit))

    async def _replace(self, what: str, services: range) -> None:
        """Replace slot 0 of these services, and make another change when that is programmed.

        The other one adds an endpoint, by which no flow becomes stale.
        """
        await self._settle()
        name = f"{self._effort.flows:,} flows, {what} replaced"
        before, began = self._running.usage(), time.monotonic()
        slots = (SPARE, *range(1, self._cluster.size.endpoints))
        await in_parallel([partial(self._cluster.set_slots, i, slots) for i in services])
        arrived = await self._arrival(began)
        await self._commits.first_after(arrived, self._effort.cutoff_seconds)
        await self._until_quiet()
        await self._lag(f"{name}: endpoint added meanwhile")
        await self._note_deleted(name, began, arrived, services)
        after = self._running.usage()
        self._note(f"{name}: CPU", after.cpu_seconds - before.cpu_seconds, "CPU s")
        self._note(f"{name}: memory added", after.peak_mb - before.resident_mb, "MB")

    async def _note_deleted(self, name: str, began: float, since: float, services: range) -> None:
        wanted = stale_of(self._effort.flows, self._cluster.size, services)
        limit = self._effort.cutoff_seconds
        deadline = time.monotonic() + limit
        while len(gone := self._deletions.since(began)) < wanted:
            if time.monotonic() > deadline:
                self._note(f"{name}: stale flows gone", limit, "s", is_limit=True)
                return
            await asyncio.sleep(_LOOK_SECONDS)
        self._note(f"{name}: stale flows gone", gone[wanted - 1] - since, "s")

    async def _replace_while_down(self, flags: tuple[str, ...]) -> None:
        """Start again over the rules and the table, after an endpoint was replaced."""
        name = f"{self._effort.flows:,} flows, restart"
        index = MANY_SERVICES + 1
        slots = (SPARE, *range(1, self._cluster.size.endpoints))
        await self._cluster.set_slots(index, slots)
        began = time.monotonic()
        with self._proxy(flags) as proxy:
            first = await self._commits.first_after(began, self._effort.cutoff_seconds)
            if first is not None:
                await self._lag(f"{name}: endpoint added meanwhile")
            await self._note_deleted(name, began, proxy.started_at, range(index, index + 1))
            self._note(f"{name}: CPU", proxy.usage().cpu_seconds, "CPU s")

    async def _lag(self, name: str) -> None:
        """Measure from an event's arrival to its commit."""
        await self._until_synced()
        slots = range(self._cluster.size.endpoints)
        sent = time.monotonic()
        await self._cluster.set_slots(next(self._others), (*slots, SPARE))
        arrived = await self._arrival(sent)
        await self._settle()
        commits = self._commits.since(arrived)
        if commits:
            self._note(name, (commits[-1] - arrived) * 1000, "ms")
        else:
            self._note(name, self._effort.cutoff_seconds * 1000, "ms", is_limit=True)

    async def _arrival(self, sent: float) -> float:
        return await self._events.first_after(sent, self._effort.cutoff_seconds) or sent

    async def _until_synced(self) -> None:
        deadline = time.monotonic() + self._effort.cutoff_seconds
        while not self._running.is_synced():
            if time.monotonic() > deadline:
                raise ProxyError(f"{self._program} did not sync")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _until_quiet(self) -> None:
        """Wait until there was no commit for a moment, whatever else the proxy does."""
        count = -1
        while count != len(self._commits):
            count = len(self._commits)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _settle(self) -> None:
        """Wait until the proxy neither commits nor works."""
        deadline, calm = time.monotonic() + self._effort.cutoff_seconds, 0
        while calm < _CALM_LOOKS and time.monotonic() < deadline:
            cpu_seconds, commits = self._running.usage().cpu_seconds, len(self._commits)
            await asyncio.sleep(_LOOK_SECONDS)
            is_busy = self._running.is_at_work(cpu_seconds) or len(self._commits) != commits
            calm = 0 if is_busy else calm + 1


@contextmanager
def _commits(node: PrivateNetwork) -> Iterator[CommitClock]:
    with node.inside():
        clock = nft_clock()
    try:
        yield clock
    finally:
        clock.close()


@contextmanager
def _deletions(node: PrivateNetwork) -> Iterator[Moments]:
    """The times at which flows end on a node."""
    with node.inside():
        listener = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_NETFILTER
        )
    listener.bind((0, 0))
    listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 25)
    listener.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_DESTROY)
    moments = Moments()

    def take() -> None:
        now = time.monotonic()
        try:
            while listener.recv(1 << 16):
                moments.add(now)
        except BlockingIOError:
            return

    asyncio.get_running_loop().add_reader(listener, take)
    try:
        yield moments
    finally:
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()


Started = Callable[[str], None]
Found = Callable[[Sequence[Measurement]], None]
IsOver = Callable[[str], bool]


async def _measure(effort: FlowEffort, *, started: Started, found: Found, is_over: IsOver) -> None:
    with tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as folder:
        feed = Feed(Path(folder), "UDP")
        await feed.load(effort.size)
        for number in range(effort.rounds):
            for program in (p for p in programs_of_round(number) if p in effort.programs):
                what = f"{effort.flows:,} flows, round {number + 1}, {program}"
                if is_over(what):
                    return
                started(what)
                found(await _one(feed, program, effort, Path(folder)))
                await feed.cluster.restore()


async def _one(feed: Feed, program: str, effort: FlowEffort, folder: Path) -> list[Measurement]:
    wait_until_idle(effort.idle_seconds)
    site = Site()
    try:
        site.wire()
        async with AsyncExitStack() as stack:
            access = await stack.enter_async_context(feed.reached_from(site))
            session = FlowSession(
                feed.cluster, site=site, program=program, effort=effort, folder=folder
            )
            await session.run(access.flags, access.uplink)
            return session.found
    finally:
        site.close()


def measure_flows(effort: FlowEffort, *, started: Started, found: Found, is_over: IsOver) -> None:
    """Measure both programs. Raises Unsupported where the table cannot be that large."""
    if reason := why_not(effort.flows):
        raise Unsupported(reason)
    asyncio.run(_measure(effort, started=started, found=found, is_over=is_over))
