"""How quick the userspace mode carries bytes, against HAProxy in front of the same servers.

Everything runs in a network namespace of its own. Rounds alternate between the two, so that
whatever else the machine does meets both; medians are compared. Ours is asked at a cluster IP, so
the portal's translation is part of the figure; HAProxy is asked directly. Directly asked servers
show what the load generator itself can do.

Also measured: what carrying does to the control plane, as the time one endpoint change takes while
nothing and while everything is carried.

    python -m kpctl.bench.userspace [rounds [seconds]]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median

from msgspec import Struct
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.fake_backend import FakeConntrack, Heard

from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import ToolMissing
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import ModeOptions
from kubeproxy.modes.userspace.mode import UserspaceBackend
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine

NODE_IP, POD, VIP = "192.0.2.10", "10.244.1.5", "10.96.0.10"
SHORT, BULK = 7001, 7002
HAPROXY_OFFSET = 1000
_LOAD = (sys.executable, "-m", "kpctl.bench.carry_load")
_CONFIGURATION = f"""
defaults
  mode tcp
  timeout connect 5s
  timeout client 1m
  timeout server 1m
listen short
  bind {NODE_IP}:{SHORT + HAPROXY_OFFSET}
  server pod {POD}:{SHORT}
listen bulk
  bind {NODE_IP}:{BULK + HAPROXY_OFFSET}
  server pod {POD}:{BULK}
"""


class Ratio(Struct, frozen=True, gc=False):
    """Ours and HAProxy's median; larger is better."""

    name: str
    unit: str
    ours: float
    haproxy: float
    direct: float
    least: float
    cpu_ratio: float
    """Processor time of HAProxy for the same work, as a share of ours."""

    @property
    def ratio(self) -> float:
        return self.ours / self.haproxy

    @property
    def is_met(self) -> bool:
        return self.ratio >= self.least

    def __str__(self) -> str:
        return (
            f"{self.name}: ours {self.ours:,.1f}, HAProxy {self.haproxy:,.1f}, without proxy "
            f"{self.direct:,.1f} {self.unit}; ratio {self.ratio:.2f} "
            f"({'reached' if self.is_met else 'MISSED'}: at least {self.least:g}); "
            f"by processor time alone {self.cpu_ratio:.2f}"
        )


class Delay(Struct, frozen=True, gc=False):
    """How long one endpoint change takes, from event to confirmed."""

    idle_seconds: float
    busy_seconds: float

    def __str__(self) -> str:
        return (
            f"one endpoint changes: {self.idle_seconds * 1000:.1f} ms while nothing is carried, "
            f"{self.busy_seconds * 1000:.1f} ms while bulk is"
        )


