"""Every flow of the corpus holds for the plans, before any mode renders them."""

from __future__ import annotations

from functools import partial

import pytest

from kpctl.flows.flow import Flow
from kpctl.flows.library import load_corpus
from kpctl.flows.objects import World
from kpctl.flows.run import families_of, run_traced
from kpctl.flows.trace import TRAITS, PlanTracer, traits_of
from kpctl.lab.topology import Topology

CORPUS = load_corpus()
RUNS = [
    pytest.param(flow, variant, mode, id=f"{flow.name}-{variant}-{mode}")
    for flow in CORPUS
    for variant in flow.variants
    for mode in TRAITS
    if flow.runs_in(mode)
]


@pytest.mark.parametrize(("flow", "variant", "mode"), RUNS)
def test_flow_holds_for_the_plan(flow: Flow, variant: str, mode: str, topology: Topology) -> None:
    world = World(topology, block=CORPUS.index(flow), families=families_of(variant))
    make_tracer = partial(PlanTracer, traits=traits_of(mode, flow.proxy))
    assert run_traced(flow, world, make_tracer, mode=mode) == []
