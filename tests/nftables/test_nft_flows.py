"""Every flow of the corpus holds for what this mode renders, traced through its own rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.lab.topology import Topology, parse_topology
from kubeproxy.testing.flow import Flow, load_flow
from kubeproxy.testing.flow_objects import World
from kubeproxy.testing.flow_run import families_of, run_traced
from kubeproxy.testing.nft_tracer import trace_plans

_FLOWS = Path(__file__).parents[1] / "flows"
CORPUS = [load_flow(path) for path in sorted((_FLOWS / "corpus").glob("*.yaml"))]
RUNS = [
    pytest.param(flow, variant, id=f"{flow.name}-{variant}")
    for flow in CORPUS
    for variant in flow.variants
    if flow.runs_in("nftables")
]


@pytest.fixture(scope="module")
def topology() -> Topology:
    return parse_topology((_FLOWS / "topology.yaml").read_text())


@pytest.mark.parametrize(("flow", "variant"), RUNS)
def test_flow_holds_for_the_rendered_rules(flow: Flow, variant: str, topology: Topology) -> None:
    world = World(topology, block=CORPUS.index(flow), families=families_of(variant))
    assert run_traced(flow, world, trace_plans, mode="nftables") == []
