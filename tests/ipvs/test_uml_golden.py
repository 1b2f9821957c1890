"""Every captured case in a kernel with IPVS: its state equals what upstream left there.

Deliberate differences are listed here, with what is there instead; the captures stay as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.ipvs_golden import GoldenCase, case_names, load_case

from kpctl.places.uml import UserModeKernel
from kubeproxy.facts.ids import Family

ROOT = Path(__file__).parents[1] / "golden/ipvs"
GUEST = Path(__file__).with_name("guest_golden.py")

pytestmark = pytest.mark.uml

MORE = {
    # Upstream deletes virtual servers it did not make; ours stay away from them.
    ("exclude-cidrs", "ipvs6", 0): ("-A -t [fd98::1]:80 -s rr",),
    ("seq-cleanup", "ipvs", 1): ("-A -t 172.16.0.1:80 -s wrr",),
}
LESS = {
    # Upstream takes service addresses for node addresses once it has bound them.
    ("seq-nodeport-addresses-vip", "ipvs", 1): ":30080",
    ("seq-nodeport-addresses-vip", "ipset", 1): "add KUBE-NODE-PORT-TCP",
    ("seq-nodeport-addresses-vip", "iptables", 1): "KUBE-NODE-PORT-TCP dst",
    # Upstream forgets the IPv6 sets when it cleans up.
    ("seq-cleanup", "ipset6", 1): "KUBE-6-",
}


@pytest.mark.parametrize("name", case_names(ROOT))
def test_the_kernel_holds_what_upstream_left(uml: UserModeKernel, name: str) -> None:
    case = load_case(ROOT / name)
    states: Any = uml.call(GUEST, "run_case", str(case.folder))
    assert len(states) == 1 + len(case.steps)
    for step, state in enumerate(states):
        for stem in stems(case):
            wanted = expectation(case, stem, step)
            if wanted is not None:
                assert state[stem] == wanted, f"{stem} after step {step}"


def stems(case: GoldenCase) -> list[str]:
    kinds = ("ipvs", "ipset", "iptables", "addresses", "connections")
    suffixes = {Family.IPV4: "", Family.IPV6: "6"}
    per_family = [f"{kind}{suffixes[family]}" for family in case.config.check for kind in kinds]
    return [*per_family, "sysctl", "timeouts"]


def expectation(case: GoldenCase, stem: str, step: int) -> object:
    text = case.expected(stem, step)
    if text is None:
        return None
    if stem == "timeouts":
        return text.strip()
    key = (case.name, stem, step)
    lines = [line for line in text.splitlines() if key not in LESS or LESS[key] not in line]
    return sorted({*lines, *MORE[key]}) if key in MORE else lines
