"""Pods behind a bridge whose packets pass iptables twice, as with br_netfilter on most nodes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.waiting import limit

from kpctl.places.network import PrivateNetwork
from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.sysctl import ensure_sysctl
from kubeproxy.modes.userspace.mode import UserspaceBackend
from kubeproxy.modes.userspace.options import Options
from kubeproxy.sync.engine import Engine

pytestmark = pytest.mark.kernel

POD, GATEWAY, ENDPOINT = "10.244.1.7", "10.244.1.1", "192.0.2.20"
CLUSTER_IP, ELSEWHERE, ON_NODE = "10.96.0.10", "203.0.113.9", "192.0.2.10"
BRIDGE_FILTER = "net/bridge/bridge-nf-call-iptables"


def ip(*lines: str) -> None:
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True, capture_output=True)


@contextlib.contextmanager
def bridged_pod() -> Iterator[PrivateNetwork]:
    """A pod on a bridge of the namespace we are in."""
    pod = PrivateNetwork()
    try:
        ip(
            "link add cni0 type bridge",
            f"addr add {GATEWAY}/24 dev cni0",
            "link add veth0 type veth peer name eth0",
            "link set veth0 master cni0",
            f"link set eth0 netns {pod.namespace}",
            "link set veth0 up",
            "link set cni0 up",
        )
        with pod.inside():
            ip(
                f"addr add {POD}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {GATEWAY}",
            )
        yield pod
    finally:
        pod.close()


async def ask(pod: PrivateNetwork, address: str) -> bytes:
    """What a connection from the pod receives."""
    with pod.inside():
        handle = socket.socket()
    handle.setblocking(False)
    loop = asyncio.get_running_loop()
    with handle:
        async with limit():
            await loop.sock_connect(handle, (address, 80))
            return await loop.sock_recv(handle, 100)


@pytest.fixture(params=["1", "0"], ids=["bridge filter on", "bridge filter off"])
def pod(request: pytest.FixtureRequest) -> Iterator[PrivateNetwork]:
    if not Path("/proc/sys", BRIDGE_FILTER).exists():
        pytest.skip("this kernel has no br_netfilter")
    with scratch_namespace(), bridged_pod() as made:
        ensure_sysctl("net/ipv4/ip_forward", 1)
        ensure_sysctl(BRIDGE_FILTER, int(request.param))
        ip(f"addr add {ENDPOINT}/32 dev lo", f"addr add {ON_NODE}/32 dev lo")
        # Without a route the node would answer that the network is unreachable: as on a node
        # whose default route leads out.
        ip("link add out0 type veth peer name out1")
        ip("addr add 198.51.100.1/24 dev out0", "link set out0 up", "link set out1 up")
        ip("route add default via 198.51.100.2 dev out0 onlink")
        yield made


@pytest.fixture
async def backend(pod: PrivateNetwork) -> AsyncIterator[UserspaceBackend]:
    facts = node(Family.IPV4, addresses=(ON_NODE, ENDPOINT, GATEWAY), ip=ON_NODE)
    made = UserspaceBackend(Family.IPV4, Options())
    engine = Engine(
        made,
        facts,
        clock=FakeClock(),
        listener=RecordedRounds(),
    )
    engine.pipeline.store.set_service(service(external_ips=(ELSEWHERE, ON_NODE)))
    engine.pipeline.store.set_slice(endpoint_slice(endpoints=[endpoint(ENDPOINT)]))
    await made.start(facts)
    assert (await engine.round()).is_success
    yield made
    await made.close()


async def test_a_pod_behind_a_bridge_reaches_every_kind_of_address(
    pod: PrivateNetwork, backend: UserspaceBackend
) -> None:
    """Also an external IP that is no address of this node, as in every other mode."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"served")
        writer.close()

    async with await asyncio.start_server(serve, ENDPOINT, 8080):
        for address in (CLUSTER_IP, ON_NODE, ELSEWHERE):
            assert await ask(pod, address) == b"served", address
