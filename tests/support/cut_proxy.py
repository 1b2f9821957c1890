"""A proxy that takes a cluster from nothing over one state to another, to be cut on its way.

For the kernel of this machine and for guests.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable

from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.cuts import run_cut
from tests.support.engine_kit import FakeClock, RecordedRounds

from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.kernel.conntrack.table import delete_stale
from kubeproxy.modes.base import AnyBackend
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.flows import FlowCleaner

ADDRESS = "192.0.2.10"

Create = Callable[[], AnyBackend]
Rules = Callable[[], list[str]]


class Proxy:
    """One process's engine."""

    def __init__(self, create: Callable[[], AnyBackend]) -> None:
        self.backend = create()
        self.clock = clock = FakeClock()
        listener = RecordedRounds()
        flows = FlowCleaner(Family.IPV4, delete_stale, clock=clock, listener=listener)
        self.flows = flows
        self.engine = Engine(
            self.backend, node(addresses=[ADDRESS]), clock=clock, listener=listener, flows=flows
        )

    async def start(self) -> None:
        await self.backend.start(self.engine.node)

    def first(self) -> None:
        """Two Services, with a node port, an external IP, affinity and UDP."""
        self._put("web", 1, ["10.244.1.1", "10.244.2.1"], node_port=30080, affinity_seconds=60)
        self._put("dns", 2, ["10.244.1.2"], protocol=Protocol.UDP, external_ips=["203.0.113.9"])

    def second(self) -> None:
        """One is removed, one has lost an endpoint, and one is new and has none."""
        self.engine.pipeline.store.delete_service(ServiceName("default", "dns"))
        self._put("web", 1, ["10.244.2.1"], node_port=30080)
        self._put("new", 3, [], protocol=Protocol.UDP)

    def _put(
        self,
        name: str,
        number: int,
        endpoints: list[str],
        *,
        protocol: Protocol = Protocol.TCP,
        node_port: int = 0,
        affinity_seconds: int = 0,
        external_ips: list[str] | None = None,
    ) -> None:
        store = self.engine.pipeline.store
        ports = [port(80, name="p", protocol=protocol, node_port=node_port)]
        store.set_service(
            service(
                f"default/{name}",
                cluster_ip=f"10.96.0.{number}",
                ports=ports,
                affinity_seconds=affinity_seconds,
                external_ips=external_ips or [],
            )
        )
        found = [endpoint(address) for address in endpoints]
        slice_ = endpoint_slice(
            f"default/{name}", found, slice_name=name, port_name="p", protocol=protocol
        )
        store.set_slice(slice_)

    async def sync(self) -> None:
        report = await self.engine.round()
        assert report.failure_text == ""
        await self.flows.clean()

    async def try_to_sync(self) -> None:
        """One round, and if it succeeds searches until nothing is owed. Raises KernelError."""
        report = await self.engine.round()
        if report.failure_text:
            self.clock.advance(60)
            raise KernelError(report.failure_text)
        while self.engine.flows_owed:
            await self.flows.clean()
            self.clock.advance(60)


def cut_everywhere(create: Create, rules: Rules, *, step: int = 1) -> list[str]:
    """Cut the proxy at every place (or every so many) and return what went wrong.

    `rules` reads all that the kernel holds of it. A successor must leave what a proxy leaves that
    was never disturbed.
    """
    with scratch_namespace():
        add_address()
        wanted = asyncio.run(_succeed(create, rules))
    with scratch_namespace():
        add_address()
        places = run_cut(lambda: _live(create))
    wrong = [f"only {places} places"] if places < 10 else []
    for place in range(0, places, step):
        with scratch_namespace():
            add_address()
            if run_cut(lambda: _live(create), cut_at=place) != -1:
                wrong.append(f"place {place} of {places} was not met again")
            found = asyncio.run(_succeed(create, rules))
        if found != wanted:
            lines = sorted(set(found) ^ set(wanted)) or ["another order"]
            wrong.append(f"cut at place {place} of {places}: {lines[:5]}")
    return wrong


async def _live(create: Create) -> None:
    proxy = Proxy(create)
    await proxy.start()
    proxy.first()
    await proxy.sync()
    proxy.second()
    await proxy.sync()
    await proxy.backend.close()


async def _succeed(create: Create, rules: Rules) -> list[str]:
    proxy = Proxy(create)
    await proxy.start()
    proxy.second()
    await proxy.sync()
    found = rules()
    await proxy.backend.close()
    return found


def add_address() -> None:
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
