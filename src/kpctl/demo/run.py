"""`kpctl demo`: a small cluster, live traffic, a failure, and claims that are checked.

This is the first command a new user runs. Nothing in it is staged: namespaces, packets, the proxy
and the kernel are real, every claim at the end is checked against what was counted, and the exit
code is 0 only if all of them hold. The demo ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live

from kpctl.demo.view import (
    Claim,
    Line,
    claims_view,
    cluster_view,
    look_view,
    reasons_view,
    services_view,
    traffic_view,
)
from kpctl.flows.flow import ServiceText, parse_flow
from kpctl.flows.objects import (
    Manifest,
    World,
    node_manifest,
    service_cidr_manifest,
    service_manifest,
    slice_manifests,
)
from kpctl.flows.spread import unevenness
from kpctl.flows.text import EndpointText
from kpctl.lab.cluster import Lab
from kpctl.lab.pace import scaled
from kpctl.lab.probe import Target
from kpctl.lab.reaper import lab_namespaces
from kpctl.lab.topology import Topology, parse_topology
from kpctl.lab.traffic import Route, Traffic
from kpctl.look.output import wrapped
from kpctl.report.explain import explain, is_served
from kpctl.report.text import explanation_text
from kpctl.snapshot.live import read_live
from kpctl.snapshot.target import parse_target
from kubeproxy.facts.ids import Family, Protocol, ServiceName

TOPOLOGY = """
nodes:
  node-1: {zone: zone-1, pods: [shop, web-1, web-2]}
  node-2: {zone: zone-2, pods: [web-3]}
clients:
  outside: node-2
"""
OBJECTS = """
title: the demo
services:
  web:
    type: NodePort
    ports: {http: "80 -> 8080, node port 30080"}
    endpoints: [web-1, web-2, web-3]
steps: []
"""
FAILING = "web-2"
_PORT = 8080
PHASE_SECONDS = 4.0
_FRAME_SECONDS = 0.1
_ENOUGH = 50
"""Connections of a route by which one of three endpoints is met, but for one time in 10^8."""
_MOST_SECONDS = 60.0
"""So long is waited for them, where a machine is so slow that a phase does not bring as many."""

LOOK: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "nftables": (("nft", "list", "table", "ip", "kube-proxy"),),
    "iptables": (("iptables-save", "-t", "nat"),),
    "ipvs": (("ipvsadm", "-Ln"),),
    "userspace": (("iptables-save", "-t", "nat"),),
}
"""How to look at a mode's rules by hand."""


def run_demo(
    mode: str, console: Console | None = None, *, phase_seconds: float = PHASE_SECONDS
) -> int:
    """Show the demo. Return 0 if every claim holds, else 1."""
    demo = Demo(mode, console or Console(), phase_seconds)
    return asyncio.run(demo.run())


