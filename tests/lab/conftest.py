"""Fixtures of the lab's own tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kpctl.lab.namespaces import Namespaces
from kpctl.lab.topology import Topology, parse_topology

TWO_NODES = """
nodes:
  node-a: {zone: zone-a, pods: [web-1, web-2]}
  node-b: {zone: zone-b, pods: [web-3]}
clients:
  outside: node-a
  outside-b: node-b
"""


@pytest.fixture
def topology() -> Topology:
    return parse_topology(TWO_NODES)


@pytest.fixture
def namespaces(topology: Topology) -> Iterator[Namespaces]:
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    made = Namespaces(topology)
    yield made
    made.close()
