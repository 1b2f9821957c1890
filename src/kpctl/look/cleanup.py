"""What stays in the kernel after a clean-up, and why: for the person who asks for it."""

from __future__ import annotations

from collections.abc import Iterator

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nfacct.table import Nfacct
from kubeproxy.kernel.sysctl import find_sysctl
from kubeproxy.modes.iptables.names import INVALID_COUNTER, LOCALHOST_COUNTER
from kubeproxy.modes.netfilter.cleanup import save_tables
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks.xtables import Xtables

_TABLES = ("nat", "filter", "mangle")
_PREFIX = "KUBE-"
_FIREWALL = "KUBE-FIREWALL"
_FIREWALL_REASON = (
    "the kubelet uses it too, and its rule keeps packets from outside away from localhost"
)
_KUBELET = frozenset({"KUBE-KUBELET-CANARY", "KUBE-MARK-DROP", "KUBE-IPTABLES-HINT"})
_LOCALNET = "net/ipv4/conf/all/route_localnet"


async def remains() -> list[str]:
    """Describe what is still there, each with the reason."""
    found = [text for family in Family for text in await _chains(family)]
    if find_sysctl(_LOCALNET) == "1":
        found.append(
            f"sysctl {_LOCALNET.replace('/', '.')} is 1: iptables mode sets it for node ports on"
            " localhost, and other programs may rely on it by now"
        )
    return found + [
        f"accounting object {name}: a rule of another program may count with it"
        for name in _counters()
    ]


def _counters() -> list[str]:
    with Nfacct() as nfacct:
        if not nfacct.is_supported():
            return []
        return [name for name in (INVALID_COUNTER, LOCALHOST_COUNTER) if nfacct.find(name)]


async def _chains(family: Family) -> list[str]:
    tables = Xtables(family, ToolOptions())
    try:
        if not await tables.is_present():
            return []
        saved = await save_tables(tables, _TABLES)
    except KernelError:
        return []  # the clean-up itself has reported it
    return [
        f"{family.value} chain {chain} in table {name}: {reason}"
        for name, table in saved.items()
        for chain, reason in _reasons(sorted(table.policies))
    ]


def _reasons(chains: list[str]) -> Iterator[tuple[str, str]]:
    for chain in chains:
        if chain == _FIREWALL:
            yield chain, _FIREWALL_REASON
        elif chain in _KUBELET:
            yield chain, "it is the kubelet's"
        elif chain.startswith(_PREFIX):
            yield chain, "it belongs to a mode that was not cleaned up, or to another program"
