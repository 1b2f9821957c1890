"""Modes after each other, golden states, drift and restarts, in kernels that operators run."""

from __future__ import annotations

from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from tests.ipvs import guest_golden
from tests.support.ipvs_golden import case_names, load_case
from tests.support.ipvs_states import assert_states

from kpctl.places.qemu import EmulatedKernel

GUEST = Path(__file__).with_name("guest_flows.py")
FEATURES = Path(__file__).with_name("guest_features.py")
GOLDEN = Path(__file__).parents[1] / "golden/ipvs"
MODES = ("nftables", "iptables", "ipvs", "userspace")
HOUR = 3600.0

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(2 * HOUR)]

TOUR = (
    *("nftables", "iptables", "nftables", "ipvs", "nftables", "userspace", "iptables"),
    *("ipvs", "iptables", "userspace", "ipvs", "userspace", "nftables"),
)
"""Every mode after every other, each change once."""


def test_every_mode_takes_over_from_every_other(kernel: EmulatedKernel) -> None:
    """Services work after each change, and nothing of the mode before is left."""
    assert set(pairwise(TOUR)) == set(permutations(MODES, 2))
    found: Any = kernel.call(GUEST, "switch_modes", list(TOUR), timeout_seconds=HOUR)
    assert found["wrong"] == {"switches-dual": []}


@pytest.mark.parametrize("mode", MODES)
def test_rules_that_another_program_removed_come_back(kernel: EmulatedKernel, mode: str) -> None:
    found: Any = kernel.call(GUEST, "drift", mode, timeout_seconds=HOUR)
    assert found["wrong"] == {"01-cluster-ip-dual": []}


@pytest.mark.parametrize("name", case_names(GOLDEN))
def test_the_kernel_holds_what_upstream_left(kernel: EmulatedKernel, name: str) -> None:
    case = load_case(GOLDEN / name)
    guest = Path(guest_golden.__file__)
    states: Any = kernel.call(guest, "run_case", str(case.folder), timeout_seconds=HOUR)
    assert_states(case, states)
