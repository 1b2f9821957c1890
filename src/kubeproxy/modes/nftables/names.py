"""Names of everything in our table, and how keys are laid out in bytes. Pure.

Names that upstream's table has too are spelled as upstream spells them and have the same type, so
that either proxy can take over the other's table. Names that only we have contain no `/` and do
not start with `affinity-`, because upstream flushes and deletes what does.

After a restart, this is the one place that classifies what is found (`chain_kind`,
`is_affinity_set`). A name that is none of ours gets the kind of what it resembles: nothing wants
it, so the kind only decides when it is removed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol, ServicePortId
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import Hook
from kubeproxy.modes.nftables.items import ChainKind

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

REJECTED_SERVICES = "rejected-services"
REJECTED_NODE_PORTS = "rejected-nodeports"
DROPPED_SERVICES = "dropped-services"
DROPPED_NODE_PORTS = "dropped-nodeports"
FIREWALLED_SERVICES = "firewalled-services"
DENIED_SERVICES = "denied-services"
DENIED_NODE_PORTS = "denied-nodeports"

ADMITTED_SERVICES = "admitted-services"
ADMITTED_NODE_PORTS = "admitted-nodeports"

SERVICE_POOLS = "service-pools"
LOCAL_POOLS = "service-local-pools"
NODE_PORT_POOLS = "nodeport-pools"
NODE_PORT_LOCAL_POOLS = "nodeport-local-pools"
POOL_MAPS = (SERVICE_POOLS, LOCAL_POOLS, NODE_PORT_POOLS, NODE_PORT_LOCAL_POOLS)
# Maps of this content without `typeof` were called service-endpoints and the like. The kernel
# cannot change what nft keeps with a map, so these have other names: both kinds can stand at once
# while one replaces the other.

_PRE_DNAT = nft.NF_IP_PRI_NAT_DST - 10
BASE_CHAINS: dict[str, Hook] = {
    "filter-prerouting-pre-dnat": Hook("filter", nft.NF_INET_PRE_ROUTING, _PRE_DNAT),
    "filter-output-pre-dnat": Hook("filter", nft.NF_INET_LOCAL_OUT, _PRE_DNAT),
    "filter-input": Hook("filter", nft.NF_INET_LOCAL_IN, nft.NF_IP_PRI_FILTER),
    "filter-forward": Hook("filter", nft.NF_INET_FORWARD, nft.NF_IP_PRI_FILTER),
    "filter-output": Hook("filter", nft.NF_INET_LOCAL_OUT, nft.NF_IP_PRI_FILTER),
    "nat-prerouting": Hook("nat", nft.NF_INET_PRE_ROUTING, nft.NF_IP_PRI_NAT_DST),
    "nat-output": Hook("nat", nft.NF_INET_LOCAL_OUT, nft.NF_IP_PRI_NAT_DST),
    "nat-postrouting": Hook("nat", nft.NF_INET_POST_ROUTING, nft.NF_IP_PRI_NAT_SRC),
}
"""The chains attached to hooks, and where."""

MASQUERADING = "masquerading"
CLUSTER_IPS_CHECK = "cluster-ips-check"
SERVICE_ENDPOINTS_CHECK = "service-endpoints-check"
NODE_PORT_ENDPOINTS_CHECK = "nodeport-endpoints-check"
FIREWALL_CHECK = "firewall-check"
SERVICES = "services"
REJECT_CHAIN = "reject-chain"
DROP_CHAIN = "drop-chain"
DENY_CHAIN = "deny-chain"
ADMIT_CHAIN = "admit-chain"
SCAFFOLD_CHAINS = frozenset(
    (
        MASQUERADING,
        CLUSTER_IPS_CHECK,
        SERVICE_ENDPOINTS_CHECK,
        NODE_PORT_ENDPOINTS_CHECK,
        FIREWALL_CHECK,
        SERVICES,
        REJECT_CHAIN,
    )
)
"""The other chains that always exist, class chains aside."""

COMMENTS = {
    CLUSTER_IPS: "Active ClusterIPs",
    NODE_PORT_IPS: "IPs that accept NodePort traffic",
    HAIRPIN: "service hairpin connections",
    NO_ENDPOINT_SERVICES: "vmap to drop or reject packets to services with no endpoints",
    NO_ENDPOINT_NODE_PORTS: "vmap to drop or reject packets to service nodeports with no endpoints",
    FIREWALL_IPS: "destinations that are subject to LoadBalancerSourceRanges",
    SERVICE_IPS: "ClusterIP, ExternalIP and LoadBalancer IP traffic",
    SERVICE_NODE_PORTS: "NodePort traffic",
    REJECTED_SERVICES: "counts packets to services with no endpoints",
    REJECTED_NODE_PORTS: "counts packets to service nodeports with no endpoints",
    DROPPED_SERVICES: "counts packets to services with no local endpoints",
    DROPPED_NODE_PORTS: "counts packets to service nodeports with no local endpoints",
    FIREWALLED_SERVICES: "counts packets from outside LoadBalancerSourceRanges",
    DENIED_SERVICES: "counts packets to services from sources that may not connect",
    DENIED_NODE_PORTS: "counts packets to service nodeports from sources that may not connect",
    ADMITTED_SERVICES: "services with lists of sources, for traffic that these admit",
    ADMITTED_NODE_PORTS: "service nodeports with lists of sources, for traffic that these admit",
    SERVICE_POOLS: "endpoints by address, port and index",
    LOCAL_POOLS: "endpoints on this node, for external traffic policy Local",
    NODE_PORT_POOLS: "endpoints by node port and index",
    NODE_PORT_LOCAL_POOLS: "endpoints on this node, for external traffic policy Local",
    REJECT_CHAIN: "helper for @no-endpoint-services / @no-endpoint-nodeports",
    DROP_CHAIN: "helper for @no-endpoint-services / @no-endpoint-nodeports",
    DENY_CHAIN: "helper for lists of sources",
    ADMIT_CHAIN: "helper for lists of sources",
}
"""The comments that `nft list` shows for sets, maps and chains."""

# ---- names of one service's objects ----------------------------------------------------------

AFFINITY_SET_PREFIX = "affinity-"
ENDPOINT_CHAIN_PREFIX = "endpoint-"
SERVICE_CHAIN_PREFIX = "service-"
LOCAL_CHAIN_PREFIX = "local-"
EXTERNAL_CHAIN_PREFIX = "external-"
FIREWALL_CHAIN_PREFIX = "firewall-"
GUARD_CHAIN_PREFIX = "guard-"
NODE_PORT_PREFIX = "nodeport-"
"""Before the name of a chain that looks endpoints up by node port instead of address."""

_LONGEST_BASE = 240
"""nft names have at most 256 characters, of which 16 are left for prefixes."""


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9/._-]")
"""What nft does not read back as part of a name. No Kubernetes name has it, but an object may."""


def base_name(name: str) -> str:
    """A name made unique by a hash and cut to what fits: upstream's spelling."""
    # Five bytes are eight characters. To encode all of them takes seven times as long.
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest()[:5]).decode()
    base = f"{digest}-{_NOT_IN_NAMES.sub('_', name)}"
    return base if len(base) <= _LONGEST_BASE else base[: _LONGEST_BASE - 3] + "..."


