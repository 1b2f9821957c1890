"""What we know about this node and host, as one IP family sees it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from kubeproxy.facts.address import (
    contained_in_any,
    contains,
    is_ipv6_link_local,
    is_loopback,
    is_zero_cidr,
)
from kubeproxy.facts.ids import Family
from kubeproxy.facts.limits import NO_LIMITS, Limits
from kubeproxy.facts.policy import Algorithm

SERVICE_LINK = "kube-ipvs0"
"""The dummy link to which ipvs mode binds service addresses. They are never the node's, not even
in another mode: the link may be left from an earlier run in ipvs mode."""


class DetectorKind(Enum):
    """How a packet from a pod of this node is recognised."""

    NONE = "none"
    CIDR = "cidr"
    BRIDGE = "bridge"
    INTERFACE_PREFIX = "interface-prefix"


class LocalDetector(Struct, frozen=True, gc=False):
    """ "Is this from a local pod?": a source network, an interface, or an interface name prefix."""

    kind: DetectorKind = DetectorKind.NONE
    value: str = ""

    @property
    def is_implemented(self) -> bool:
        return self.kind is not DetectorKind.NONE


class NodeFacts(Struct, frozen=True, omit_defaults=True):
    """Everything about node, host and cluster that planning and rendering may depend on.

    `ip` is the node's address of the family, or the loopback address while unknown.
    `node_port_cidrs` is never empty: the zero network stands for "all addresses".
    `addresses` are all addresses of the family on the host's interfaces, sorted. `algorithms` are
    those of the proxy's `mode`. `own_ports` are the TCP ports of the proxy's own servers.
    """

    name: str
    family: Family
    ip: str
    zone: str = ""
    detector: LocalDetector = LocalDetector()
    node_port_cidrs: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    masquerade_all: bool = False
    allows_external_ips: bool = True
    is_large_cluster: bool = False
    limits: Limits = NO_LIMITS
    own_ports: tuple[int, ...] = ()
    mode: str = ""
    algorithms: frozenset[Algorithm] = frozenset()

    @property
    def node_ports_match_all(self) -> bool:
        return is_zero_cidr(self.node_port_cidrs[0])

    @property
    def node_port_addresses(self) -> tuple[str, ...]:
        """The host's addresses on which node ports are served."""
        if self.node_ports_match_all:
            return self.addresses
        return tuple(a for a in self.addresses if contained_in_any(a, self.node_port_cidrs))

    def with_addresses(self, addresses: Iterable[str]) -> NodeFacts:
        """These facts with the host's addresses, as far as they can matter.

        Each pod's interface brings an IPv6 link-local address. They serve no frontend, unless
        node ports are asked for on that very network, so that pods come and go without a round.
        """
        kept = tuple(
            address
            for address in addresses
            if not is_ipv6_link_local(address)
            or (not self.node_ports_match_all and contained_in_any(address, self.node_port_cidrs))
        )
        return replace(self, addresses=kept)

    @property
    def node_ports_include_ipv4_loopback(self) -> bool:
        if self.family is Family.IPV6:
            return False
        return any(
            is_loopback(cidr) or contains(cidr, "127.0.0.0") for cidr in self.node_port_cidrs
        )


def node_port_cidrs_of(family: Family, cidrs: tuple[str, ...]) -> tuple[str, ...]:
    """One family's part of a canonical nodePortAddresses list; nothing of the family means all."""
    own = tuple(cidr for cidr in cidrs if (":" in cidr) == (family is Family.IPV6))
    if not own or any(is_zero_cidr(cidr) for cidr in own):
        return (family.zero_cidr,)
    return own


def planning_facts(node: NodeFacts) -> NodeFacts:
    """What planning reads of the node: without service networks, cluster size, host addresses.

    The latter matter if endpoints are compared with them. Then each new one is a new plan for all.
    """
    addresses = node.addresses if node.limits.refused_node_ports else ()
    return replace(node, addresses=addresses, service_cidrs=(), is_large_cluster=False)
