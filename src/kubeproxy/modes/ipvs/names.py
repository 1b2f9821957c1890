"""Names the mode uses in the kernel: sets, iptables chains, and what is in which. Pure.

They are upstream's, to the letter: people and tools read them, and a restarted proxy recognises by
them what is ours. The link's name is in `facts.node`, because other modes must know it too.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.ipset.wire import SetHead, SetType

_LONGEST_SET_NAME = 31
"""ipset's limit."""


class SetName(StrEnum):
    """The sets; the value is the IPv4 name."""

    LOOP_BACK = "KUBE-LOOP-BACK"
    CLUSTER_IP = "KUBE-CLUSTER-IP"
    EXTERNAL_IP = "KUBE-EXTERNAL-IP"
    EXTERNAL_IP_LOCAL = "KUBE-EXTERNAL-IP-LOCAL"
    LOAD_BALANCER = "KUBE-LOAD-BALANCER"
    LOAD_BALANCER_FW = "KUBE-LOAD-BALANCER-FW"
    LOAD_BALANCER_LOCAL = "KUBE-LOAD-BALANCER-LOCAL"
    LOAD_BALANCER_SOURCE_IP = "KUBE-LOAD-BALANCER-SOURCE-IP"
    LOAD_BALANCER_SOURCE_CIDR = "KUBE-LOAD-BALANCER-SOURCE-CIDR"
    NODE_PORT_TCP = "KUBE-NODE-PORT-TCP"
    NODE_PORT_LOCAL_TCP = "KUBE-NODE-PORT-LOCAL-TCP"
    NODE_PORT_UDP = "KUBE-NODE-PORT-UDP"
    NODE_PORT_LOCAL_UDP = "KUBE-NODE-PORT-LOCAL-UDP"
    NODE_PORT_SCTP = "KUBE-NODE-PORT-SCTP-HASH"
    NODE_PORT_LOCAL_SCTP = "KUBE-NODE-PORT-LOCAL-SCTP-HASH"
    HEALTH_CHECK_NODE_PORT = "KUBE-HEALTH-CHECK-NODE-PORT"
    IPVS_IPS = "KUBE-IPVS-IPS"
    NO_ENDPOINTS = "KUBE-NO-ENDPOINTS"
    SOURCE_REFUSED = "KUBE-SOURCE-REFUSED"
    GUARDED = "KUBE-GUARDED"
    ALLOWED_SOURCES = "KUBE-ALLOWED-SOURCES"
    DENIED_SOURCES = "KUBE-DENIED-SOURCES"
    GUARD_REFUSED = "KUBE-GUARD-REFUSED"


GUARD_SETS = (SetName.GUARDED, SetName.ALLOWED_SOURCES, SetName.DENIED_SOURCES)
"""Sets of our own, that exist only while a Service has lists of sources."""

COUNTING_SETS = (SetName.NO_ENDPOINTS, SetName.SOURCE_REFUSED, SetName.GUARD_REFUSED)
"""Sets of our own, that exist only while refused packets are counted."""

SET_TYPES: dict[SetName, SetType] = {
    SetName.LOOP_BACK: SetType.IP_PORT_IP,
    SetName.CLUSTER_IP: SetType.IP_PORT,
    SetName.EXTERNAL_IP: SetType.IP_PORT,
    SetName.EXTERNAL_IP_LOCAL: SetType.IP_PORT,
    SetName.LOAD_BALANCER: SetType.IP_PORT,
    SetName.LOAD_BALANCER_FW: SetType.IP_PORT,
    SetName.LOAD_BALANCER_LOCAL: SetType.IP_PORT,
    SetName.LOAD_BALANCER_SOURCE_IP: SetType.IP_PORT_IP,
    SetName.LOAD_BALANCER_SOURCE_CIDR: SetType.IP_PORT_NET,
    SetName.NODE_PORT_TCP: SetType.PORT,
    SetName.NODE_PORT_LOCAL_TCP: SetType.PORT,
    SetName.NODE_PORT_UDP: SetType.PORT,
    SetName.NODE_PORT_LOCAL_UDP: SetType.PORT,
    SetName.NODE_PORT_SCTP: SetType.IP_PORT,
    SetName.NODE_PORT_LOCAL_SCTP: SetType.IP_PORT,
    SetName.HEALTH_CHECK_NODE_PORT: SetType.PORT,
    SetName.IPVS_IPS: SetType.IP,
    SetName.NO_ENDPOINTS: SetType.IP_PORT,
    SetName.SOURCE_REFUSED: SetType.IP_PORT,
    SetName.GUARDED: SetType.IP_PORT,
    SetName.ALLOWED_SOURCES: SetType.IP_PORT_NET,
    SetName.DENIED_SOURCES: SetType.IP_PORT_NET,
    SetName.GUARD_REFUSED: SetType.IP_PORT,
}

