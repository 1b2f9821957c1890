"""Remove everything of the mode, in both families, and nothing else.

Virtual servers go first, so that no client is sent to a service whose rules are half gone. Then
follow the link with its addresses, the rules, and the sets they used. Virtual servers of other
software stay. Chains whose names the iptables mode has too are touched only where this mode's own
chains show that it was here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import SERVICE_LINK
from kubeproxy.kernel.ipset.table import Ipset
from kubeproxy.kernel.ipvs.table import Ipvs
from kubeproxy.kernel.route.table import Route
from kubeproxy.modes.ipvs.compile.servers import compile_server
from kubeproxy.modes.ipvs.items import SetEntry, VirtualServer
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
from kubeproxy.modes.ipvs.rules.ownership import find_traces
from kubeproxy.modes.ipvs.scaffold import JUMPS
from kubeproxy.modes.ipvs.sinks.addresses import bound_addresses
from kubeproxy.modes.netfilter.cleanup import Removal, clean_families, removal_input
from kubeproxy.modes.netfilter.rules.text import TableText


async def cleanup() -> Sequence[str]:
    """Clean both families. Return what went wrong, in words."""
    problems: list[str] = []
    problems += _attempt(remove_servers)
    problems += _attempt(remove_link)
    problems += await clean_families(Removal((NAT, FILTER), rules_input, has_evidence))
    problems += _attempt(remove_sets)
    return problems


def _attempt(step: Callable[[], None]) -> list[str]:
    try:
        step()
    except KernelError as error:
        return [str(error)]
    return []


def remove_servers() -> None:
    """Delete the virtual servers that are ours, as far as there is an IPVS."""
    try:
        table = Ipvs()
    except Unsupported:
        return
    with table, Ipset() as ipset, Route() as route:
        ours = [server for family in Family for server in _ours(family, table, ipset, route)]
        table.send([body for server in ours for body in compile_server(server, None, None).bodies])


def _ours(family: Family, table: Ipvs, ipset: Ipset, route: Route) -> list[VirtualServer]:
    traces = find_traces(family, _entries(family, ipset), bound_addresses(route, family))
    servers = (VirtualServer(s.protocol, s.address, s.port) for s in table.services())
    return [s for s in servers if family_of(s.address) is family and traces.include(s)]


def _entries(family: Family, ipset: Ipset) -> list[SetEntry]:
    found: list[SetEntry] = []
    if not ipset.is_supported():
        return found
    for name in (set_name(family, name) for name in SetName):
        listed = ipset.find(name)
        if listed is not None:
            found += [SetEntry(name, *entry) for entry in listed.entries]
    return found


def remove_link() -> None:
    """Delete the link of our name. Raises KernelError if it is no dummy link, hence not ours."""
    with Route() as route:
        link = route.link(SERVICE_LINK)
        if link is None:
            return
        if link.kind != "dummy":
            raise KernelError(f"link {SERVICE_LINK} is not a dummy link but {link.kind or 'plain'}")
        route.delete_link(link)


def rules_input(table: TableText) -> str:
    """The restore input that removes our jumps and chains; empty if there are none. Pure."""
    chains = sorted((OWN_CHAINS[table.name] | SHARED_CHAINS[table.name]) & table.policies.keys())
    return removal_input(table, chains, [jump for jump, _ in JUMPS])


def has_evidence(tables: Iterable[TableText]) -> bool:
    """Has this mode been here? Its other chains have the same names in iptables mode."""
    return any({IPVS_FILTER, IPVS_OUT_FILTER} & table.policies.keys() for table in tables)


def remove_sets() -> None:
    """Destroy both families' sets. Raises KernelError at the first one that a rule still uses."""
    with Ipset() as ipset:
        if not ipset.is_supported():
            return
        for family in Family:
            for name in SetName:
                ipset.destroy(set_name(family, name))
