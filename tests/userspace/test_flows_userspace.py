"""The flow corpus in userspace mode, with the real program and the real kernel.

What a proxy in user space cannot do is left out here and nowhere else, each with its reason:
SCTP; the client's address (the pod sees the node that carried the connection); and flows in which
connections or affinity outlive the proxy that carries and remembers them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from kpctl.flows.flow import (
    OTHERWISE,
    Apply,
    Check,
    Flow,
    Packets,
    ServiceText,
    Step,
    SwitchMode,
)
from kpctl.flows.lab_run import LabRunner
from kpctl.flows.library import load_corpus
from kpctl.flows.objects import World
from kpctl.flows.run import families_of
from kpctl.flows.text import Expected
from kpctl.lab.cluster import Lab
from kpctl.lab.topology import Topology, parse_topology
from kubeproxy.facts.ids import Protocol

pytestmark = pytest.mark.kernel

FLOWS = Path(__file__).parent.parent / "flows"
NOT_OURS = {
    "04-node-port-localhost-ipv6": "node ports are served at ::1 too: nothing is routed there",
    "08-affinity-restart": "affinity is remembered by the process that is restarted",
    "11-restart": "open connections are carried by the process that is restarted",
}


def without_sctp(service: ServiceText) -> ServiceText:
    ports = tuple(port for port in service.ports if port.protocol is not Protocol.SCTP)
    return replace(service, ports=ports)


def unseen(expected: Expected) -> Expected:
    """The endpoint sees the proxy, not the client."""
    answers = tuple(replace(a, seen="") for a in expected.answers)
    return replace(expected, answers=answers)


def adapted(step: Step, sctp_ports: frozenset[str]) -> Step:
    if isinstance(step, Apply):
        return Apply(tuple(map(without_sctp, step.services)))
    if not isinstance(step, Packets):
        return step
    kept = [
        Check(check.packet, {OTHERWISE: unseen(check.expected("userspace"))})
        for check in step.checks
        if check.packet.protocol is not Protocol.SCTP and check.packet.port not in sctp_ports
    ]
    return Packets(tuple(kept))


def for_userspace(flow: Flow) -> Flow:
    sctp = frozenset(
        port.name for s in flow.services for port in s.ports if port.protocol is Protocol.SCTP
    )
    return replace(
        flow,
        services=tuple(map(without_sctp, flow.services)),
        steps=tuple(adapted(step, sctp) for step in flow.steps),
    )


def is_ours(flow: Flow) -> bool:
    switches = [step.other for step in flow.steps if isinstance(step, SwitchMode)]
    return (
        flow.name not in NOT_OURS
        and flow.runs_in("userspace")
        and all("userspace" in other for other in switches)
    )


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
        return list(self._loop.run(self._runner.run(for_userspace(flow), world)))

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
