"""What the ipvs mode costs beyond the bare messages it sends, in a kernel that has IPVS.

A cold sync and single endpoint changes are measured through the engine; then the very messages of
the cold sync are sent again, bare, to an empty kernel. The ratio of the two is what planning,
rendering, the ledger and iptables add; the number of messages of one change shows that it does not
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
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.fake_backend import FakeConntrack, Heard

from kpctl.places.uml import UserModeKernel
from kpctl.places.uml_agent import leave_namespace
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipset.table import EntryChange, Ipset, Refused
from kubeproxy.kernel.ipset.wire import SetHead
from kubeproxy.kernel.ipvs.table import Ipvs
from kubeproxy.kernel.ipvs.wire import Destination
from kubeproxy.kernel.netlink.bulk import Refusal
from kubeproxy.kernel.route.table import Interfaces
from kubeproxy.kernel.route.wire import Link
from kubeproxy.modes.base import ModeOptions
from kubeproxy.modes.ipvs.check import open_ipvs
from kubeproxy.modes.ipvs.mode import IpvsBackend
from kubeproxy.modes.ipvs.names import SERVICE_LINK, SET_KINDS, set_name
from kubeproxy.modes.ipvs.sinks.tables import KernelTables
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
    kernel: UserModeKernel, services: int = SERVICES, endpoints: int = ENDPOINTS
) -> MessageCosts:
    """Measure one size in a running kernel."""
    answer = kernel.call(Path(__file__), "measure_here", services, endpoints, timeout_seconds=600.0)
    return msgspec.convert(answer, MessageCosts)


# --- inside the kernel ---


class _Clock:
    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


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

    def change(self, changes: Sequence[EntryChange]) -> list[Refused]:
        self.changed += changes
        return super().change(changes)


class _RecordingLinks(Interfaces):
    def __init__(self) -> None:
        super().__init__()
        self.bound: list[str] = []

    def change_host_addresses(
        self, link: Link, *, add: Sequence[str] = (), delete: Sequence[str] = ()
    ) -> list[tuple[str, str]]:
        self.bound += add
        return super().change_host_addresses(link, add=add, delete=delete)


class _Recording(KernelTables):
    """The kernel's tables, remembering what they were told."""

    def __init__(self) -> None:
        self.recorded_ipvs = _RecordingIpvs()
        self.recorded_ipset = _RecordingIpset()
        self.recorded_links = _RecordingLinks()
        self.__dict__.update(
            ipvs=self.recorded_ipvs, ipset=self.recorded_ipset, links=self.recorded_links
        )

    @property
    def messages(self) -> int:
        return (
            len(self.recorded_ipvs.sent)
            + len(self.recorded_ipset.changed)
            + len(self.recorded_links.bound)
        )


def measure_here(services: int, endpoints: int) -> MessageCosts:
    """Called in the guest."""
    _raise_links()
    return asyncio.run(_measure(services, endpoints))


def _raise_links() -> None:
    for words in ("link set lo up", "link add eth0 type dummy", "address add 192.0.2.10 dev eth0"):
        subprocess.run(["ip", *words.split()], check=True)


async def _measure(services: int, endpoints: int) -> MessageCosts:
    (await open_ipvs()).close()
    tables = _Recording()
    engine = Engine(
        IpvsBackend(Family.IPV4, ModeOptions(), tables=tables),
        node(),
        clock=_Clock(),
        listener=Heard(),
        clean_conntrack=FakeConntrack(),
        times=EngineTimes(min_seconds=0),
    )
    for index in range(services):
        _serve(engine, index, range(endpoints))
    engine.mark_synced()
    cold = await _timed_round(engine)
    cold_messages = tables.messages
    told = (
        list(tables.recorded_ipvs.sent),
        list(tables.recorded_ipset.changed),
        list(tables.recorded_links.bound),
    )
    engine.request(full=True)
    full = await _timed_round(engine)
    before = (tables.messages, tables.recorded_ipvs.listings)
    changes = [await _change(engine, index, endpoints) for index in range(CHANGES)]
    after = (tables.messages, tables.recorded_ipvs.listings)
    tables.close()
    bare = _elsewhere(lambda: _send_bare(*told))
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
    ends = [_endpoint(index, slot) for slot in slots]
    engine.pipeline.store.set_slice(endpoint_slice(name, ends, slice_name=f"s-{index}"))


def _endpoint(index: int, slot: int) -> Endpoint:
    return endpoint(f"10.{128 + slot}.{index // 250}.{index % 250 + 1}")


async def _timed_round(engine: Engine) -> float:
    began = time.monotonic()
    report = await engine.round()
    assert report.is_success, report.failures
    return time.monotonic() - began


async def _change(engine: Engine, index: int, endpoints: int) -> float:
    """One endpoint gives way to another."""
    began = time.monotonic()
    _serve(engine, index, range(1, endpoints + 1))
    engine.request()
    await _timed_round(engine)
    return time.monotonic() - began


def _send_bare(
    bodies: Sequence[bytes], entries: Sequence[EntryChange], addresses: Sequence[str]
) -> float:
    """Seconds for the same messages to an empty kernel, and nothing else."""
    with Ipvs() as ipvs, Ipset() as ipset, Interfaces() as links:
        for name, kind in SET_KINDS.items():
            ipset.create(set_name(Family.IPV4, name), SetHead(kind))
        link = links.ensure_dummy(SERVICE_LINK)
        began = time.monotonic()
        ipset.change(entries)
        ipvs.send(bodies)
        links.change_host_addresses(link, add=addresses)
        return time.monotonic() - began


def _elsewhere(work: Callable[[], float]) -> float:
    """The same in a child with an empty network namespace.

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
