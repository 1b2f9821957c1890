"""Packets in a lab whose proxies are fed by a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.waiting import LIMIT_SECONDS, until_async

from kpctl.apiserver.admin import NODES, SERVICES, SLICES, ApiAdmin, admin_of, service
from kpctl.apiserver.real import RealApiServer
from kpctl.lab.cluster import Lab
from kpctl.lab.pace import scaled
from kpctl.lab.probe import Fate, Outcome, Target
from kpctl.lab.topology import parse_topology
from kubeproxy.facts.ids import Family, Protocol

pytestmark = [pytest.mark.api, pytest.mark.kernel, pytest.mark.timeout(1800)]

TOPOLOGY = """
nodes:
  node-a: {zone: zone-a, pods: [web-1]}
  node-b: {zone: zone-b, pods: [web-2, asker]}
clients:
  control: node-a
"""
WEB_IP = "10.96.60.1"


class ClusterLab:
    """A lab with an API server on the host `control`."""

    def __init__(self, lab: Lab, api: RealApiServer) -> None:
        self.lab = lab
        self.api = api

    async def change(self, work: Callable[[ApiAdmin], Awaitable[object]]) -> None:
        """Change objects; a thread of its own goes into the API server's network for that."""

        async def inside() -> None:
            async with admin_of(self.api.access()) as admin:
                await work(admin)

        def run() -> None:
            with self.lab.namespaces.inside("control"):
                asyncio.run(inside())

        await asyncio.to_thread(run)

    async def ask(self, timeout_seconds: float = LIMIT_SECONDS) -> Outcome:
        target = Target("asker", WEB_IP, 80, Family.IPV4, Protocol.TCP)
        return await self.lab.prober.probe(target, timeout_seconds=timeout_seconds)

    async def until(self, is_right: Callable[[Outcome], bool]) -> None:
        last: Outcome | None = None

        async def holds() -> bool:
            nonlocal last
            last = await self.ask(timeout_seconds=scaled(1.0))  # what began before is lost
            return is_right(last)

        await until_async(holds, lambda: f"{last}; {self.lab.proxies.log('node-b')[-3000:]}")

    def start_server(self) -> None:
        with self.lab.namespaces.inside("control"):
            self.api.start_server()

    def kill_server(self) -> None:
        with self.lab.namespaces.inside("control"):
            self.api.kill_server()


@pytest.fixture
async def cluster_lab(real_programs: None, tmp_path: Path) -> AsyncIterator[ClusterLab]:
    async with Lab(parse_topology(TOPOLOGY)) as lab:
        address = lab.topology.host("control").addresses.ipv4
        api = RealApiServer(tmp_path, lab.namespaces.command("control", ()), address=address)
        try:
            with lab.namespaces.inside("control"):
                api.start()
            yield ClusterLab(lab, api)
        finally:
            api.stop()


async def create_objects(admin: ApiAdmin) -> None:
    for name in ("node-a", "node-b"):
        await admin.create(NODES, {"metadata": {"name": name}})
        addresses = [{"type": "InternalIP", "address": "192.0.2.99"}]
        await admin.patch(f"{NODES}/{name}/status", {"status": {"addresses": addresses}})
    await admin.create(SERVICES, service("web", clusterIP=WEB_IP))


def endpoints(lab: Lab, *pods: str) -> dict[str, object]:
    ready = {"conditions": {"ready": True}}
    return {
        "endpoints": [
            {"addresses": [lab.topology.host(pod).addresses.ipv4], **ready} for pod in pods
        ]
    }


async def test_packets_follow_the_cluster_through_scaling_and_an_outage(
    cluster_lab: ClusterLab,
) -> None:
    lab = cluster_lab.lab
    for pod in ("web-1", "web-2"):
        lab.listen(pod, Protocol.TCP, 8080)
    await cluster_lab.change(create_objects)
    slice_ = {
        "metadata": {"name": "web", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
        **endpoints(lab, "web-1"),
    }
    await cluster_lab.change(lambda admin: admin.create(SLICES, slice_))
    kubeconfig = str(cluster_lab.api.kubeconfig())
    await lab.proxies.start("nftables", {"manifests": "", "kubeconfig": kubeconfig})

    def scale(*pods: str) -> Awaitable[None]:
        return cluster_lab.change(lambda admin: admin.patch(f"{SLICES}/web", endpoints(lab, *pods)))

    def answered_by(pod: str) -> Callable[[Outcome], bool]:
        return lambda seen: seen.answer is not None and seen.answer.host == pod

    await cluster_lab.until(answered_by("web-1"))
    await scale()
    await cluster_lab.until(lambda seen: seen.fate is Fate.REJECTED)
    await scale("web-2")
    await cluster_lab.until(answered_by("web-2"))
    cluster_lab.kill_server()
    assert all([answered_by("web-2")(await cluster_lab.ask()) for _ in range(5)])
    cluster_lab.start_server()
    await scale("web-1")
    await cluster_lab.until(answered_by("web-1"))