class Demo:
    """One performance."""

    def __init__(self, mode: str, console: Console, phase_seconds: float) -> None:
        self._mode = mode
        self._seconds = phase_seconds
        self._console = console
        self._topology: Topology = parse_topology(TOPOLOGY)
        self._world = World(self._topology, block=0, families=tuple(Family), namespace="demo")
        (self._web,) = parse_flow("demo", OBJECTS).services
        self._hosts = [endpoint.host for endpoint in self._web.endpoints]
        self._claims: list[Claim] = []

    async def run(self) -> int:
        console = self._console
        console.rule(f"[bold]kube-proxy, {self._mode} mode, in a cluster of network namespaces")
        began = time.monotonic()
        async with Lab(self._topology) as lab:
            prefix = lab.namespaces.name("")
            await self._set_up(lab)
            console.print(f"[dim]set up in {time.monotonic() - began:.1f} s[/]\n")
            console.print(cluster_view(self._topology))
            console.print(services_view([self._web], self._world))
            await self._perform(lab)
            self._show_rules(lab)
            await self._show_reasons(lab)
        left = lab_namespaces(prefix)
        self._claim("everything is removed again", not left, f"{len(left)} namespaces left")
        console.print(claims_view(self._claims))
        return 0 if all(claim.holds for claim in self._claims) else 1

    def _claim(self, text: str, holds: bool, detail: str = "") -> None:
        self._claims.append(Claim(text, holds, detail))

    # --- the cluster ---

    async def _set_up(self, lab: Lab) -> None:
        for host in self._hosts:
            lab.listen(host, Protocol.TCP, _PORT)
        nodes = [node_manifest(node) for node in self._topology.nodes]
        lab.proxies.write("cluster", [*nodes, service_cidr_manifest()])
        lab.proxies.write("web", self._objects(self._web))
        await lab.proxies.start(self._mode, {})

    def _objects(self, service: ServiceText) -> Sequence[Manifest]:
        return [service_manifest(service, self._world), *slice_manifests(service, self._world)]

    def _routes(self) -> Sequence[Route]:
        node = self._topology.node("node-2").addresses
        tcp = Protocol.TCP
        return [
            Route(
                f"shop → web ({family.value})",
                Target("shop", self._world.cluster_ip("web", family), 80, family, tcp),
            )
            for family in Family
        ] + [
            Route(
                "outside → node-2:30080",
                Target("outside", node.ipv4, 30080, Family.IPV4, tcp),
            )
        ]

    # --- the performance ---

    async def _perform(self, lab: Lab) -> None:
        traffic = [Traffic(lab.prober, route) for route in self._routes()]
        try:
            await self._calm(traffic)
            await self._failure(lab, traffic)
            await self._recovery(lab, traffic)
        finally:
            await asyncio.gather(*(each.stop() for each in traffic))

    async def _calm(self, traffic: Sequence[Traffic]) -> None:
        began = time.time()
        await self._watch("live traffic, spreading over three endpoints", traffic, self._seconds)
        failed = sum(each.failures(since=began) for each in traffic)
        total = sum(sum(each.counts(since=began).values()) for each in traffic)
        self._claim("every connection was answered", not failed, f"{total} connections")
        uneven = [unevenness(each.counts(since=began), self._hosts) for each in traffic]
        self._claim("the endpoints share the traffic evenly", not any(uneven), "".join(uneven))

    async def _failure(self, lab: Lab, traffic: Sequence[Traffic]) -> None:
        self._console.print(
            f"\n[bold red]{FAILING} fails[/]: its server is gone, not ready any more"
        )
        lab.hang_up(FAILING, Protocol.TCP, _PORT)
        took, settled = await self._change(lab, is_ready=False)
        await self._watch(f"without {FAILING}", traffic, self._seconds, since=settled)
        late = sum(each.failures(since=settled) for each in traffic)
        met = sum(each.counts(since=settled)[FAILING] for each in traffic)
        early = sum(each.failures(until=settled) for each in traffic)
        self._console.print(
            f"[dim]{early} connections still met {FAILING} before that, and failed[/]"
        )
        text = f"{took * 1000:.0f} ms after the failure traffic had moved on"
        self._claim(text, not late and not met, f"{met} met {FAILING} later, {late} failed")

    async def _recovery(self, lab: Lab, traffic: Sequence[Traffic]) -> None:
        self._console.print(f"\n[bold green]{FAILING} is back[/]")
        lab.listen(FAILING, Protocol.TCP, _PORT)
        took, settled = await self._change(lab, is_ready=True)
        await self._watch(f"with {FAILING} again", traffic, self._seconds, since=settled)
        failed = sum(each.failures(since=settled) for each in traffic)
        is_met = all(each.counts(since=settled)[FAILING] for each in traffic)
        text = (
            f"{took * 1000:.0f} ms after its return {FAILING} served again, and no client noticed"
        )
        self._claim(text, is_met and not failed, f"{failed} failed")

    async def _change(self, lab: Lab, *, is_ready: bool) -> tuple[float, float]:
        """Change the readiness of the failing endpoint and wait for both nodes.

        Returns the seconds until both kernels had it, and the time when that was known.
        """
        endpoints = tuple(
            EndpointText(host, is_ready=is_ready or host != FAILING) for host in self._hosts
        )
        service = ServiceText(
            self._web.name, self._web.ports, endpoints=endpoints, type=self._web.type
        )
        changed = time.time()
        lab.proxies.write("web", self._objects(service))
        await lab.proxies.settle(since=changed)
        synced = [await lab.proxies.last_sync(node) for node in lab.proxies.nodes]
        last = max(moment for families in synced for moment in families.values())
        took = last - changed
        shown = f"[bold]{took * 1000:.0f} ms[/]"
        self._console.print(f"[dim]from the change to the kernel of both nodes:[/] {shown}")
        return took, time.time()

    # --- what is shown ---

    async def _watch(
        self, title: str, traffic: Sequence[Traffic], seconds: float, *, since: float | None = None
    ) -> None:
        began = time.time() if since is None else since
        if not self._console.is_terminal:
            await asyncio.sleep(seconds)
            await _until_enough(traffic, began)
            self._console.print(traffic_view(title, _lines(traffic, began), self._hosts))
            return
        with Live(console=self._console, auto_refresh=False) as live:
            while time.time() < began + seconds:
                live.update(traffic_view(title, _lines(traffic, began), self._hosts), refresh=True)
                await asyncio.sleep(_FRAME_SECONDS)
        await _until_enough(traffic, began)

    def _show_rules(self, lab: Lab) -> None:
        commands = [lab.namespaces.command("node-1", argv) for argv in LOOK.get(self._mode, ())]
        excerpt: list[str] = []
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            lines = done.stdout.splitlines()
            excerpt += [line.strip() for line in lines if "web" in line][:8]
        self._console.print()
        self._console.print(look_view([" ".join(command) for command in commands], excerpt))
        self._claim("the rules can be read with the usual tools", bool(excerpt))

    async def _show_reasons(self, lab: Lab) -> None:
        """Ask the proxy of node-1 about the Service, as `kpctl explain` does there."""
        name = ServiceName(self._world.namespace, self._web.name)
        client = self._topology.host("shop").addresses.ipv4
        snapshot = await asyncio.to_thread(read_live, lab.proxies.socket("node-1"), name)
        found = explain(snapshot, parse_target(str(name)), client)
        lines = [
            line
            for indent, text in explanation_text(found)
            for line in wrapped(text, self._console.width - 4, indent) or [""]
        ]
        self._console.print()
        self._console.print(reasons_view(f"kpctl explain {name} --from {client}", lines))
        used = [each.is_used for s in found.services for p in s.ports for each in p.endpoints]
        holds = is_served(found) and used == [True] * len(self._hosts)
        self._claim("the proxy explains every endpoint", holds, f"{len(used)} endpoints")


async def _until_enough(traffic: Sequence[Traffic], since: float) -> None:
    """Wait until each route has had so many connections that what is claimed of them can hold."""
    deadline = time.monotonic() + scaled(_MOST_SECONDS)
    while time.monotonic() < deadline:
        if all(sum(each.counts(since=since).values()) >= _ENOUGH for each in traffic):
            return
        await asyncio.sleep(_FRAME_SECONDS)


def _lines(traffic: Sequence[Traffic], since: float) -> Sequence[Line]:
    elapsed = max(time.time() - since, 0.001)
    return [
        Line(
            label=each.route.label,
            counts=each.counts(since=since),
            failed=each.failures(since=since),
            rate=sum(each.counts(since=since).values()) / elapsed,
        )
        for each in traffic
    ]
