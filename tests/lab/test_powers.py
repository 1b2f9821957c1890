"""What counts as more privileges than a mode keeps."""

from __future__ import annotations

from kpctl.lab.powers import extra_privileges
from kubeproxy.kernel.capabilities import capability_mask

SYS_ADMIN = 21
SETS = ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")


def status(mask: int, *, no_new_privs: int = 1) -> str:
    lines = [f"{name}:\t{mask:016x}" for name in SETS]
    return "\n".join(["Name:\tkube-proxy", *lines, f"NoNewPrivs:\t{no_new_privs}"])


def test_what_a_mode_keeps_is_not_too_much() -> None:
    assert extra_privileges(status(capability_mask(["NET_ADMIN"])), ["nftables"]) == ""


def test_what_a_mode_before_needs_is_too_much_without_it() -> None:
    held = status(capability_mask(["NET_ADMIN", "NET_RAW"]))
    assert "CapEff" in extra_privileges(held, ["nftables"])
    assert extra_privileges(held, ["nftables", "iptables"]) == ""


def test_all_of_root_is_too_much() -> None:
    found = extra_privileges(status((1 << 41) - 1, no_new_privs=0), ["nftables"])
    assert all(name in found for name in SETS) and "new privileges" in found


def test_one_capability_is_too_much() -> None:
    assert "CapEff" in extra_privileges(status(1 << SYS_ADMIN), ["ipvs"])
