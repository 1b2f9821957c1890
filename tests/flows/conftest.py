"""The corpus, and the cluster it runs in."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpctl.lab.topology import Topology, parse_topology

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def topology() -> Topology:
    return parse_topology((HERE / "topology.yaml").read_text())
