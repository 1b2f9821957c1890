"""Every flow of the corpus holds for what a mode renders, traced through the mode's own rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.support import iptables_tracer, nft_tracer

from kpctl.flows.flow import Flow
from kpctl.flows.library import load_corpus
from kpctl.flows.objects import World
from kpctl.flows.run import MakeTracer, families_of, run_traced
from kpctl.lab.topology import Topology
from kubeproxy.modes.iptables.options import Options

CORPUS = load_corpus()


def _iptables(flow: Flow) -> MakeTracer:
    localhost = flow.proxy.get("iptables-localhost-nodeports") != "false"
    options = Options(localhost_node_ports=localhost)
    return partial(iptables_tracer.trace_plans, options=options)


TRACERS: dict[str, Callable[[Flow], MakeTracer]] = {
    "iptables": _iptables,
    "nftables": lambda _: nft_tracer.trace_plans,
}
RUNS = [
    pytest.param(mode, flow, variant, id=f"{mode}-{flow.name}-{variant}")
    for mode in TRACERS
    for flow in CORPUS
    if flow.runs_in(mode)
    for variant in flow.variants
]


@pytest.mark.parametrize(("mode", "flow", "variant"), RUNS)
def test_flow_holds_for_the_rendered_rules(
    mode: str, flow: Flow, variant: str, topology: Topology
) -> None:
    world = World(topology, block=CORPUS.index(flow), families=families_of(variant))
    assert run_traced(flow, world, TRACERS[mode](flow), mode=mode) == []
