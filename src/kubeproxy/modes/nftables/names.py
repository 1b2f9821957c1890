"""Names of everything in our table, and how keys are laid out in bytes.

Names that upstream's table has too are spelled as upstream spells them and have the same type,
so that either proxy can take over the other's table. Names that only we have contain no `/` and
do not start with `affinity-`: upstream flushes and deletes what does. Pure.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from ipaddress import IPv6Address

from msgspec import Struct

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, ServicePortId

TABLE_NAME = "kube-proxy"
TABLE_COMMENT = "rules for kube-proxy"

CLUSTER_IPS = "cluster-ips"
NODE_PORT_IPS = "nodeport-ips"
HAIRPIN = "hairpin-connections"
NO_ENDPOINT_SERVICES = "no-endpoint-services"
NO_ENDPOINT_NODE_PORTS = "no-endpoint-nodeports"
FIREWALL_IPS = "firewall-ips"
SERVICE_IPS = "service-ips"
SERVICE_NODE_PORTS = "service-nodeports"

SERVICE_ENDPOINTS = "service-endpoints"
LOCAL_ENDPOINTS = "service-local-endpoints"
NODE_PORT_ENDPOINTS = "nodeport-endpoints"
NODE_PORT_LOCAL_ENDPOINTS = "nodeport-local-endpoints"
POOL_MAPS = (SERVICE_ENDPOINTS, LOCAL_ENDPOINTS, NODE_PORT_ENDPOINTS, NODE_PORT_LOCAL_ENDPOINTS)

AFFINITY_PREFIX = "affinity-"
REJECT_CHAIN = "reject-chain"

COMMENTS = {
    CLUSTER_IPS: "Active ClusterIPs",
    NODE_PORT_IPS: "IPs that accept NodePort traffic",
    HAIRPIN: "service hairpin connections",
    NO_ENDPOINT_SERVICES: "vmap to drop or reject packets to services with no endpoints",
    NO_ENDPOINT_NODE_PORTS: "vmap to drop or reject packets to service nodeports with no endpoints",
    FIREWALL_IPS: "destinations that are subject to LoadBalancerSourceRanges",
    SERVICE_IPS: "ClusterIP, ExternalIP and LoadBalancer IP traffic",
    SERVICE_NODE_PORTS: "NodePort traffic",
    SERVICE_ENDPOINTS: "endpoints by address, port and index",
    LOCAL_ENDPOINTS: "endpoints on this node, for external traffic policy Local",
    NODE_PORT_ENDPOINTS: "endpoints by node port and index",
    NODE_PORT_LOCAL_ENDPOINTS: "endpoints on this node, for external traffic policy Local",
    REJECT_CHAIN: "helper for @no-endpoint-services / @no-endpoint-nodeports",
}
"""What the sets, maps and chains say about themselves in `nft list`."""

_LONGEST_BASE = 240
"""nft names have at most 256 characters; 16 are left for prefixes."""


def base_name(name: str) -> str:
    """A name made unique by a hash and cut to what fits: upstream's spelling."""
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest())[:8].decode()
    base = f"{digest}-{name}"
    return base if len(base) <= _LONGEST_BASE else base[: _LONGEST_BASE - 3] + "..."


def service_port_name(port: ServicePortId) -> str:
    """`namespace/service/protocol/port`; the port's name may be empty."""
    return f"{port.namespace}/{port.name}/{port.protocol.lower_name}/{port.port}"


_LONGEST_COMMENT = 127


def comment_of(port: ServicePortId) -> str:
    """The service's name as elements carry it; nft keeps no longer comments."""
    return port.label[:_LONGEST_COMMENT]


def endpoint_name(port: ServicePortId, endpoint: Endpoint) -> str:
    """The service port with one of its endpoints; nft names cannot hold a colon."""
    address = endpoint.address.replace(":", ".")
    return f"{service_port_name(port)}__{address}/{endpoint.port}"


class FamilyLayout(Struct, frozen=True, gc=False):
    """What differs between the two tables."""

    number: int
    """nf_tables family, and address family of DNAT."""
    address_length: int
    address_type: int
    source_offset: int
    destination_offset: int
    reject_code: int
    loopback: str

    @property
    def words(self) -> int:
        """Registers an address takes."""
        return self.address_length // 4


_LAYOUTS = {
    Family.IPV4: FamilyLayout(2, 4, 7, 12, 16, 3, "127.0.0.0/8"),
    Family.IPV6: FamilyLayout(10, 16, 8, 8, 24, 4, "::1/128"),
}


def layout_of(family: Family) -> FamilyLayout:
    return _LAYOUTS[family]


def pack_address(address: str) -> bytes:
    """A canonical address in network order."""
    if ":" in address:
        return IPv6Address(address).packed
    network, _, host = address.rpartition(".")
    return _pack_network(network) + _OCTETS[host]


_OCTETS = {str(number): bytes((number,)) for number in range(256)}


@lru_cache(maxsize=4096)
def _pack_network(octets: str) -> bytes:
    """The first three octets: few networks hold many endpoints."""
    return bytes(map(int, octets.split(".")))


@lru_cache(maxsize=4096)
def pack_port(port: int) -> bytes:
    """A port as a field of a concatenation: padded to four bytes."""
    return port.to_bytes(2, "big") + b"\0\0"


_PROTOCOL_FIELDS = {number: bytes((number, 0, 0, 0)) for number in (6, 17, 132)}


def node_port_key(protocol: int, port: int) -> bytes:
    """`inet_proto . inet_service`."""
    return _PROTOCOL_FIELDS[protocol] + pack_port(port)


def service_key(address: str, protocol: int, port: int) -> bytes:
    """`addr . inet_proto . inet_service`."""
    return pack_address(address) + node_port_key(protocol, port)


def hairpin_key(endpoint: Endpoint, protocol: int) -> bytes:
    """A connection from an endpoint to itself."""
    address = pack_address(endpoint.address)
    return address + address + node_port_key(protocol, endpoint.port)


def slot(endpoint: Endpoint) -> bytes:
    """An endpoint as data of a pool map: `addr . inet_service`."""
    return pack_address(endpoint.address) + pack_port(endpoint.port)
