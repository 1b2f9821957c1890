"""The flow corpus in a kernel with IPVS: the real program, real packets, both families at once.

A restart of the proxies takes ten seconds in there, so by default only flows run that want no flags
of their own. KUBEPROXY_UML_FLOWS=all runs every flow. Most of the time passes in waiting, so a
parallel run has a kernel for each part (`tests/support/groups`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kpctl.flows.flow import Flow
from kpctl.flows.library import load_corpus
from kpctl.places.uml import UserModeKernel

FLOWS = Path(__file__).parents[1] / "flows"
GUEST = Path(__file__).with_name("guest_flows.py")

NEEDS_NFTABLES = frozenset({"13-foreign-rules", "13-mode-switch"})
"""They look at or switch to nftables, which this kernel has not."""
RESTARTING = frozenset(
    {
        "08-affinity-restart",
        "11-change-while-down",
        "15-hash-restart",
        "16-sources-restart",
        "17-draining-restart",
    }
)

pytestmark = pytest.mark.uml


def is_chosen(flow: Flow) -> bool:
    if flow.name in NEEDS_NFTABLES or not flow.runs_in("ipvs"):
        return False
    if os.environ.get("KUBEPROXY_UML_FLOWS") == "all":
        return True
    return not flow.proxy and flow.name not in RESTARTING


CORPUS = load_corpus()
CHOSEN = sorted(
    (flow for flow in CORPUS if is_chosen(flow)),
    key=lambda flow: (sorted(flow.proxy.items()), flow.name),
)


PARTS = 3
RUNS = sorted((number * PARTS // len(CHOSEN), flow.name) for number, flow in enumerate(CHOSEN))


@pytest.fixture(scope="module")
def results(uml: UserModeKernel) -> Callable[[int], Any]:
    """What is wrong with each flow of a part, all run in one lab."""

    @cache
    def of_part(part: int) -> Any:
        names = [name for number, name in RUNS if number == part]
        return uml.call(GUEST, "run_flows", str(FLOWS), names)

    return of_part


@pytest.mark.timeout(3600)  # the first test of a part runs all its flows
@pytest.mark.parametrize(
    ("part", "name"), [pytest.param(*run, id=f"{run[0]}-{run[1]}") for run in RUNS]
)
def test_flow_holds_in_ipvs_mode(results: Callable[[int], Any], part: int, name: str) -> None:
    assert results(part)[name] == []
