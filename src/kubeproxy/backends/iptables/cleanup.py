"""Removing everything of the iptables mode, and nothing else.

Left as upstream leaves them: the kubelet's KUBE-FIREWALL with its jumps, route_localnet, and the
accounting objects.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.backends.iptables import names
from kubeproxy.backends.iptables.scaffold import OWN_JUMPS
from kubeproxy.backends.netfilter.canonical import canonical_rule
from kubeproxy.backends.netfilter.text import TableText, chain_line, parse_save
from kubeproxy.backends.netfilter.xtables import Xtables
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family

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


def own_chains(table: TableText) -> list[str]:
    """Our chains in a table: the fixed ones in upstream's order, then the services'."""
    fixed = [chain for chain in _FIXED[table.name] if chain in table.policies]
    prefixes = _PREFIXES.get(table.name, ())
    return fixed + sorted(chain for chain in table.policies if chain.startswith(prefixes))


def cleanup_input(table: TableText) -> str:
    """Restore input that detaches, empties and deletes all that is ours in a table.

    Empty if nothing is ours. Everything goes in one commit, so nothing is ever half removed.
    """
    chains = own_chains(table)
    present = {
        (chain, canonical_rule(line))
        for chain in table.rules
        if table.policies.get(chain) != "-"
        for line in table.lines(chain)
    }
    detached = [
        f"-D {jump.chain} {jump.rule}\n"
        for jump in OWN_JUMPS
        if jump.table == table.name
        and (jump.chain, canonical_rule(f"-A {jump.chain} {jump.rule}")) in present
    ]
    if not chains and not detached:
        return ""
    return "".join(
        (
            f"*{table.name}\n",
            *map(chain_line, chains),
            *detached,
            *(f"-X {chain}\n" for chain in chains),
            "COMMIT\n",
        )
    )


async def cleanup_tables(tables: Xtables) -> list[str]:
    """Clean one family; what went wrong, in words."""
    problems = []
    for name in ("nat", "filter", "mangle"):
        try:
            saved = {table.name: table for table in parse_save(await tables.save(name))}
            text = cleanup_input(saved.get(name, TableText(name)))
            if text:
                await tables.restore(text)
        except KernelError as error:
            problems.append(f"{tables.family.value} table {name}: {error}")
    return problems


async def cleanup() -> Sequence[str]:
    """Clean both families, as far as their tools are there."""
    problems: list[str] = []
    for family in Family:
        tables = Xtables(family)
        if await tables.is_present():
            problems += await cleanup_tables(tables)
    return problems
