"""Modes after each other, golden states, drift and restarts, in kernels that operators run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from tests.ipvs import guest_golden
from tests.kernels.conftest import CONNECTIONS
from tests.support.ipvs_golden import case_names, load_case
from tests.support.ipvs_states import assert_states

from kpctl.apiserver.build import NoGo, built
from kpctl.places.qemu import EmulatedKernel

GUEST = Path(__file__).with_name("guest_flows.py")
FEATURES = Path(__file__).with_name("guest_features.py")
GOLDEN = Path(__file__).parents[1] / "golden/ipvs"
MODES = ("nftables", "iptables", "ipvs", "userspace")
HOUR = 3600.0
ENOUGH = 100
"""Connections. Each load goes on until each endpoint has had some after the change."""

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(2 * HOUR)]

UPSTREAM = ("upstream-ipvs", "upstream-iptables", "upstream-nftables")
CHANGES = [
    *permutations(MODES, 2),
    *product(UPSTREAM[:1], MODES),
    # Those of upstream's other modes that need no IPVS are made in every kernel (`tests/flows`).
    *product(UPSTREAM[1:], ("ipvs",)),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_mode_takes_over_from_another_under_load(
    kernel: EmulatedKernel, before: str, after: str, record_property: Callable[[str, object], None]
) -> None:
    """No new connection fails, no open one breaks, and nothing of the mode before is left."""
    program = _upstream() if before in UPSTREAM else ""
    found: Any = kernel.call(GUEST, "switch_modes", before, after, program, timeout_seconds=HOUR)
    connections, wrong = found
    record_property(CONNECTIONS, connections)
    assert wrong == []
    assert connections > ENOUGH


def _upstream() -> str:
    try:
        return str(built("kube-proxy"))
    except NoGo as error:
        pytest.skip(f"no kube-proxy of upstream's: {error}")


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