def service_port_name(port: ServicePortId) -> str:
    """`namespace/service/protocol/port`, where the port's name may be empty."""
    return f"{port.namespace}/{port.name}/{port.protocol.lower_name}/{port.port}"


def endpoint_name(port: ServicePortId, endpoint: Endpoint) -> str:
    """The service port with one of its endpoints. An nft name cannot hold a colon."""
    address = endpoint.address.replace(":", ".")
    return f"{service_port_name(port)}__{address}/{endpoint.port}"


_LONGEST_COMMENT = 127


def comment_of(port: ServicePortId) -> str:
    """The service's name as a comment, cut to the length that nft keeps."""
    return port.label[:_LONGEST_COMMENT]


# ---- what a found object is ------------------------------------------------------------------


def chain_kind(name: str) -> ChainKind:
    """What a chain of this name is for. Names with a slash hold a service's name."""
    if name in BASE_CHAINS:
        return ChainKind.BASE
    if name in SCAFFOLD_CHAINS:
        return ChainKind.SCAFFOLD
    if "/" not in name:
        is_pick = name.removeprefix(NODE_PORT_PREFIX).startswith(("pick-", "hash-"))
        return ChainKind.CLASS_PICK if is_pick else ChainKind.CLASS_ENTRY
    if name.startswith(ENDPOINT_CHAIN_PREFIX):
        return ChainKind.ENDPOINT
    own = name.removeprefix(NODE_PORT_PREFIX)
    is_pool = own.startswith((SERVICE_CHAIN_PREFIX, LOCAL_CHAIN_PREFIX))
    return ChainKind.SERVICE_POOL if is_pool else ChainKind.SERVICE_ENTRY


