"""Changes of mode from and to ipvs under load, in a kernel with IPVS and iptables-legacy.

IPVS remembers a connection for two minutes after it has ended, and the old mode goes with the last
one: a change from ipvs takes that long until nothing is left. By default only changes between ipvs
and iptables are made, which share chain names; KUBEPROXY_UML_FLOWS=all makes all. Those to and from
nftables are tested in kernels that have both (`make test-kernels`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kpctl.apiserver.build import NoGo, built
from kpctl.flows.upstream import PREFIX
from kpctl.places.uml import UserModeKernel

FLOWS = Path(__file__).parents[1] / "flows"
GUEST = Path(__file__).with_name("guest_flows.py")

pytestmark = [pytest.mark.uml, pytest.mark.timeout(3600)]


CHANGES = [("iptables", "ipvs"), ("ipvs", "iptables")]
if os.environ.get("KUBEPROXY_UML_FLOWS") == "all":
    CHANGES += [("userspace", "ipvs"), ("ipvs", "userspace"), ("upstream-iptables", "ipvs")]
    CHANGES += [("upstream-ipvs", mode) for mode in ("ipvs", "iptables", "userspace")]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_no_connection_fails_and_none_breaks(uml: UserModeKernel, before: str, after: str) -> None:
    program = _upstream() if before.startswith(PREFIX) else ""
    found = uml.call(GUEST, "switch_modes", str(FLOWS), before, after, program)
    connections, wrong = _switched(found)
    assert wrong == []
    assert connections > 100


def _upstream() -> str:
    try:
        return str(built("kube-proxy"))
    except NoGo as error:
        pytest.skip(f"no kube-proxy of upstream's: {error}")


def _switched(found: Any) -> tuple[int, list[str]]:
    connections, wrong = found
    return connections, wrong
