"""What the ipvs mode costs beyond the bare messages it sends, in a kernel that has IPVS.

A cold sync and single endpoint changes are measured through the engine. Then the very messages of
the cold sync are sent again, bare, to an empty kernel. The ratio of the two is what planning,
rendering, the ledger and iptables add. The number of messages of one change shows that it does not
grow with the cluster. Everything happens in one user-mode kernel, so the ratios are of one run.

    python -m kpctl.bench.ipvs [services [endpoints]]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from kpctl.bench.facts import endpoint, endpoint_slice, node, service
from kpctl.look.quiet import IgnoreRounds
from kpctl.places.guest import GuestKernel
from kpctl.places.netns import leave_namespace
from kpctl.places.uml import UserModeKernel
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import SERVICE_LINK
from kubeproxy.kernel.ipset.table import Ipset, RefusedEntry
from kubeproxy.kernel.ipset.wire import EntryChange, SetHead
from kubeproxy.kernel.ipvs.table import Ipvs
from kubeproxy.kernel.ipvs.wire import Destination
from kubeproxy.kernel.netlink.bulk import Refusal
from kubeproxy.kernel.route.table import Route
from kubeproxy.kernel.route.wire import Link
from kubeproxy.modes.ipvs.check import open_ipvs
from kubeproxy.modes.ipvs.mode import IpvsBackend
from kubeproxy.modes.ipvs.names import SET_TYPES, set_name
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine, EngineTimes

SERVICES, ENDPOINTS = 2000, 5
CHANGES = 20


class MessageCosts(msgspec.Struct, frozen=True, gc=False):
    """Seconds and messages; a change is one endpoint replaced by another."""

    services: int
    endpoints: int
    cold_seconds: float
    cold_messages: int
    bare_seconds: float
    full_seconds: float
    """A later full round that reads everything and finds nothing to do."""
    change_seconds: float
    change_messages: int
    change_listings: int

    @property
    def cold_ratio(self) -> float:
        """How many times longer than the bare messages a cold sync takes."""
        return self.cold_seconds / self.bare_seconds

    def __str__(self) -> str:
        return (
            f"{self.services} × {self.endpoints}: cold {self.cold_seconds:.2f} s for "
            f"{self.cold_messages} messages, bare {self.bare_seconds:.2f} s "
            f"(ratio {self.cold_ratio:.2f}); full round without change {self.full_seconds:.2f} s; "
            f"one endpoint {self.change_seconds * 1000:.2f} ms, "
            f"{self.change_messages} messages and {self.change_listings} listing"
        )


def measure_messages(
    kernel: GuestKernel, services: int = SERVICES, endpoints: int = ENDPOINTS
) -> MessageCosts:
    """Measure one size in a running kernel."""
    answer = kernel.call(Path(__file__), "measure_here", services, endpoints, timeout_seconds=600.0)
    return msgspec.convert(answer, MessageCosts)


# --- inside the kernel ---


class _RecordingIpvs(Ipvs):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.listings = 0

    def send(self, bodies: Sequence[bytes]) -> list[Refusal]:
        self.sent += bodies
        return super().send(bodies)

    def destinations(self, protocol: int, address: str, port: int) -> list[Destination]:
        self.listings += 1
        return super().destinations(protocol, address, port)


class _RecordingIpset(Ipset):
    def __init__(self) -> None:
        super().__init__()
        self.changed: list[EntryChange] = []

    def change(self, changes: Sequence[EntryChange]) -> list[RefusedEntry]:
        self.changed += changes
        return super().change(changes)


class _RecordingRoute(Route):
    def __init__(self) -> None:
        super().__init__()
        self.bound: list[str] = []

    def change_host_addresses(
        self, link: Link, *, add: Sequence[str] = (), delete: Sequence[str] = ()
    ) -> list[tuple[str, str]]:
        self.bound += add
        return super().change_host_addresses(link, add=add, delete=delete)


class _Recording:
    """The kernel's tables, recording what is sent to them."""

    def __init__(self) -> None:
        self.ipvs = _RecordingIpvs()
        self.ipset = _RecordingIpset()
        self.route = _RecordingRoute()

    @property
    def messages(self) -> int:
        return len(self.ipvs.sent) + len(self.ipset.changed) + len(self.route.bound)

    def close(self) -> None:
        for table in (self.ipvs, self.ipset, self.route):
            table.close()


