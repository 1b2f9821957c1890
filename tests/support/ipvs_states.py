"""What a kernel holds after each step of a captured ipvs case, compared with what upstream left.

Deliberate differences are listed here, with what is there instead; the captures stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support.ipvs_golden import GoldenCase

from kubeproxy.facts.ids import Family

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


def assert_states(case: GoldenCase, states: Sequence[Mapping[str, object]]) -> None:
    """Compare the states after the first sync and after each step with the captured ones."""
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
