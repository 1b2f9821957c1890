"""What a change costs, counted in a real kernel: the same in a small and in a larger cluster."""

from __future__ import annotations

import pytest

from kpctl.bench.ipvs import measure_messages
from kpctl.places.uml import UserModeKernel


@pytest.mark.uml
def test_one_endpoint_costs_three_messages_whatever_the_size(uml: UserModeKernel) -> None:
    """A cold sync says each thing once: server, real servers, two set entries, an address."""
    for services in (20, 200):
        costs = measure_messages(uml, services, 3)
        assert costs.cold_messages == services * (1 + 3 + 2 + 1)
        assert (costs.change_messages, costs.change_listings) == (3, 1)
