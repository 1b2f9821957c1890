"""The whole mode in a namespace of its own: engine, rules, sockets and packets."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.conntrack_kit import listed
from tests.support.engine_kit import FakeClock, RecordedDrifts, RecordedRounds
from tests.support.waiting import FOR_THE_LOCK, until, until_async, within_limit

from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import Unsupported
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.node import NodeFacts
from kubeproxy.kernel.conntrack.table import delete_stale
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.registry import load_mode
from kubeproxy.modes.userspace.mode import UserspaceBackend
from kubeproxy.modes.userspace.options import Options
from kubeproxy.plan.conntrack import pack_socket
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.flows import FlowCleaner

pytestmark = pytest.mark.kernel

ADDRESSES = {
    Family.IPV4: ("192.0.2.10", "10.244.1.5", "10.244.1.6", "10.96.0.10"),
    Family.IPV6: ("2001:db8:10::10", "fd00:244::5", "fd00:244::6", "fd00:96::a"),
}


def sh(command: str) -> str:
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout


class Host:
    """One family's engine on a host whose pods are addresses of its own."""

    def __init__(self, family: Family, variant: str) -> None:
        self.ip, self.pod, self.other_pod, self.vip = ADDRESSES[family]
        self.save = f"{'ip6tables' if family is Family.IPV6 else 'iptables'}-{variant}-save"
        options = Options(sync_period_seconds=0.2, tools=ToolOptions(variant=variant))
        self.backend = UserspaceBackend(family, options)
        clock, listener = FakeClock(), RecordedRounds()
        self.flows = FlowCleaner(family, delete_stale, clock=clock, listener=listener)
        self.engine = Engine(
            self.backend,
            self._facts(family),
            clock=clock,
            listener=listener,
            flows=self.flows,
        )
        self.store = self.engine.pipeline.store

    def _facts(self, family: Family) -> NodeFacts:
        return node(family, addresses=(self.ip, self.pod, self.other_pod))

    async def start(self) -> None:
        await self.backend.start(self.engine.pipeline.node)

    def serve(self, *pods: str, node_port: int = 0, external_ips: tuple[str, ...] = ()) -> None:
        ports = (
            port(80, node_port=node_port),
            port(53, name="dns", protocol=Protocol.UDP, node_port=node_port),
        )
        facts = service(cluster_ip=self.vip, ports=ports, external_ips=external_ips)
        self.store.set_service(facts)
        self.store.set_slice(endpoint_slice(endpoints=[endpoint(pod) for pod in pods]))
        dns = [endpoint(pod, 5353) for pod in pods]
        self.store.set_slice(
            endpoint_slice(endpoints=dns, slice_name="dns", port_name="dns", protocol=Protocol.UDP)
        )

    async def round(self) -> None:
        report = await self.engine.round()
        assert report.failure_text == ""
        await self.flows.clean()

    def flush(self) -> None:
        """What another program does to our rules."""
        sh(shlex.join([self.save.removesuffix("-save"), *FOR_THE_LOCK, "-t", "nat", "-F"]))

    def rules(self) -> list[str]:
        """Everything of ours, as the kernel has it."""
        return [line for line in sh(self.save).splitlines() if "KUBE-" in line]


@pytest.fixture(params=[(Family.IPV4, "nft"), (Family.IPV6, "nft"), (Family.IPV4, "legacy")])
def family_and_variant(request: pytest.FixtureRequest) -> Iterator[tuple[Family, str]]:
    family, variant = request.param
    with scratch_namespace():
        for address in ADDRESSES[family][:3]:
            flags = "nodad" if family is Family.IPV6 else ""
            length = 128 if family is Family.IPV6 else 32
            sh(f"ip addr add {address}/{length} dev lo {flags}")
        sh(f"ip route add {ADDRESSES[family][3]} dev lo")
        yield family, variant


@pytest.fixture
async def host(family_and_variant: tuple[Family, str]) -> AsyncIterator[Host]:
    made = Host(*family_and_variant)
    await made.start()
    servers = [await _name_server(pod) for pod in (made.pod, made.other_pod)]
    yield made
    for server in servers:
        server.close()
    await made.backend.close()


async def _name_server(pod: str) -> asyncio.Server:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(pod.encode())
        writer.close()

    return await asyncio.start_server(serve, pod, 8080)


async def ask(address: str, number: int) -> str:
    reader, writer = await within_limit(asyncio.open_connection(address, number))
    received = await reader.read()
    writer.close()
    return received.decode()


async def test_a_service_is_reached_through_its_portals(host: Host) -> None:
    host.serve(host.pod, host.other_pod, node_port=30080)
    await host.round()
    answers = {await ask(host.vip, 80) for _ in range(4)}
    assert answers == {host.pod, host.other_pod}
    assert await ask(host.ip, 30080) in answers


async def test_endpoints_change_without_touching_rules(host: Host) -> None:
    """The proxy port stays, so there is nothing to write."""
    host.serve(host.pod)
    await host.round()
    before = host.rules()
    host.serve(host.other_pod)
    await host.round()
    assert host.rules() == before
    assert await ask(host.vip, 80) == host.other_pod


async def test_delete_and_create_again_works(host: Host) -> None:
    host.serve(host.pod)
    await host.round()
    host.store.delete_service(ServiceName("default", "web"))
    await host.round()
    assert not [rule for rule in host.rules() if "default/web" in rule]
    assert await host.backend.sockets.read() == {}
    host.serve(host.pod)
    await host.round()
    assert await ask(host.vip, 80) == host.pod


