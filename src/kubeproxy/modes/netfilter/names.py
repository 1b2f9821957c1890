"""Chain names that more than one iptables-based mode must know. Pure.

A mode that takes over from another has to recognise what the other left, and may not import it.
So the few names by which they know each other are here.
"""

from __future__ import annotations

from collections.abc import Mapping

SIGNS: Mapping[str, Mapping[str, str]] = {
    "iptables": {
        "filter": "KUBE-EXTERNAL-SERVICES",
        "nat": "KUBE-NODEPORTS",
        "mangle": "KUBE-PROXY-CANARY",
    },
    "ipvs": {"filter": "KUBE-IPVS-FILTER", "nat": "KUBE-NODE-PORT"},
    "userspace": {"filter": "KUBE-NODEPORT-NON-LOCAL", "nat": "KUBE-PORTALS-CONTAINER"},
}
"""By mode and table: a chain that this mode always has there, and no other mode."""

CONTESTED: Mapping[str, frozenset[str]] = {
    "filter": frozenset({"KUBE-PROXY-FIREWALL"}),
    "nat": frozenset({"KUBE-SERVICES", "KUBE-POSTROUTING"}),
}
"""By table: chains that the iptables and the ipvs mode both have, with other rules.

KUBE-MARK-MASQ and KUBE-FORWARD are not among them: what one mode writes there serves the other.
"""

PORTAL_CHAINS = frozenset({"KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST"})
"""Where packets enter the rules of the userspace mode, before those of other modes."""


def old_name(chain: str) -> str:
    """The name of a contested chain while a mode that has been replaced still serves by it."""
    return f"{chain}-OLD"


OLD_CHAINS: Mapping[str, frozenset[str]] = {
    table: frozenset(map(old_name, chains)) for table, chains in CONTESTED.items()
}


def signs_in(table: str, chains: Mapping[str, object]) -> frozenset[str]:
    """The modes that show in a table with these chains."""
    return frozenset(mode for mode, signs in SIGNS.items() if signs.get(table) in chains)
