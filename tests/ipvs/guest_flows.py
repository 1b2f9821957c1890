"""Runs inside the user-mode kernel: flows of the corpus, with the real program in ipvs mode."""

from __future__ import annotations

import asyncio
import tempfile
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from tests.support.waiting import until

from kpctl.flows.flow import load_flow
from kpctl.flows.lab_run import LabRunner
from kpctl.flows.library import find_flow
from kpctl.flows.objects import World
from kpctl.flows.run import families_of
from kpctl.flows.switches import Kind, switch
from kpctl.lab.cluster import Lab
from kpctl.lab.proxy import Proxies
from kpctl.lab.topology import parse_topology
from kubeproxy.kernel.modules import load_module

DUAL = "dual"
SYNCED = "SyncProxyRules complete"


class PatientProxies(Proxies):
    """Waits for the first sync by the log: the health port counts the start as one, and in this
    slow kernel that is a second too early."""

    async def start(self, mode: str, flags: Mapping[str, str]) -> None:
        before = {node: self.log(node).count(SYNCED) for node in self.nodes}
        await super().start(mode, flags)
        for node in self.nodes:
            await until(partial(self.has_synced, node, before[node] + 2), partial(self.log, node))

    def has_synced(self, node: str, times: int) -> bool:
        return self.log(node).count(SYNCED) >= times


def run_flows(folder: str, names: list[str]) -> object:
    """For each of these flows what is wrong, in sentences."""
    return asyncio.run(_run_flows(Path(folder), names))


async def _run_flows(folder: Path, names: list[str]) -> dict[str, list[str]]:
    # The physdev match brings it along later; the lab must know it to keep it out of the way.
    assert await load_module("br_netfilter") == ""
    topology = parse_topology((folder / "topology.yaml").read_text())
    results: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        async with Lab(topology) as lab:
            lab.proxies = PatientProxies(lab.namespaces, Path(directory))
            runner = LabRunner(lab, "ipvs")
            for block, name in enumerate(names):
                flow = load_flow(find_flow(name))
                variant = DUAL if DUAL in flow.variants else flow.variants[0]
                world = World(topology, block=block, families=families_of(variant))
                try:
                    results[name] = list(await runner.run(flow, world))
                except Exception:
                    results[name] = [traceback.format_exc()]
    return results


def switch_modes(folder: str, before: str, after: str, upstream: str = "") -> object:
    """One change of mode under load: the connections made, and what is wrong, in sentences.

    `upstream` is the program for a mode of upstream's.
    """
    program = Path(upstream) if upstream else None
    return asyncio.run(_switch_modes(Path(folder), Kind(before), Kind(after), program))


async def _switch_modes(
    folder: Path, before: Kind, after: Kind, upstream: Path | None
) -> list[object]:
    assert await load_module("br_netfilter") == ""
    topology = parse_topology((folder / "topology.yaml").read_text())
    before = replace(before, is_overlapping=before.mode == "userspace")
    outcome = await switch(topology, before, after, upstream=upstream)
    return [outcome.connections, list(outcome.wrong)]
