"""The flow corpus in a kernel with IPVS: the real program, real packets, both families at once.

A restart of the proxies takes ten seconds in there, so by default only flows run that want no flags
of their own, and one that restarts on purpose. KUBEPROXY_UML_FLOWS=all runs every flow.
"""

from __future__ import annotations

import os
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
    {"08-affinity-restart", "11-change-while-down", "15-hash-restart", "16-sources-restart"}
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


@pytest.fixture(scope="module")
def results(uml: UserModeKernel) -> Any:
    """What is wrong with each flow, all run in one lab."""
    names = [flow.name for flow in CHOSEN]
    return uml.call(GUEST, "run_flows", str(FLOWS), names)


@pytest.mark.timeout(3600)  # the first test runs all flows
@pytest.mark.parametrize("flow", CHOSEN, ids=lambda flow: flow.name)
def test_flow_holds_in_ipvs_mode(results: dict[str, list[str]], flow: Flow) -> None:
    assert results[flow.name] == []
