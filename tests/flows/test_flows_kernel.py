"""Every flow of the corpus, with the real program and the real kernel, per mode and family."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from tests.support.variants import variants

from kpctl.flows.flow import VARIANTS, Flow, SwitchMode
from kpctl.flows.lab_run import LabRunner
from kpctl.flows.library import load_corpus
from kpctl.flows.objects import World
from kpctl.flows.run import families_of
from kpctl.lab.cluster import Lab
from kpctl.lab.topology import Topology
from kubeproxy.modes.registry import mode_names

pytestmark = pytest.mark.kernel

CORPUS = load_corpus()
MODES = tuple(mode for mode in ("nftables", "iptables") if mode in mode_names())


def possible(flow: Flow, mode: str) -> bool:
    """Does the mode claim this flow, and is every mode it switches to there?"""
    switches = [step.other for step in flow.steps if isinstance(step, SwitchMode)]
    return flow.runs_in(mode) and all(other.get(mode) in MODES for other in switches)


# Flows that want the same flags stand together, so that proxies are seldom restarted.
RUNS = sorted(
    (
        (mode, flow, variant)
        for mode in MODES
        for flow in CORPUS
        for variant in variants(flow)
        if possible(flow, mode)
    ),
    key=lambda run: (run[0], sorted(run[1].proxy.items()), run[1].name),
)


class LabSession:
    """A lab with its event loop, kept for all flows of one mode."""

    def __init__(self, topology: Topology, mode: str) -> None:
        self._loop = asyncio.Runner()
        self._topology = topology
        self._lab = self._loop.run(self._open())
        self._runner = LabRunner(self._lab, mode)

    async def _open(self) -> Lab:
        return Lab(self._topology)

    def run(self, flow: Flow, variant: str) -> list[str]:
        families = families_of(variant)
        # Each run has cluster IPs of its own: the kernel still tracks flows of the runs before.
        block = CORPUS.index(flow) * len(VARIANTS) + VARIANTS.index(variant)
        world = World(self._topology, block=block, families=families)
        wrong = list(self._loop.run(self._runner.run(flow, world)))
        for node in self._lab.proxies.nodes if wrong else ():
            print(f"--- {node}\n{self._lab.proxies.log(node, lines=40)}")
        return wrong

    def close(self) -> None:
        self._loop.run(self._lab.close())
        self._loop.close()


class LabSessions:
    """The lab of the mode under test. The one before is closed first."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._open: tuple[str, LabSession] | None = None

    def of(self, mode: str) -> LabSession:
        if self._open is None or self._open[0] != mode:
            self.close()
            self._open = (mode, LabSession(self._topology, mode))
        return self._open[1]

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


@pytest.fixture(scope="module")
def sessions(topology: Topology) -> Iterator[LabSessions]:
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")
    made = LabSessions(topology)
    yield made
    made.close()


def runs(*, with_flags: bool) -> list[pytest.ParameterSet]:
    """Two tests, so that a parallel run can share them out and no proxy is restarted more often."""
    return [
        pytest.param(mode, flow, variant, id=f"{mode}-{flow.name}-{variant}")
        for mode, flow, variant in RUNS
        if bool(flow.proxy) is with_flags
    ]


@pytest.mark.parametrize(("mode", "flow", "variant"), runs(with_flags=False))
def test_flow_holds_in_the_kernel(
    sessions: LabSessions, mode: str, flow: Flow, variant: str
) -> None:
    assert sessions.of(mode).run(flow, variant) == []


@pytest.mark.parametrize(("mode", "flow", "variant"), runs(with_flags=True))
def test_flow_with_flags_holds_in_the_kernel(
    sessions: LabSessions, mode: str, flow: Flow, variant: str
) -> None:
    assert sessions.of(mode).run(flow, variant) == []
