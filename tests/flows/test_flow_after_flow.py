"""Flows that follow each other in one lab."""

from __future__ import annotations

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kpctl.flows.flow import parse_flow
from kpctl.flows.lab_run import LabRunner
from kpctl.flows.objects import World
from kpctl.lab.cluster import Lab
from kpctl.lab.probe import Fate, Target
from kpctl.lab.topology import VIRTUAL_CIDR, Topology, nth_address
from kubeproxy.facts.ids import Family, Protocol

pytestmark = pytest.mark.kernel

NOTHING = "title: No Service\nservices: {}\nsteps: []\n"
BALANCED = """
title: A load balancer address that nothing served before
services:
  web:
    type: LoadBalancer
    ports: {http: "80 -> 8080"}
    loadBalancer: [vip-1]
    endpoints: [web-a1]
steps: []
"""


async def test_a_port_that_met_no_rule_in_one_flow_is_served_in_the_next(
    topology: Topology,
) -> None:
    """What the kernel tracks of a flow does not reach into the next."""
    world = World(topology, block=0, families=(Family.IPV4,))
    vip = nth_address(VIRTUAL_CIDR, 1).ipv4
    target = Target("outside", vip, 80, Family.IPV4, Protocol.TCP, source_port=40000)
    async with Lab(topology) as lab:
        runner = LabRunner(lab, "nftables")
        assert await runner.run(parse_flow("nothing", NOTHING), world) == []
        assert (await lab.prober.probe(target)).fate is Fate.UNREACHABLE
        assert await runner.run(parse_flow("balanced", BALANCED), world) == []
        assert (await lab.prober.probe(target, timeout_seconds=LIMIT_SECONDS)).fate is Fate.ANSWERED
