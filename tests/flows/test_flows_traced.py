"""Every flow of the corpus holds for what a mode renders, traced through the mode's own rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.support.userspace_flows import NOT_IN_USERSPACE, for_userspace

from kpctl.flows.flow import Flow
from kpctl.flows.library import load_corpus
from kpctl.flows.objects import World
from kpctl.flows.run import MakeTracer, families_of, run_traced
from kpctl.lab.topology import Topology
from kpctl.trace.tracers import trace_plans
from kubeproxy.modes.iptables import options as iptables
from kubeproxy.modes.registry import mode_names
from kubeproxy.modes.userspace import options as userspace

CORPUS = load_corpus()


OPTIONS: dict[str, Callable[[bool], object]] = {
    "iptables": lambda localhost: iptables.Options(localhost_node_ports=localhost),
    "userspace": lambda localhost: userspace.Options(localhost_node_ports=localhost),
}


def tracer_for(mode: str, flow: Flow) -> MakeTracer:
    localhost = flow.proxy.get("iptables-localhost-nodeports") != "false"
    options = OPTIONS[mode](localhost) if mode in OPTIONS else None
    return partial(trace_plans, mode=mode, options=options)


RUNS = [
    pytest.param(mode, flow, variant, id=f"{mode}-{flow.name}-{variant}")
    for mode in mode_names()
    for flow in CORPUS
    if flow.runs_in(mode) and (mode != "userspace" or flow.name not in NOT_IN_USERSPACE)
    for variant in flow.variants
]


@pytest.mark.parametrize(("mode", "flow", "variant"), RUNS)
def test_flow_holds_for_the_rendered_rules(
    mode: str, flow: Flow, variant: str, topology: Topology
) -> None:
    world = World(topology, block=CORPUS.index(flow), families=families_of(variant))
    held = for_userspace(flow) if mode == "userspace" else flow
    assert run_traced(held, world, tracer_for(mode, flow), mode=mode) == []
