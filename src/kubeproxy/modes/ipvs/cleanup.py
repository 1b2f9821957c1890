"""Remove everything of the mode, in both families, and nothing else.

Virtual servers go first, so that no client is sent to a service whose rules are half gone. Then
follow the link with its addresses, the rules, and the sets they used. Virtual servers of other
software stay. Chains whose names the iptables mode has too are touched only where this mode's own
chains show that it was here.

Where another mode has taken over the rules go first: from then on no new connection meets a
virtual server. The chain that keeps clients off the host's ports stays as long as any service
address does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import SERVICE_LINK
from kubeproxy.kernel.ipset.table import Ipset
from kubeproxy.kernel.route.table import Route
from kubeproxy.modes.base import Retired, Running
from kubeproxy.modes.ipvs.compile.servers import compile_server
from kubeproxy.modes.ipvs.names import (
    FILTER,
    IPVS_FILTER,
    IPVS_OUT_FILTER,
    NAT,
    OWN_CHAINS,
    SHARED_CHAINS,
    SetName,
    set_name,
)
from kubeproxy.modes.ipvs.scaffold import JUMPS
from kubeproxy.modes.ipvs.sinks.retiring import Remainder, own_servers, remove_idle
from kubeproxy.modes.ipvs.sinks.tables import KernelTables
from kubeproxy.modes.netfilter.cleanup import (
    Removal,
    clean_families,
    retire_rules,
    with_old_names,
)
from kubeproxy.modes.netfilter.names import OLD_CHAINS
from kubeproxy.modes.netfilter.rules.text import TableText


async def cleanup() -> Sequence[str]:
    """Clean both families. Return what went wrong, in words."""
    problems: list[str] = []
    problems += _attempt(remove_servers)
    problems += _attempt(remove_link)
    problems += await clean_families(REMOVAL)
    problems += _attempt(remove_sets)
    return problems


async def retire(running: Running) -> Retired:
    """Remove what has no open connection; all if the running mode does not wait for them."""
    problems = await retire_rules(REMOVAL, running, stays=frozenset({IPVS_FILTER}))
    try:
        rest = await _remove_idle(is_patient=running.is_patient)
    except KernelError as error:
        return Retired((*problems, str(error)))
    connections = sum(remainder.connections for remainder in rest.values())
    if not connections:
        problems += _attempt(remove_link)
        problems += await retire_rules(REMOVAL, running)
        problems += _attempt(remove_sets)
    untranslated = {f: each.untranslated for f, each in rest.items() if each.untranslated}
    return Retired(tuple(problems), connections, untranslated)


async def _remove_idle(*, is_patient: bool) -> Mapping[Family, Remainder]:
    with closing(KernelTables()) as tables:
        try:
            return {f: await remove_idle(f, tables, is_patient=is_patient) for f in Family}
        except Unsupported:
            return {}


def _attempt(step: Callable[[], None]) -> list[str]:
    try:
        step()
    except KernelError as error:
        return [str(error)]
    return []


def remove_servers() -> None:
    """Delete the virtual servers that are ours, as far as there is an IPVS."""
    with closing(KernelTables()) as tables:
        try:
            ours = [server for family in Family for server in own_servers(family, tables)]
        except Unsupported:
            return
        works = (compile_server(server, None, None) for server in ours)
        tables.ipvs.send([body for work in works for body in work.bodies])


def remove_link() -> None:
    """Delete the link of our name. Raises KernelError if it is no dummy link, hence not ours."""
    with Route() as route:
        link = route.link(SERVICE_LINK)
        if link is None:
            return
        if link.kind != "dummy":
            raise KernelError(f"link {SERVICE_LINK} is not a dummy link but {link.kind or 'plain'}")
        route.delete_link(link)


def own_chains(table: TableText) -> list[str]:
    """Our chains in a table, and those that had names of ours until we took over."""
    ours = OWN_CHAINS[table.name] | SHARED_CHAINS[table.name] | OLD_CHAINS[table.name]
    return sorted(ours & table.policies.keys())


def has_evidence(tables: Iterable[TableText]) -> bool:
    """Has this mode been here? Its other chains have the same names in iptables mode."""
    return any({IPVS_FILTER, IPVS_OUT_FILTER} & table.policies.keys() for table in tables)


REMOVAL = Removal(
    "ipvs", (NAT, FILTER), own_chains, with_old_names(jump for jump, _ in JUMPS), has_evidence
)


def remove_sets() -> None:
    """Destroy both families' sets. Raises KernelError at the first one that a rule still uses."""
    with Ipset() as ipset:
        if not ipset.is_supported():
            return
        for family in Family:
            for name in SetName:
                ipset.destroy(set_name(family, name))
