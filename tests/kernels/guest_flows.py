"""Runs inside a guest kernel: flows of the corpus, with the real program in one mode."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from tests.support.userspace_flows import for_userspace

from kpctl.flows.flow import VARIANTS, Flow, load_flow
from kpctl.flows.lab_run import LabRunner, as_it_is
from kpctl.flows.library import find_flow
from kpctl.flows.objects import World
from kpctl.flows.ruleset import Ruleset
from kpctl.flows.run import families_of
from kpctl.flows.switches import Kind, switch
from kpctl.lab.cluster import Lab
from kpctl.lab.pace import scaled, slowness
from kpctl.lab.sockets import has_kernel_sctp
from kpctl.lab.topology import Topology, parse_topology
from kubeproxy.kernel.modules import load_module

# SCTP sockets are real where the module is loaded. The physdev match of iptables brings
# br_netfilter along later; the lab must know it to keep it out of the way.
MODULES = ("sctp", "br_netfilter")
TOPOLOGY = Path(__file__).parents[1] / "flows/topology.yaml"
FLUSHED = "-w -t nat -F KUBE-SERVICES"
DAMAGE = {
    "nftables": ("nft delete table ip kube-proxy", "nft delete table ip6 kube-proxy"),
    "iptables": (f"iptables {FLUSHED}", f"ip6tables {FLUSHED}"),
    "ipvs": (f"iptables {FLUSHED}", f"ip6tables {FLUSHED}"),
    "userspace": (
        "iptables -w -t nat -F KUBE-PORTALS-CONTAINER",
        "ip6tables -t nat -F KUBE-PORTALS-CONTAINER",
    ),
}
"""What another program does to the rules of each mode."""
COME_BACK_SECONDS = 60.0


def run_flows(mode: str, runs: list[tuple[str, str]]) -> object:
    """For each flow and variant what is wrong, in sentences."""
    return asyncio.run(_in_lab(mode, [(_flow(mode, name), variant) for name, variant in runs]))


def switch_modes(before: str, after: str, upstream: str = "") -> object:
    """One change of mode under load: the connections made, and what is wrong, in sentences.

    `upstream` is the program for a mode of upstream's.
    """
    kinds = Kind(before, is_overlapping=before == "userspace"), Kind(after)
    return asyncio.run(_switch_modes(*kinds, Path(upstream) if upstream else None))


async def _switch_modes(before: Kind, after: Kind, upstream: Path | None) -> list[object]:
    for module in MODULES:
        await load_module(module)
    topology = parse_topology(TOPOLOGY.read_text())
    outcome = await switch(topology, before, after, upstream=upstream)
    print(before.label, after.label, outcome.connections, outcome.wrong or "holds", flush=True)
    return [outcome.connections, list(outcome.wrong)]


def drift(mode: str) -> object:
    """What is wrong with a flow whose rules another program removes before packets are sent."""
    return asyncio.run(_in_lab(mode, [(_flow(mode, "01-cluster-ip"), "dual")], damage=DAMAGE[mode]))


async def _in_lab(
    mode: str, runs: list[tuple[Flow, str]], *, damage: Sequence[str] = ()
) -> dict[str, object]:
    for module in MODULES:
        await load_module(module)
    topology = parse_topology(TOPOLOGY.read_text())
    wrong: dict[str, list[str]] = {}
    seconds: dict[str, float] = {}
    async with Lab(topology) as lab:
        settings = (partial(_damaged, lab, damage),) if damage else (as_it_is,)
        runner = LabRunner(lab, mode, settings)
        for number, (flow, variant) in enumerate(runs):
            began = time.monotonic()
            key = f"{flow.name}-{variant}"
            wrong[key] = await _one(lab, runner, flow, _world(topology, number, variant))
            seconds[key] = round(time.monotonic() - began, 1)
            print(mode, key, seconds[key], wrong[key] or "holds", flush=True)
    return {
        "wrong": wrong,
        "seconds": seconds,
        "kernel_sctp": has_kernel_sctp(),
        "slowness": slowness(),
    }


@contextlib.asynccontextmanager
async def _damaged(lab: Lab, commands: Sequence[str]) -> AsyncIterator[Sequence[str]]:
    """Remove rules on every node, and wait until they are back; the proxies get no notice."""
    wrong = []
    for node in lab.proxies.nodes:
        rules = Ruleset(lab.namespaces, node)
        before = rules.leftovers()
        for command in commands:
            subprocess.run(lab.namespaces.command(node, command.split()), check=True)
        deadline = time.monotonic() + scaled(COME_BACK_SECONDS)
        while rules.leftovers() != before and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        missing = sorted(set(before) - set(rules.leftovers()))
        wrong += [f"{len(missing)} rules did not come back: {missing[0]}"] if missing else []
    yield wrong


async def _one(lab: Lab, runner: LabRunner, flow: Flow, world: World) -> list[str]:
    try:
        wrong = list(await runner.run(flow, world))
    except Exception:
        wrong = [traceback.format_exc()]
    logs = [f"{node}: {lab.proxies.log(node, lines=10)}" for node in lab.proxies.nodes]
    return [*wrong, *logs] if wrong else []


def _world(topology: Topology, number: int, variant: str) -> World:
    # Each run has cluster IPs of its own: the kernel still tracks flows of the runs before.
    block = number * len(VARIANTS) + VARIANTS.index(variant)
    return World(topology, block=block, families=families_of(variant))


def _flow(mode: str, name: str) -> Flow:
    flow = load_flow(find_flow(name))
    return for_userspace(flow) if mode == "userspace" else flow
