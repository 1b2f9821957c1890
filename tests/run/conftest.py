"""The network namespace in which tests run the real programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.host import Host

from kpctl.places.network import PrivateNetwork


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    if os.geteuid() != 0:
        pytest.skip("making a network namespace needs root")
    network = PrivateNetwork()
    made = Host(network, tmp_path)
    try:
        yield made
    finally:
        made.close()
        network.close()
