"""Killed anywhere: after every call to the kernel, in every mode, a new process finds its way.

The process that dies takes a cluster from nothing over one state to another. Whichever call was its
last, its successor leaves exactly the rules that a proxy leaves which was never disturbed. ipvs is
in tests/ipvs, because it needs another kernel; chance histories against fakes are in each mode.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.cuts import run_cut
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.nft_kit import lines

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.kernel.conntrack.table import delete_stale
from kubeproxy.modes.base import AnyBackend
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options as IptablesOptions
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.options import Options as NftablesOptions
from kubeproxy.modes.userspace.mode import UserspaceBackend
from kubeproxy.modes.userspace.options import Options as UserspaceOptions
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.flows import FlowCleaner

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1800)]

ADDRESS = "192.0.2.10"


def nftables() -> AnyBackend:
    return NftablesBackend(Family.IPV4, NftablesOptions())


def iptables(variant: str) -> Callable[[], AnyBackend]:
    options = IptablesOptions(tools=ToolOptions(variant=variant))
    return lambda: IptablesBackend(Family.IPV4, options)


def userspace() -> AnyBackend:
    options = UserspaceOptions(port_range="40000-40099", tools=ToolOptions(variant="nft"))
    return UserspaceBackend(Family.IPV4, options)


def nft_rules() -> list[str]:
    """In an order that does not depend on which chain was made first."""
    return lines("\n".join(_output("nft", "list", "ruleset")), with_declarations=True)


def xtables_rules(variant: str) -> Callable[[], list[str]]:
    return lambda: [
        # Without counters of packets and with any proxy port for any other.
        re.sub(r"\b400\d\d\b", "PORT", re.sub(r"\[\d+:\d+\]", "", line))
        for line in _output(f"iptables-{variant}-save")
        if not line.startswith("#")
    ]


def _output(*argv: str) -> list[str]:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


MODES = {
    "nftables": (nftables, nft_rules),
    "iptables-nft": (iptables("nft"), xtables_rules("nft")),
    "iptables-legacy": (iptables("legacy"), xtables_rules("legacy")),
    "userspace": (userspace, xtables_rules("nft")),
}


class Proxy:
    """One process's engine."""

    def __init__(self, create: Callable[[], AnyBackend]) -> None:
        self.backend = create()
        clock, listener = FakeClock(), RecordedRounds()
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


@pytest.mark.parametrize("mode", MODES)
def test_a_process_killed_at_any_call_is_succeeded(mode: str) -> None:
    create, rules = MODES[mode]

    async def live() -> None:
        proxy = Proxy(create)
        await proxy.start()
        proxy.first()
        await proxy.sync()
        proxy.second()
        await proxy.sync()
        await proxy.backend.close()

    async def succeed() -> None:
        proxy = Proxy(create)
        await proxy.start()
        proxy.second()
        await proxy.sync()
        found.append(rules())
        await proxy.backend.close()

    found: list[list[str]] = []
    with scratch_namespace():
        _addresses()
        asyncio.run(succeed())
    with scratch_namespace():
        _addresses()
        places = run_cut(live)
    assert places > 10
    for place in range(places):
        with scratch_namespace():
            _addresses()
            assert run_cut(live, cut_at=place) == -1, f"place {place} was not met again"
            asyncio.run(succeed())
        assert found[-1] == found[0], f"cut at place {place} of {places}"


def _addresses() -> None:
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
