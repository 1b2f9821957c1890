"""Remove everything of the iptables mode, and nothing else.

What upstream leaves stays here too: the kubelet's KUBE-FIREWALL with its jumps, route_localnet,
and the accounting objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kubeproxy.modes.base import Retired, Running
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.scaffold import OWN_JUMPS
from kubeproxy.modes.netfilter.cleanup import (
    Removal,
    clean_families,
    retire_rules,
    with_old_names,
)
from kubeproxy.modes.netfilter.names import OLD_CHAINS
from kubeproxy.modes.netfilter.rules.text import TableText

_FIXED = {
    "nat": (names.SERVICES, names.NODE_PORTS, names.POSTROUTING, names.MARK_MASQ, names.CANARY),
    "filter": (
        names.SERVICES,
        names.EXTERNAL_SERVICES,
        names.FORWARD,
        names.NODE_PORTS,
        names.PROXY_FIREWALL,
        names.CANARY,
    ),
    "mangle": (names.CANARY,),
}
_PREFIXES = {"nat": names.SERVICE_CHAIN_PREFIXES}
# The ipvs mode has chains of these names in the same tables.
_ALSO_OF_IPVS = frozenset(
    {
        names.SERVICES,
        names.NODE_PORTS,
        names.POSTROUTING,
        names.MARK_MASQ,
        names.FORWARD,
        names.PROXY_FIREWALL,
    }
).union(*OLD_CHAINS.values())


def own_chains(table: TableText) -> list[str]:
    """Our chains in a table: the fixed ones in upstream's order, then those of services."""
    fixed = [chain for chain in _FIXED[table.name] if chain in table.policies]
    prefixes = _PREFIXES.get(table.name, ())
    fixed += sorted(OLD_CHAINS.get(table.name, frozenset()) & table.policies.keys())
    return fixed + sorted(chain for chain in table.policies if chain.startswith(prefixes))


def has_evidence(tables: Iterable[TableText]) -> bool:
    """Is there a chain that only this mode creates?"""
    return any(chain not in _ALSO_OF_IPVS for table in tables for chain in own_chains(table))


REMOVAL = Removal("iptables", tuple(_FIXED), own_chains, with_old_names(OWN_JUMPS), has_evidence)


async def cleanup() -> Sequence[str]:
    """Clean every family whose tools work here. Return what went wrong, in words."""
    return await clean_families(REMOVAL)


async def retire(running: Running) -> Retired:
    """Remove the rules, but what the running mode wants. Conntrack keeps open connections."""
    return Retired(tuple(await retire_rules(REMOVAL, running)))