NODE_PORT_SETS: dict[Protocol, tuple[SetName, SetName]] = {
    Protocol.TCP: (SetName.NODE_PORT_TCP, SetName.NODE_PORT_LOCAL_TCP),
    Protocol.UDP: (SetName.NODE_PORT_UDP, SetName.NODE_PORT_LOCAL_UDP),
    Protocol.SCTP: (SetName.NODE_PORT_SCTP, SetName.NODE_PORT_LOCAL_SCTP),
}
"""The set for every node port, and the one that those with policy Local are in as well."""

SET_COMMENTS: dict[SetName, str] = {
    SetName.LOOP_BACK: ("Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose"),
    SetName.CLUSTER_IP: "Kubernetes service cluster ip + port for masquerade purpose",
    SetName.EXTERNAL_IP: (
        "Kubernetes service external ip + port for masquerade and filter purpose"
    ),
    SetName.EXTERNAL_IP_LOCAL: (
        "Kubernetes service external ip + port with externalTrafficPolicy=local"
    ),
    SetName.LOAD_BALANCER: "Kubernetes service lb portal",
    SetName.LOAD_BALANCER_FW: (
        "Kubernetes service load balancer ip + port for load balancer with sourceRange"
    ),
    SetName.LOAD_BALANCER_LOCAL: (
        "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
    ),
    SetName.LOAD_BALANCER_SOURCE_IP: (
        "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
    ),
    SetName.LOAD_BALANCER_SOURCE_CIDR: (
        "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
    ),
    SetName.NODE_PORT_TCP: "Kubernetes nodeport TCP port for masquerade purpose",
    SetName.NODE_PORT_LOCAL_TCP: ("Kubernetes nodeport TCP port with externalTrafficPolicy=local"),
    SetName.NODE_PORT_UDP: "Kubernetes nodeport UDP port for masquerade purpose",
    SetName.NODE_PORT_LOCAL_UDP: ("Kubernetes nodeport UDP port with externalTrafficPolicy=local"),
    SetName.NODE_PORT_SCTP: (
        "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"
    ),
    SetName.NODE_PORT_LOCAL_SCTP: (
        "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"
    ),
    SetName.HEALTH_CHECK_NODE_PORT: "Kubernetes health check node port",
    SetName.IPVS_IPS: "Addresses on the ipvs interface",
    SetName.NO_ENDPOINTS: "counts packets to services with no endpoints",
    SetName.SOURCE_REFUSED: "counts packets from outside LoadBalancerSourceRanges",
    SetName.GUARDED: "services that admit only sources that are allowed",
    SetName.ALLOWED_SOURCES: "sources that may connect to a guarded service",
    SetName.DENIED_SOURCES: "sources that may not connect to a service",
    SetName.GUARD_REFUSED: "counts packets from sources that may not connect",
}


@cache
def set_name(family: Family, name: SetName) -> str:
    """The set's name in this family; some IPv6 names are cut to what ipset allows."""
    if family is Family.IPV4:
        return name.value
    return name.value.replace("KUBE-", "KUBE-6-", 1)[:_LONGEST_SET_NAME]


def set_head(family: Family, name: SetName) -> SetHead:
    """What kind of set it is in this family."""
    kind = SET_TYPES[name]
    is_ipv6 = family is Family.IPV6 and kind is not SetType.PORT
    return SetHead(kind, is_ipv6, name in COUNTING_SETS)


NAT = "nat"
FILTER = "filter"

SERVICES = "KUBE-SERVICES"
POSTROUTING = "KUBE-POSTROUTING"
NODE_PORT = "KUBE-NODE-PORT"
LOAD_BALANCER = "KUBE-LOAD-BALANCER"
MARK_MASQ = "KUBE-MARK-MASQ"
FORWARD = "KUBE-FORWARD"
PROXY_FIREWALL = "KUBE-PROXY-FIREWALL"
SOURCE_RANGES = "KUBE-SOURCE-RANGES-FIREWALL"
IPVS_FILTER = "KUBE-IPVS-FILTER"
IPVS_OUT_FILTER = "KUBE-IPVS-OUT-FILTER"

OWN_CHAINS = {NAT: frozenset({MARK_MASQ}), FILTER: frozenset({FORWARD, NODE_PORT, IPVS_FILTER})}
"""By table: chains whose rules are the scaffold's alone."""

SHARED_CHAINS = {
    NAT: frozenset({SERVICES, POSTROUTING, NODE_PORT, LOAD_BALANCER}),
    FILTER: frozenset({PROXY_FIREWALL, SOURCE_RANGES, IPVS_OUT_FILTER}),
}
"""By table: chains in which services have rules."""
