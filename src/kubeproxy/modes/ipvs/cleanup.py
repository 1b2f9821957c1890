"""Removing everything of the mode, in both families, and nothing else.

Virtual servers go first, so that nobody is sent to a service whose rules are half gone; then the
link with its addresses, the rules, and the sets they used. Virtual servers of other software stay.
Chains whose names the iptables mode has too are touched only where this mode's own chains show
that it was here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipset.table import Ipset
from kubeproxy.kernel.ipvs import wire as messages
from kubeproxy.kernel.ipvs.table import Ipvs
from kubeproxy.kernel.route.table import Interfaces
from kubeproxy.modes.ipvs.compile import requests
from kubeproxy.modes.ipvs.items import SetEntry, VirtualServer
from kubeproxy.modes.ipvs.names import SERVICE_LINK, SetName, set_name
from kubeproxy.modes.ipvs.rules.chains import (
    FILTER,
    IPVS_FILTER,
    IPVS_OUT_FILTER,
    JUMPS,
    NAT,
    OWN_CHAINS,
    SHARED_CHAINS,
)
from kubeproxy.modes.ipvs.rules.ownership import find_traces
from kubeproxy.modes.ipvs.sinks.addresses import bound_addresses
from kubeproxy.modes.netfilter.cleanup import Removal, clean_families, removal_input
from kubeproxy.modes.netfilter.rules.text import TableText


async def cleanup() -> Sequence[str]:
    """Clean both families; what went wrong, in words."""
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
    with table, Ipset() as ipset, Interfaces() as links:
        ours = [server for family in Family for server in _ours(family, table, ipset, links)]
        delete = messages.DEL_SERVICE
        table.send([messages.format_service_key(delete, requests.key_of(s)) for s in ours])


def _ours(family: Family, table: Ipvs, ipset: Ipset, links: Interfaces) -> list[VirtualServer]:
    traces = find_traces(family, _entries(family, ipset), bound_addresses(links, family))
    servers = (VirtualServer(s.protocol, s.address, s.port) for s in table.services())
    return [
        server
        for server in servers
        if (":" in server.address) == (family is Family.IPV6) and traces.include(server)
    ]


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
    with Interfaces() as links:
        link = links.link(SERVICE_LINK)
        if link is None:
            return
        if link.kind != "dummy":
            raise KernelError(f"link {SERVICE_LINK} is not a dummy link but {link.kind or 'plain'}")
        links.delete_link(link)


def rules_input(table: TableText) -> str:
    """Restore input that removes our jumps and chains; empty if there are none. Pure."""
    chains = sorted((OWN_CHAINS[table.name] | SHARED_CHAINS[table.name]) & table.policies.keys())
    return removal_input(table, chains, [jump for jump, _ in JUMPS])


def has_evidence(tables: Iterable[TableText]) -> bool:
    """Was this mode here? Its other chains have the same names in iptables mode."""
    return any({IPVS_FILTER, IPVS_OUT_FILTER} & table.policies.keys() for table in tables)


def remove_sets() -> None:
    """Both families' sets; the first that cannot be destroyed ends it, because a rule uses it."""
    with Ipset() as ipset:
        if not ipset.is_supported():
            return
        for family in Family:
            for name in SetName:
                ipset.destroy(set_name(family, name))
