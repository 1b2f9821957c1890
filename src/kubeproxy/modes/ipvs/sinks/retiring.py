"""Virtual servers after another mode has taken over: those with connections stay until they end.

An open connection through IPVS is translated by IPVS, not by conntrack. The kernel drops its
packets once its real server is deleted, whatever `expire_nodest_conn` is, and they never reach IPVS
once the service address is no longer one of the host's. So both stay while there are connections,
with weight 0; the rules of the new mode take new connections before IPVS meets them. Promise: what
has no connection is removed with every call, so repeating the call ends with nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from msgspec import Struct

from kubeproxy.errors import KernelError
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import SERVICE_LINK
from kubeproxy.kernel.ipset.table import IpsetTable
from kubeproxy.kernel.ipvs.wire import Destination
from kubeproxy.kernel.route.table import RouteTable
from kubeproxy.modes.ipvs.compile.servers import (
    DRAINED,
    compile_server,
    format_key,
    format_quiesce,
)
from kubeproxy.modes.ipvs.items import SetEntry, VirtualServer
from kubeproxy.modes.ipvs.names import SetName, set_name
from kubeproxy.modes.ipvs.rules.ownership import find_traces
from kubeproxy.modes.ipvs.sinks.addresses import bound_addresses
from kubeproxy.modes.ipvs.sinks.tables import Tables
from kubeproxy.plan.conntrack import Socket, pack_socket

_READS_PER_TURN = 100


class Remainder(Struct, frozen=True):
    """Open connections, which stay. And where UDP flows went that IPVS translates no longer."""

    connections: int = 0
    untranslated: frozenset[Socket] = frozenset()


def own_servers(family: Family, tables: Tables) -> list[VirtualServer]:
    """The virtual servers of a family that are ours by their traces."""
    bound = bound_addresses(tables.route, family)
    traces = find_traces(family, _entries(family, tables.ipset), bound)
    servers = (VirtualServer(s.protocol, s.address, s.port) for s in tables.ipvs.services())
    return [s for s in servers if family_of(s.address) is family and traces.include(s)]


def _entries(family: Family, ipset: IpsetTable) -> list[SetEntry]:
    found: list[SetEntry] = []
    if not ipset.is_supported():
        return found
    for name in (set_name(family, name) for name in SetName):
        listed = ipset.find(name)
        if listed is not None:
            found += [SetEntry(name, *entry) for entry in listed.entries]
    return found


async def remove_idle(family: Family, tables: Tables, *, is_patient: bool) -> Remainder:
    """Remove virtual servers without connections, and the addresses that none needs any more.

    Impatient, remove all. Raises KernelError.
    """
    connections, staying, untranslated = 0, set[str](), set[Socket]()
    for count, server in enumerate(own_servers(family, tables)):
        if count % _READS_PER_TURN == 0:
            await asyncio.sleep(0)
        real = tables.ipvs.destinations(server.protocol, server.address, server.port)
        waits = is_patient and server.protocol in DRAINED
        if waits and (still_open := sum(each.connections for each in real)):
            connections += still_open
            staying.add(server.address)
            tables.ipvs.send(list(_quiescing(server, real)))
        else:
            tables.ipvs.send(compile_server(server, None, None).bodies)
            if server.protocol == Protocol.UDP.number:
                untranslated.add(pack_socket(server.address, server.port))
    _unbind(tables.route, bound_addresses(tables.route, family) - staying)
    return Remainder(connections, frozenset(untranslated))


def _quiescing(server: VirtualServer, real: list[Destination]) -> Iterator[bytes]:
    """Messages that let a virtual server take no new connection."""
    key = format_key(server)
    return (format_quiesce(key, (each.address, each.port)) for each in real if each.weight)


def _unbind(route: RouteTable, addresses: frozenset[str]) -> None:
    link = route.link(SERVICE_LINK)
    if link is None or not addresses:
        return
    refused = route.change_host_addresses(link, delete=sorted(addresses))
    if refused:
        raise KernelError("; ".join(f"address {a}: {reason}" for a, reason in refused[:3]))
