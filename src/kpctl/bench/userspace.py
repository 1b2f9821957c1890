"""How fast the userspace mode carries bytes, compared with HAProxy in front of the same servers.

Everything runs in a network namespace of its own. Runs alternate between the two, so that other
load of the machine meets both; medians are compared. Clients connect to ours at a cluster IP, so
the portal's translation is part of the figure, and to HAProxy directly. Connections without any
proxy show what the load generator itself can do.

Also measured: what carrying does to the control plane, as the time one endpoint change takes while
nothing is carried and while bulk is.

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

from kpctl.bench.facts import endpoint, endpoint_slice, node, port, service
from kpctl.look.quiet import IgnoreRounds
from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import ToolMissing
from kubeproxy.facts.ids import Family
from kubeproxy.modes.userspace.mode import UserspaceBackend
from kubeproxy.modes.userspace.options import Options
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.report import RoundReport

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
    """Processes that are killed at the end of the block."""
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
        self._backend = UserspaceBackend(Family.IPV4, Options())
        facts = node(ip=NODE_IP, addresses=(NODE_IP, POD))
        self._engine = Engine(
            self._backend,
            facts,
            clock=SystemClock(),
            listener=IgnoreRounds(),
        )

    async def start(self) -> None:
        await self._backend.start(self._engine.node)
        for name, number in (("short", SHORT), ("bulk", BULK)):
            facts = service(f"bench/{name}", cluster_ip=VIP, ports=(port(number),))
            self._engine.set_service(facts)
            self._serve(name, POD, number)
        self._require_success(await self._engine.round())

    def _serve(self, name: str, pod: str, number: int) -> None:
        ready = endpoint_slice(f"bench/{name}", [endpoint(pod, number)], slice_name=name)
        self._engine.set_slice(ready, trigger_time=None)

    @staticmethod
    def _require_success(report: RoundReport) -> None:
        if not report.is_success:
            raise RuntimeError(f"the benchmark's proxy failed: {report.failure_text}")

    async def change_seconds(self, times: int) -> float:
        """Change an endpoint of a service that carries nothing. Return the median time."""
        taken = []
        for turn in range(times):
            self._serve("short", NODE_IP if turn % 2 == 0 else POD, SHORT)
            began = time.monotonic()
            self._require_success(await self._engine.round())
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
    """Run the load generator. Return what it measured."""
    arguments = (*_LOAD, role, address, str(number), str(seconds))
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    return float(printed)


class Comparison(Struct, frozen=True, gc=False):
    """What is compared: a role of the load generator, and the ratio that ours must reach."""

    name: str
    unit: str
    role: str
    port: int
    least: float

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where clients connect to reach ours, HAProxy and the server itself."""
        return ((VIP, self.port), (NODE_IP, self.port + HAPROXY_OFFSET), (POD, self.port))


BULK_COMPARISON = Comparison("bulk", "Gbit/s", "receive", BULK, 0.8)
SHORT_COMPARISON = Comparison("new connections", "a second", "connect", SHORT, 0.25)


async def compare(
    comparison: Comparison, pids: tuple[int, int], rounds: int, seconds: float
) -> Ratio:
    """Compare medians over several runs, each in another order."""
    measured: list[list[float]] = [[], [], []]
    spent = [0.0, 0.0]
    for turn in range(rounds):
        for index in range(3):
            which = (index + turn) % 3
            before = [cpu_seconds(pid) for pid in pids]
            found = await load(comparison.role, *comparison.addresses[which], seconds)
            measured[which].append(found)
            if which < 2:
                spent[which] += cpu_seconds(pids[which]) - before[which]
    ours, haproxy, direct = map(median, measured)
    work = [sum(found) * seconds for found in measured[:2]]
    return Ratio(
        comparison.name,
        comparison.unit,
        ours,
        haproxy,
        direct,
        comparison.least,
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
        bulk = await compare(BULK_COMPARISON, pids, rounds, seconds)
        short = await compare(SHORT_COMPARISON, pids, rounds, seconds)
    return bulk, short, delay


def run(rounds: int = 5, seconds: float = 2.0) -> tuple[Ratio, Ratio, Delay]:
    """Run the whole benchmark in a namespace of its own."""
    with scratch_namespace(), tempfile.TemporaryDirectory() as folder, processes() as started:
        for address in (NODE_IP, POD):
            subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
        subprocess.run(["ip", "route", "add", VIP, "dev", "lo"], check=True)
        start_servers(started, Path(folder))
        return asyncio.run(measure(started[-1].pid, rounds, seconds))


if __name__ == "__main__":
    for result in run(*(int(text) for text in sys.argv[1:3])):
        print(result)
