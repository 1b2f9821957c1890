"""In the first kernel: a module that a mode needs is named at the start if the kernel lacks it.

And a few flows hold. Those in ipvs mode, which not every host has, are part of `make test`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kernels.conftest import NAMES, boot

from kpctl.places.qemu import EmulatedKernel

FEATURES = Path(__file__).with_name("guest_features.py")
FLOWS = Path(__file__).with_name("guest_flows.py")
SECONDS = 1800.0
HIDDEN = {
    "nftables": [["nft_numgen", "nft_fib", "nft_masq", "nft_reject"]],
    "iptables": [["xt_statistic", "xt_recent"]],
    "ipvs": [["dummy"], ["ip_set_bitmap_port"], ["xt_ipvs"], ["xt_set"]],
    "userspace": [["xt_REDIRECT"]],
}
"""By mode modules to hide; each list is what one message names."""

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(2 * SECONDS)]


@pytest.fixture(scope="module")
def fresh() -> Iterator[EmulatedKernel]:
    """The first of the kernels, with nothing loaded yet."""
    yield from boot(NAMES[0])


@pytest.mark.kernels
@pytest.mark.parametrize("mode", HIDDEN)
def test_a_missing_module_is_named(fresh: EmulatedKernel, mode: str) -> None:
    hidden = [name for group in HIDDEN[mode] for name in group]
    said: Any = fresh.call(FEATURES, "messages", mode, hidden, timeout_seconds=SECONDS)
    named = [[name for name in hidden if name in message] for message in said]
    assert (sorted(named), said[-1]) == (sorted([*HIDDEN[mode], []]), ""), said


@pytest.mark.parametrize("mode", [pytest.param("nftables", marks=pytest.mark.kernels), "ipvs"])
def test_a_few_flows_hold(fresh: EmulatedKernel, mode: str) -> None:
    """With the kernel's own SCTP."""
    runs = [("01-protocols", "dual")]
    found: Any = fresh.call(FLOWS, "run_flows", mode, runs, timeout_seconds=SECONDS)
    assert found["wrong"] == {"01-protocols-dual": []}
    assert found["kernel_sctp"]
