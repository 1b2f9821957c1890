"""The flow corpus in every mode, in kernels that operators run: all modes in one boot.

KUBEPROXY_VARIANTS=all runs each flow in each family alone as well. SCTP is the kernel's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.support.userspace_flows import is_ours
from tests.support.variants import variants

from kpctl.flows.flow import Flow, SwitchMode
from kpctl.flows.library import load_corpus
from kpctl.places.qemu import EmulatedKernel

GUEST = Path(__file__).with_name("guest_flows.py")
HOURS = 3600.0
MODES = ("nftables", "iptables", "ipvs", "userspace")

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(5 * HOURS)]

Results: TypeAlias = Callable[[str], Any]


def is_chosen(flow: Flow, mode: str) -> bool:
    if mode == "userspace":
        return is_ours(flow)
    switches = [step.other for step in flow.steps if isinstance(step, SwitchMode)]
    return flow.runs_in(mode) and all(mode in other for other in switches)


def runs(mode: str) -> Iterator[tuple[Flow, str]]:
    """Flows that want the same flags stand together, so that proxies are seldom restarted."""
    ordered = sorted(load_corpus(), key=lambda flow: (sorted(flow.proxy.items()), flow.name))
    for flow in ordered:
        if is_chosen(flow, mode):
            yield from ((flow, variant) for variant in variants(flow))


def selected(session: pytest.Session, mode: str) -> set[str]:
    """Flows of a mode that this run of pytest was asked for."""
    values = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
    return {v["key"] for v in values if v.get("mode") == mode and "key" in v}


@pytest.fixture(scope="module")
def results(kernel: EmulatedKernel, request: pytest.FixtureRequest) -> Results:
    """By mode, what is wrong with each flow that was asked for, all run in one lab."""
    found: dict[str, Any] = {}

    def of(mode: str) -> Any:
        if mode not in found:
            keys = selected(request.session, mode)
            pairs = [
                (f.name, variant) for f, variant in runs(mode) if f"{f.name}-{variant}" in keys
            ]
            found[mode] = kernel.call(GUEST, "run_flows", mode, pairs, timeout_seconds=4 * HOURS)
        return found[mode]

    return of


@pytest.mark.parametrize(
    ("mode", "key"), [(mode, f"{f.name}-{v}") for mode in MODES for f, v in runs(mode)]
)
def test_flow_holds(results: Results, mode: str, key: str) -> None:
    assert results(mode)["wrong"][key] == []


def test_sctp_was_the_kernels_own(results: Results) -> None:
    assert results("nftables")["kernel_sctp"]
