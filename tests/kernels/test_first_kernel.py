"""In the first kernel: what a mode lacks is named at the start; and each mode carries traffic.

The second, in ipvs mode, is the part of `make test`: one daemon, a cluster IP and a node port by
TCP and IPv4. Flows, SCTP, the other family, other nodes and what a daemon does after its first sync
are left to `make test-kernels`, and so are the modes that any host has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kernels.conftest import NAMES, boot
from tests.kernels.guest_serve import MODES, PRELOAD
from tests.support.confined import FRONTENDS

from kpctl.places.qemu import EmulatedKernel
from kubeproxy.modes.nftables.check import OLDEST_KERNEL

FEATURES = Path(__file__).with_name("guest_features.py")
SERVE = Path(__file__).with_name("guest_serve.py")
SECONDS = 1800.0
HIDDEN = {
    "nftables": ("nft_numgen", "nft_fib", "nft_masq", "nft_reject"),
    "iptables": ("xt_statistic", "xt_recent"),
    "ipvs": ("dummy", "ip_set_bitmap_port", "xt_ipvs", "xt_set"),
    "userspace": ("xt_REDIRECT",),
}
"""By mode modules to hide."""

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(2 * SECONDS)]


@pytest.fixture(scope="module")
def fresh() -> Iterator[EmulatedKernel]:
    """The first of the kernels, with nothing loaded yet."""
    yield from boot(NAMES[0], PRELOAD)


@pytest.mark.kernels
@pytest.mark.parametrize("mode", HIDDEN)
def test_a_missing_module_is_named(fresh: EmulatedKernel, mode: str) -> None:
    said: Any = fresh.call(FEATURES, "messages", mode, HIDDEN[mode], timeout_seconds=SECONDS)
    named = [name for message in said for name in HIDDEN[mode] if name in message]
    assert (sorted(named), said[-1]) == (sorted(HIDDEN[mode]), ""), said


@pytest.mark.kernels
def test_a_kernel_that_is_too_old_is_named(fresh: EmulatedKernel) -> None:
    """By nftables mode. The other tests here tell it not to look, and so find what it lacks."""
    message = fresh.call(FEATURES, "refusal", "nftables", timeout_seconds=SECONDS)
    is_old = tuple(map(int, fresh.kernel.release.split(".")[:2])) < OLDEST_KERNEL
    assert ("requires kernel 5.13 or later" in str(message)) == is_old, message


@pytest.mark.parametrize(
    "mode",
    [mode if mode == "ipvs" else pytest.param(mode, marks=pytest.mark.kernels) for mode in MODES],
)
def test_a_mode_carries_traffic(fresh: EmulatedKernel, mode: str) -> None:
    seen: Any = fresh.call(SERVE, "serve", mode, timeout_seconds=SECONDS)
    assert seen["answered"] == sorted(FRONTENDS), seen["log"]
