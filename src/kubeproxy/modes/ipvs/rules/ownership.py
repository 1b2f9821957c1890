"""Which virtual servers in the kernel are ours. Pure.

The kernel does not remember who made a virtual server, and other software may have its own. Ours
leave traces: set entries are written before a virtual server comes and deleted after it went, and
its address is on our link. A virtual server without a trace is somebody else's and is left alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable

from msgspec import Struct

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
    """What virtual servers of ours have left behind."""

    servers: frozenset[tuple[int, str, int]] = frozenset()
    node_ports: frozenset[tuple[int, int]] = frozenset()
    addresses: frozenset[str] = frozenset()

    def include(self, server: VirtualServer) -> bool:
        return (
            server.address in self.addresses
            or (server.protocol, server.address, server.port) in self.servers
            or (server.protocol, server.port) in self.node_ports
        )


def find_traces(family: Family, entries: Iterable[SetEntry], bound: Collection[str]) -> Traces:
    """Traces in the entries of our sets and the addresses on our link."""
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
        networks = (ipaddress.ip_network(cidr, strict=False) for cidr in cidrs)
        version = 4 if family is Family.IPV4 else 6
        self._networks = tuple(n for n in networks if n.version == version)

    def cover(self, address: str) -> bool:
        if not self._networks:
            return False
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self._networks)