async def test_a_second_full_sync_changes_nothing(host: Host) -> None:
    """What is read back equals what was written, in both variants of the tools."""
    host.serve(host.pod, node_port=30080, external_ips=(host.ip,))
    await host.round()
    host.engine.request(full=True)
    report = await host.engine.round()
    assert (report.is_full, report.changes, report.drifted_items) == (True, 0, 0)


async def test_a_flush_is_repaired(host: Host) -> None:
    host.serve(host.pod)
    await host.round()
    before = host.rules()
    host.flush()
    host.engine.report_drift("flushed")
    await host.round()
    assert sorted(host.rules()) == sorted(before)


async def test_old_rules_that_lead_nowhere_are_replaced(host: Host) -> None:
    """After a crash, the rules of the dead process point to ports that are closed."""
    host.serve(host.pod)
    await host.round()
    old = set(host.rules())
    await host.backend.close()
    successor = Host(host.backend.family, host.save.split("-")[1])
    await successor.start()
    successor.serve(successor.pod)
    await successor.round()
    assert await ask(host.vip, 80) == host.pod
    assert len(successor.rules()) == len(old)
    await successor.backend.close()


async def test_a_flush_is_noticed(host: Host) -> None:
    """Soon, whichever of our chains or jumps it concerns."""
    host.serve(host.pod)
    await host.round()
    noticed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def drifted(what: str, items: object = None, noticed_at: object = None) -> None:
        if not noticed.done():
            noticed.set_result(what)

    watching = asyncio.create_task(host.backend.watch(drifted))

    async def is_watching() -> bool:
        return host.backend.tables.watcher is not None

    try:
        await until_async(is_watching)
        assert not noticed.done()
        host.flush()
        assert "another program edited iptables" in await within_limit(noticed)
    finally:
        watching.cancel()


async def test_a_dead_carrier_is_replaced(host: Host) -> None:
    """New connections wait for the next one in the kernel's queue."""
    host.serve(host.pod)
    await host.round()
    watching = asyncio.create_task(host.backend.watch(RecordedDrifts()))
    pid = host.backend.sockets.supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await host.backend.sockets.supervisor.wait_exited()
    assert await ask(host.vip, 80) == host.pod
    assert host.backend.sockets.supervisor.pid != pid
    watching.cancel()


async def test_the_start_of_a_carrier_is_waited_for_by_the_first_round_only(
    family_and_variant: tuple[Family, str], slow_start: Path
) -> None:
    """The mode starts, so that health and metrics are served; no rule is there yet."""
    host = Host(*family_and_variant)
    await within_limit(host.start())
    server = await _name_server(host.pod)
    host.serve(host.pod)
    first = asyncio.create_task(host.round())
    await until(lambda: host.backend.sockets.learned.ports)
    assert (first.done(), host.rules()) == (False, [])
    slow_start.touch()
    await within_limit(first)
    assert await ask(host.vip, 80) == host.pod
    server.close()
    await host.backend.close()


async def test_a_carrier_that_cannot_be_started_does_not_end_the_proxy(
    family_and_variant: tuple[Family, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(*family_and_variant)
    python = sys.executable
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    await host.start()
    server = await _name_server(host.pod)
    host.serve(host.pod)
    report = await host.engine.round()
    assert "cannot start the carrier process" in report.failure_text
    monkeypatch.setattr(sys, "executable", python)
    await host.round()
    watching = asyncio.create_task(host.backend.watch(RecordedDrifts()))
    assert await ask(host.vip, 80) == host.pod
    watching.cancel()
    server.close()
    await host.backend.close()


async def test_udp_flows_go_with_their_service(host: Host) -> None:
    """A client with a fixed port must not stay bound to a proxy port that is gone."""
    host.serve(host.pod)
    await host.round()
    sh("sysctl -qw net.netfilter.nf_conntrack_udp_timeout=600")  # not by time, but with the Service
    with socket.socket(host.backend.family.af, socket.SOCK_DGRAM) as client:
        client.sendto(b"?", (host.vip, 53))
    assert pack_socket(host.vip, 53) in destinations(host)
    host.serve(host.other_pod)
    await host.round()
    assert pack_socket(host.vip, 53) in destinations(host)
    host.store.delete_service(ServiceName("default", "web"))
    await host.round()
    assert pack_socket(host.vip, 53) not in destinations(host)


def destinations(host: Host) -> set[bytes]:
    """Where the flows were sent that the kernel remembers."""
    return {to for to, _ in listed(host.backend.family)}


async def test_clean_up_removes_ours_and_only_ours(host: Host) -> None:
    tool = host.save.removesuffix("-save")
    if tool.endswith("legacy"):
        pytest.skip("clean-up runs the tools that PATH finds")
    sh(f"{tool} -t nat -N FOREIGN")
    sh(f"{tool} -t nat -A PREROUTING -p tcp --dport 1 -j FOREIGN")
    host.serve(host.pod, node_port=30080)
    await host.round()
    assert await load_mode("userspace").cleanup() == []
    assert host.rules() == []
    assert sh(f"{tool}-save -t nat").count("FOREIGN") == 2


async def test_the_mode_refuses_to_proxy_on_localhost() -> None:
    check = load_mode("userspace").check
    for address in ("127.0.0.1", "::1"):
        with pytest.raises(Unsupported, match=r"^cannot proxy on localhost$"):
            await check([Family.IPV4], Options(bind_address=address))
    with pytest.raises(Unsupported, match="not a valid port range"):
        await check([Family.IPV4], Options(port_range="9-8"))
    with pytest.raises(Unsupported, match="--udp-timeout"):
        await check([Family.IPV4], Options(udp_idle_seconds=0))