@lru_cache(maxsize=256)
def is_chain_of_service(name: str) -> bool:
    """Does a chain of this name belong to one service? Every dispatch element is tested."""
    return chain_kind(name).is_of_service


def is_firewall_chain(name: str) -> bool:
    """Does a chain of this name hold the source ranges of one service?"""
    return name.startswith(FIREWALL_CHAIN_PREFIX) and name not in SCAFFOLD_CHAINS


def is_guard_chain(name: str) -> bool:
    """Does a chain of this name hold the lists of sources of one service?"""
    return name.startswith(GUARD_CHAIN_PREFIX)


def is_affinity_set(name: str) -> bool:
    return name.startswith(AFFINITY_SET_PREFIX)


# ---- keys and data ---------------------------------------------------------------------------


class FamilyLayout(Struct, frozen=True, gc=False):
    """What differs between the tables of the two families."""

    family: Family
    address_length: int
    address_type: int
    source_offset: int
    destination_offset: int
    reject_code: int

    @property
    def number(self) -> int:
        """nf_tables' number of the family, which is the address family's."""
        return self.family.af

    @property
    def words(self) -> int:
        """Registers an address takes."""
        return self.address_length // 4


_LAYOUTS = {
    Family.IPV4: FamilyLayout(
        family=Family.IPV4,
        address_length=4,
        address_type=nft.TYPE_IPADDR,
        source_offset=12,
        destination_offset=16,
        reject_code=nft.ICMP_PORT_UNREACH,
    ),
    Family.IPV6: FamilyLayout(
        family=Family.IPV6,
        address_length=16,
        address_type=nft.TYPE_IP6ADDR,
        source_offset=8,
        destination_offset=24,
        reject_code=nft.ICMPV6_PORT_UNREACH,
    ),
}


def layout_of(family: Family) -> FamilyLayout:
    return _LAYOUTS[family]


@lru_cache(maxsize=256)
def pack_port(port: int) -> bytes:
    """A port as a field of a concatenation: padded to four bytes."""
    return port.to_bytes(2, "big") + b"\0\0"


_PROTOCOL_FIELDS = {protocol.number: bytes((protocol.number, 0, 0, 0)) for protocol in Protocol}


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


def slot(address: str, port: int) -> bytes:
    """An endpoint as data of a pool map: `addr . inet_service`."""
    return pack_address(address) + pack_port(port)


_MANY_ENDPOINTS = 256


@lru_cache(maxsize=1 << 15)
def _recent_slot(address: str, port: int) -> bytes:
    return slot(address, port)


def pack_slots(endpoints: Sequence[Endpoint]) -> bytes:
    """The endpoints of a pool as data of its map.

    Of many endpoints few change at a time, and packing all of them again would be most of the work
    for one. So these are remembered for a while.
    """
    if len(endpoints) < _MANY_ENDPOINTS:
        return b"".join([pack_address(e.address) + pack_port(e.port) for e in endpoints])
    return b"".join([_recent_slot(e.address, e.port) for e in endpoints])
