"""Which modes have left something in this network namespace, found without importing any of them.

Looked at once a mode serves, and now and then afterwards: a node that never ran another mode pays
a dozen netlink requests and no process. Leaves to others: removing what is found (`Mode.retire`).
"""

from __future__ import annotations

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import SERVICE_LINK
from kubeproxy.kernel.nftables.table import UNUSABLE, Nftables
from kubeproxy.kernel.route.table import Route
from kubeproxy.modes.base import Running
from kubeproxy.modes.netfilter.sinks.signs import Place, find_signs, used_places

NFTABLES_TABLE = "kube-proxy"


def find_traces(running: Running) -> frozenset[str]:
    """The modes that show here besides the running one. Raises KernelError.

    The running mode itself is one of them if the other variant of the iptables tools shows its
    rules in a family in which it runs.
    """
    found: set[str] = set()
    used = used_places(running.backends)
    for place, modes in find_signs(used).items():
        is_other_variant = place not in used and Place(place.family, not place.is_nft) in used
        found |= modes if is_other_variant else modes - {running.mode}
    if running.mode != "nftables" and any(map(_has_table, Family)):
        found.add("nftables")
    if running.mode != "ipvs" and _has_link():
        found.add("ipvs")
    return frozenset(found)


def _has_table(family: Family) -> bool:
    try:
        with Nftables(family.af) as nftables:
            return any(table.name == NFTABLES_TABLE for table in nftables.tables())
    except KernelError as error:
        if error.errno in UNUSABLE:
            return False
        raise


def _has_link() -> bool:
    with Route() as route:
        return route.link(SERVICE_LINK) is not None