@contextlib.contextmanager
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the block."""
    started: list[subprocess.Popen[str]] = []
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def start_servers(started: list[subprocess.Popen[str]], folder: Path) -> None:
    for role, number in (("serve-short", SHORT), ("serve-bulk", BULK)):
        server = subprocess.Popen([*_LOAD, role, str(number)], stdout=subprocess.PIPE, text=True)
        started.append(server)
        if server.stdout is None or server.stdout.readline() != "listening\n":
            raise ToolMissing(f"the benchmark's server {role} did not start")
    if shutil.which("haproxy") is None:
        raise ToolMissing('"haproxy" is not installed; install the package "haproxy"')
    configuration = folder / "haproxy.cfg"
    configuration.write_text(_CONFIGURATION)
    haproxy = ["haproxy", "-q", "-db", "-f", str(configuration)]
    started.append(subprocess.Popen(haproxy, stdout=subprocess.PIPE, text=True))


class Host:
    """Our proxy in front of the servers."""

    def __init__(self) -> None:
        self._backend = UserspaceBackend(Family.IPV4, ModeOptions())
        facts = node(ip=NODE_IP, addresses=(NODE_IP, POD))
        self._engine = Engine(
            self._backend,
            facts,
            clock=SystemClock(),
            listener=Heard(),
            clean_conntrack=FakeConntrack(),
        )

    async def start(self) -> None:
        await self._backend.start(self._engine.pipeline.node)
        store = self._engine.pipeline.store
        for name, number in (("short", SHORT), ("bulk", BULK)):
            facts = service(f"bench/{name}", cluster_ip=VIP, ports=(port(number),))
            store.set_service(facts)
            self._serve(name, POD, number)
        self._require(await self._engine.round())

    def _serve(self, name: str, pod: str, number: int) -> None:
        ready = endpoint_slice(f"bench/{name}", [endpoint(pod, number)], slice_name=name)
        self._engine.pipeline.store.set_slice(ready)

    @staticmethod
    def _require(report: object) -> None:
        failures = getattr(report, "failures", ())
        if failures:
            raise RuntimeError(f"the benchmark's proxy failed: {failures}")

    async def change_seconds(self, times: int) -> float:
        """The median time of an endpoint change of a service that carries nothing."""
        taken = []
        for turn in range(times):
            self._serve("short", NODE_IP if turn % 2 == 0 else POD, SHORT)
            began = time.monotonic()
            self._require(await self._engine.round())
            taken.append(time.monotonic() - began)
        return median(taken)

    @property
    def carrier(self) -> int:
        pid = self._backend.sockets.supervisor.pid
        if pid is None:
            raise RuntimeError("the carrier does not run")
        return pid

    async def close(self) -> None:
        await self._backend.close()


@contextlib.asynccontextmanager
async def host() -> AsyncIterator[Host]:
    made = Host()
    try:
        await made.start()
        yield made
    finally:
        await made.close()


async def load(role: str, address: str, number: int, seconds: float) -> float:
    """What one run of the load generator measured."""
    arguments = (*_LOAD, role, address, str(number), str(seconds))
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    return float(printed)


class Contest(Struct, frozen=True, gc=False):
    """What is compared, and the processes that do it."""

    name: str
    unit: str
    role: str
    port: int
    least: float

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Where ours, HAProxy and the server itself are asked."""
        return ((VIP, self.port), (NODE_IP, self.port + HAPROXY_OFFSET), (POD, self.port))


BULK_CONTEST = Contest("bulk", "Gbit/s", "receive", BULK, 0.8)
SHORT_CONTEST = Contest("new connections", "a second", "connect", SHORT, 0.25)


async def compare(contest: Contest, pids: tuple[int, int], rounds: int, seconds: float) -> Ratio:
    """Medians over rounds, each with another order."""
    measured: list[list[float]] = [[], [], []]
    spent = [0.0, 0.0]
    for turn in range(rounds):
        for index in range(3):
            which = (index + turn) % 3
            before = [cpu_seconds(pid) for pid in pids]
            found = await load(contest.role, *contest.places[which], seconds)
            measured[which].append(found)
            if which < 2:
                spent[which] += cpu_seconds(pids[which]) - before[which]
    ours, haproxy, direct = map(median, measured)
    work = [sum(found) * seconds for found in measured[:2]]
    return Ratio(
        contest.name,
        contest.unit,
        ours,
        haproxy,
        direct,
        contest.least,
        cpu_ratio=(spent[1] / work[1]) / (spent[0] / work[0]),
    )


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


async def measure_delay(proxy: Host, seconds: float) -> Delay:
    idle = await proxy.change_seconds(20)
    carrying = asyncio.create_task(load("receive", VIP, BULK, seconds))
    await asyncio.sleep(seconds / 4)
    busy = await proxy.change_seconds(20)
    await carrying
    return Delay(idle, busy)


async def measure(haproxy: int, rounds: int, seconds: float) -> tuple[Ratio, Ratio, Delay]:
    async with host() as proxy:
        delay = await measure_delay(proxy, seconds)
        pids = (proxy.carrier, haproxy)
        bulk = await compare(BULK_CONTEST, pids, rounds, seconds)
        short = await compare(SHORT_CONTEST, pids, rounds, seconds)
    return bulk, short, delay


def run(rounds: int = 5, seconds: float = 2.0) -> tuple[Ratio, Ratio, Delay]:
    """The whole benchmark, in a namespace of its own."""
    with scratch_namespace(), tempfile.TemporaryDirectory() as folder, processes() as started:
        for address in (NODE_IP, POD):
            subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
        subprocess.run(["ip", "route", "add", VIP, "dev", "lo"], check=True)
        start_servers(started, Path(folder))
        return asyncio.run(measure(started[-1].pid, rounds, seconds))


if __name__ == "__main__":
    for result in run(*(int(text) for text in sys.argv[1:3])):
        print(result)
