"""Killed anywhere: after every call to the kernel, in every mode, a new process finds its way.

The process that dies takes a cluster from nothing over one state to another. Whichever call was its
last, its successor leaves exactly the rules that a proxy leaves which was never disturbed. ipvs is
in tests/ipvs, because it needs another kernel; chance histories against fakes are in each mode.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from tests.support.cut_proxy import cut_everywhere
from tests.support.nft_kit import lines

from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyBackend
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options as IptablesOptions
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.options import Options as NftablesOptions
from kubeproxy.modes.userspace.mode import UserspaceBackend
from kubeproxy.modes.userspace.options import Options as UserspaceOptions

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1800)]


def nftables() -> AnyBackend:
    return NftablesBackend(Family.IPV4, NftablesOptions())


def iptables(variant: str) -> Callable[[], AnyBackend]:
    options = IptablesOptions(tools=ToolOptions(variant=variant))
    return lambda: IptablesBackend(Family.IPV4, options)


def userspace() -> AnyBackend:
    options = UserspaceOptions(port_range="40000-40099", tools=ToolOptions(variant="nft"))
    return UserspaceBackend(Family.IPV4, options)


def nft_rules() -> list[str]:
    """In an order that does not depend on which chain was made first."""
    return lines("\n".join(_output("nft", "list", "ruleset")), with_declarations=True)


def xtables_rules(variant: str) -> Callable[[], list[str]]:
    return lambda: [
        # Without counters of packets and with any proxy port for any other.
        re.sub(r"\b400\d\d\b", "PORT", re.sub(r"\[\d+:\d+\]", "", line))
        for line in _output(f"iptables-{variant}-save")
        if not line.startswith("#")
    ]


def _output(*argv: str) -> list[str]:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


MODES = {
    "nftables": (nftables, nft_rules),
    "iptables-nft": (iptables("nft"), xtables_rules("nft")),
    "iptables-legacy": (iptables("legacy"), xtables_rules("legacy")),
    "userspace": (userspace, xtables_rules("nft")),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_process_killed_at_any_call_is_succeeded(mode: str) -> None:
    create, rules = MODES[mode]
    assert cut_everywhere(create, rules) == []
