"""Which virtual servers in the kernel are ours. Pure.

The kernel does not record who made a virtual server, and other software may have its own. Ours
leave traces: set entries are written before a virtual server is made and deleted after it is gone,
and its address is on our link. A virtual server without a trace belongs to other software and is
left alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable

from msgspec import Struct

from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.modes.ipvs.items import SetEntry, VirtualServer
from kubeproxy.modes.ipvs.names import NODE_PORT_SETS, SetName, set_name

_ADDRESS_SETS = (
    SetName.CLUSTER_IP,
    SetName.EXTERNAL_IP,
    SetName.EXTERNAL_IP_LOCAL,
    SetName.LOAD_BALANCER,
    SetName.NODE_PORT_SCTP,
)


class Traces(Struct, frozen=True):
    """What virtual servers of ours leave in sets and on the link."""

    servers: frozenset[tuple[int, str, int]] = frozenset()
    node_ports: frozenset[tuple[int, int]] = frozenset()
    addresses: frozenset[str] = frozenset()

    def include(self, server: VirtualServer) -> bool:
        """Is this virtual server ours by any trace?"""
        return (
            server.address in self.addresses
            or (server.protocol, server.address, server.port) in self.servers
            or (server.protocol, server.port) in self.node_ports
        )


def find_traces(family: Family, entries: Iterable[SetEntry], bound: Collection[str]) -> Traces:
    """The traces in the entries of our sets and in the addresses on our link."""
    address_sets = {set_name(family, name) for name in _ADDRESS_SETS}
    port_sets = {
        set_name(family, NODE_PORT_SETS[protocol][0]): protocol.number
        for protocol in (Protocol.TCP, Protocol.UDP)
    }
    servers, node_ports = set(), set()
    for entry in entries:
        if entry.set_name in address_sets:
            servers.add((entry.protocol, entry.address, entry.port))
        elif entry.set_name in port_sets:
            node_ports.add((port_sets[entry.set_name], entry.port))
    return Traces(frozenset(servers), frozenset(node_ports), frozenset(bound))


class Exclusions:
    """Networks whose virtual servers are never deleted unless this process made them."""

    def __init__(self, family: Family, cidrs: Iterable[str]) -> None:
        own = (cidr for cidr in cidrs if family_of(cidr) is family)
        self._networks = tuple(ipaddress.ip_network(cidr, strict=False) for cidr in own)

    def cover(self, address: str) -> bool:
        if not self._networks:
            return False
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self._networks)
