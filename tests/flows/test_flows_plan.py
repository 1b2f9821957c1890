"""Every flow of the corpus holds for the plans, before any mode renders them."""

from __future__ import annotations

from functools import partial

import pytest
from tests.support.userspace_flows import NOT_IN_USERSPACE, for_userspace

from kpctl.flows.flow import Flow
from kpctl.flows.library import load_corpus
from kpctl.flows.objects import World
from kpctl.flows.run import families_of, run_traced
from kpctl.lab.topology import Topology
from kpctl.trace.plan import TRAITS, PlanTracer, traits_of

CORPUS = load_corpus()
RUNS = [
    pytest.param(flow, variant, mode, id=f"{flow.name}-{variant}-{mode}")
    for flow in CORPUS
    for variant in flow.variants
    for mode in TRAITS
    if flow.runs_in(mode) and (mode != "userspace" or flow.name not in NOT_IN_USERSPACE)
]


@pytest.mark.parametrize(("flow", "variant", "mode"), RUNS)
def test_flow_holds_for_the_plan(flow: Flow, variant: str, mode: str, topology: Topology) -> None:
    world = World(topology, block=CORPUS.index(flow), families=families_of(variant))
    localhost = flow.proxy.get("iptables-localhost-nodeports") != "false"
    traits = traits_of(mode, localhost_node_ports=localhost)
    flow = for_userspace(flow) if mode == "userspace" else flow
    assert run_traced(flow, world, partial(PlanTracer, traits=traits), mode=mode) == []
