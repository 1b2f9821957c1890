"""Every change of mode as a flow under load, and what it costs: connections made, and those failed.

A proxy in userspace mode carries connections itself, so the one that follows it is started first
and takes over (`hand over`); any other is ended before the next one starts. Used by tests, here and
in other kernels, and by `python -m kpctl.flows.switches`, which prints the table of the guide.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import permutations, product
from pathlib import Path

import msgspec

from kpctl.apiserver.build import built, is_built
from kpctl.flows.flow import Flow, StartLoad, Step, StopLoad, SwitchMode, parse_flow
from kpctl.flows.lab_run import LabRunner
from kpctl.flows.objects import World
from kpctl.flows.text import parse_packet
from kpctl.flows.upstream import upstream_modes
from kpctl.lab.cluster import Lab
from kpctl.lab.topology import Topology, parse_topology
from kubeproxy.facts.ids import Family
from kubeproxy.version import KUBERNETES_VERSION


class Kind(msgspec.Struct, frozen=True):
    """A mode, and the variant of the iptables tools it uses if that is to be another."""

    mode: str
    variant: str = ""
    is_overlapping: bool = False
    """Is the next proxy started before this one ends?"""

    @property
    def flags(self) -> Mapping[str, str]:
        return {"iptables-variant": self.variant} if self.variant else {}

    @property
    def label(self) -> str:
        return f"{self.mode} ({self.variant})" if self.variant else self.mode


NFTABLES = Kind("nftables")
IPTABLES_NFT = Kind("iptables", "nft")
IPTABLES_LEGACY = Kind("iptables", "legacy")
IPVS = Kind("ipvs")
USERSPACE = Kind("userspace", is_overlapping=True)
UPSTREAM = (Kind("upstream-nftables"), Kind("upstream-iptables"))
HERE = (NFTABLES, IPTABLES_NFT, IPTABLES_LEGACY, USERSPACE)
"""What a kernel without IPVS can run."""

SERVICES = """
title: a change of mode under load
services:
  web:
    type: LoadBalancer
    ports: {http: "80 -> 8080, node port 31311"}
    loadBalancer: [vip-1]
    endpoints: [web-a1, web-b1]
steps: []
"""
LOADS = (
    "client-a -> web:http",
    "outside -> node-a:31311",
    "outside -> vip-1:80",
    "node-b -> web:http",
)
HOSTS = ("web-a1", "web-b1")


class Outcome(msgspec.Struct, frozen=True):
    """One change: connections that were made during it, and what was wrong, in sentences."""

    before: str
    after: str
    connections: int
    wrong: Sequence[str]


def switch_flow(before: Kind, after: Kind) -> Flow:
    """Change the mode under load from a pod, from outside, and from a node.

    The new proxy is started first if connections of the old one need it, or end with it.
    """
    flow = parse_flow(f"{before.label} to {after.label}", SERVICES)
    steps: list[Step] = [StartLoad(parse_packet(text)) for text in LOADS]
    steps.append(
        SwitchMode(
            {before.mode: after.mode},
            is_overlapping=before.is_overlapping,
            flags=after.flags,
        )
    )
    steps.append(StopLoad(HOSTS))
    return msgspec.structs.replace(flow, steps=tuple(steps), proxy=before.flags)


async def switch(
    topology: Topology, before: Kind, after: Kind, *, upstream: Path | None = None
) -> Outcome:
    """Change the mode in a lab of its own. `upstream` is the program for modes of upstream's."""
    async with AsyncExitStack() as stack:
        lab = await stack.enter_async_context(Lab(topology))
        if upstream is not None:
            await stack.enter_async_context(upstream_modes(lab, upstream))
        runner = LabRunner(lab, before.mode)
        world = World(topology, block=0, families=tuple(Family))
        wrong = list(await runner.run(switch_flow(before, after), world))
        if wrong:
            wrong += [f"{node}: {lab.proxies.log(node, lines=30)}" for node in lab.proxies.nodes]
        return Outcome(before.label, after.label, runner.connections, wrong)


def pairs(kinds: Iterable[Kind]) -> list[tuple[Kind, Kind]]:
    """All ordered pairs of different kinds."""
    return list(permutations(kinds, 2))


def table(outcomes: Iterable[Outcome]) -> str:
    """The outcomes as a table in Markdown."""
    rows = ["| from | to | new connections | failed or broken |", "|---|---|---|---|"]
    rows += [f"| {o.before} | {o.after} | {o.connections} | {len(o.wrong)} |" for o in outcomes]
    return "\n".join(rows)


async def main(place: Path) -> int:
    """Make every change that a kernel without IPVS allows, in the cluster of a topology file.

    Those from upstream's kube-proxy are made if it is built.
    """
    topology = parse_topology(place.read_text())
    changes, program = pairs(HERE), None
    if is_built("kube-proxy", KUBERNETES_VERSION):
        changes += product(UPSTREAM, HERE)
        program = built("kube-proxy")
    outcomes = [await switch(topology, *change, upstream=program) for change in changes]
    print(table(outcomes))
    failed = [each for each in outcomes if each.wrong]
    for each in failed:
        print("\n".join((f"\n{each.before} to {each.after}:", *each.wrong)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]))))