def measure_here(services: int, endpoints: int) -> MessageCosts:
    """Measure one size. Called in the guest."""
    _raise_links()
    return asyncio.run(_measure(services, endpoints))


def _raise_links() -> None:
    for words in ("link set lo up", "link add eth0 type dummy", "address add 192.0.2.10 dev eth0"):
        subprocess.run(["ip", *words.split()], check=True)


async def _measure(services: int, endpoints: int) -> MessageCosts:
    (await open_ipvs()).close()
    tables = _Recording()
    engine = Engine(
        IpvsBackend(Family.IPV4, Options(), tables=tables),
        node(),
        clock=SystemClock(),
        listener=IgnoreRounds(),
        times=EngineTimes(min_seconds=0),
    )
    for index in range(services):
        _serve(engine, index, range(endpoints))
    engine.mark_synced()
    cold = await _timed_round(engine)
    cold_messages = tables.messages
    sent = (list(tables.ipvs.sent), list(tables.ipset.changed), list(tables.route.bound))
    engine.request(full=True)
    full = await _timed_round(engine)
    before = (tables.messages, tables.ipvs.listings)
    changes = [await _change(engine, index, endpoints) for index in range(CHANGES)]
    after = (tables.messages, tables.ipvs.listings)
    tables.close()
    bare = _elsewhere(lambda: _send_bare(*sent))
    return MessageCosts(
        services=services,
        endpoints=endpoints,
        cold_seconds=cold,
        cold_messages=cold_messages,
        bare_seconds=bare,
        full_seconds=full,
        change_seconds=median(changes),
        change_messages=(after[0] - before[0]) // CHANGES,
        change_listings=(after[1] - before[1]) // CHANGES,
    )


def _serve(engine: Engine, index: int, slots: Sequence[int]) -> None:
    name = f"default/svc-{index}"
    address = f"10.{96 + index // 65025}.{index // 255 % 255}.{index % 255 + 1}"
    engine.pipeline.store.set_service(service(name, cluster_ip=address))
    last = f"{index // 250}.{index % 250 + 1}"
    ends = [endpoint(f"10.{128 + slot}.{last}") for slot in slots]
    engine.pipeline.store.set_slice(endpoint_slice(name, ends, slice_name=f"s-{index}"))


async def _timed_round(engine: Engine) -> float:
    began = time.monotonic()
    report = await engine.round()
    assert report.is_success, report.failure_text
    return time.monotonic() - began


async def _change(engine: Engine, index: int, endpoints: int) -> float:
    """Replace one endpoint. Return the seconds until the kernel has the change."""
    began = time.monotonic()
    _serve(engine, index, range(1, endpoints + 1))
    engine.request()
    await _timed_round(engine)
    return time.monotonic() - began


def _send_bare(
    bodies: Sequence[bytes], entries: Sequence[EntryChange], addresses: Sequence[str]
) -> float:
    """Seconds for the same messages to an empty kernel, and nothing else."""
    with Ipvs() as ipvs, Ipset() as ipset, Route() as route:
        for name, kind in SET_TYPES.items():
            ipset.create(set_name(Family.IPV4, name), SetHead(kind))
        link = route.ensure_dummy(SERVICE_LINK)
        began = time.monotonic()
        ipset.change(entries)
        ipvs.send(bodies)
        route.change_host_addresses(link, add=addresses)
        return time.monotonic() - began


def _elsewhere(work: Callable[[], float]) -> float:
    """Run it in a child with an empty network namespace. Return its result.

    Emptying this one is not enough: for a minute IPVS keeps what was deleted, and looks through it
    for every real server that is added.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            leave_namespace()
            _raise_links()
            os.write(write_end, str(work()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return float(answer)


def main() -> None:
    services = int(sys.argv[1]) if len(sys.argv) > 1 else SERVICES
    endpoints = int(sys.argv[2]) if len(sys.argv) > 2 else ENDPOINTS
    with UserModeKernel() as kernel:
        for size in (max(services // 10, 1), services):
            print(measure_messages(kernel, size, endpoints))


if __name__ == "__main__":
    main()
