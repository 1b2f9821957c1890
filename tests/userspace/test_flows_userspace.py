"""The flow corpus in userspace mode, with the real program and the real kernel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.userspace_flows import for_userspace, is_ours

from kpctl.flows.flow import Flow
from kpctl.flows.lab_run import LabRunner
from kpctl.flows.library import load_corpus
from kpctl.flows.objects import World
from kpctl.flows.run import families_of
from kpctl.lab.cluster import Lab
from kpctl.lab.topology import Topology, parse_topology

pytestmark = pytest.mark.kernel

FLOWS = Path(__file__).parent.parent / "flows"
CORPUS = load_corpus()
# Both families at once where the flow allows it: each is an instance of its own anyway.
RUNS = sorted(
    ((flow, flow.variants[-1]) for flow in CORPUS if is_ours(flow)),
    key=lambda run: (sorted(run[0].proxy.items()), run[0].name),
)


class Bench:
    """One lab with its event loop for all flows."""

    def __init__(self, topology: Topology) -> None:
        self._loop = asyncio.Runner()
        self._topology = topology
        self._lab = self._loop.run(self._open())
        self._runner = LabRunner(self._lab, "userspace")

    async def _open(self) -> Lab:
        return Lab(self._topology)

    def run(self, flow: Flow, variant: str) -> list[str]:
        block = [each.name for each in CORPUS].index(flow.name)
        world = World(self._topology, block=block, families=families_of(variant))
        wrong = list(self._loop.run(self._runner.run(for_userspace(flow), world)))
        for node in self._lab.proxies.nodes if wrong else ():
            print(f"--- {node}\n{self._lab.proxies.log(node, lines=40)}")
        return wrong

    def close(self) -> None:
        self._loop.run(self._lab.close())
        self._loop.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")
    made = Bench(parse_topology((FLOWS / "topology.yaml").read_text()))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("flow", "variant"), [pytest.param(f, v, id=f"{f.name}-{v}") for f, v in RUNS]
)
def test_flow_holds_in_userspace_mode(bench: Bench, flow: Flow, variant: str) -> None:
    assert bench.run(flow, variant) == []
