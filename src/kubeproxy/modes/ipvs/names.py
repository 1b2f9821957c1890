"""Names the mode uses in the kernel; they are how a restarted proxy recognises what is ours. Pure.

Upstream's, to the letter: people and tools read them.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.modes.ipvs.items import SetKind

SERVICE_LINK = "kube-ipvs0"

_LONGEST_SET_NAME = 31


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


SET_KINDS: dict[SetName, SetKind] = {
    SetName.LOOP_BACK: SetKind.IP_PORT_IP,
    SetName.CLUSTER_IP: SetKind.IP_PORT,
    SetName.EXTERNAL_IP: SetKind.IP_PORT,
    SetName.EXTERNAL_IP_LOCAL: SetKind.IP_PORT,
    SetName.LOAD_BALANCER: SetKind.IP_PORT,
    SetName.LOAD_BALANCER_FW: SetKind.IP_PORT,
    SetName.LOAD_BALANCER_LOCAL: SetKind.IP_PORT,
    SetName.LOAD_BALANCER_SOURCE_IP: SetKind.IP_PORT_IP,
    SetName.LOAD_BALANCER_SOURCE_CIDR: SetKind.IP_PORT_NET,
    SetName.NODE_PORT_TCP: SetKind.PORT,
    SetName.NODE_PORT_LOCAL_TCP: SetKind.PORT,
    SetName.NODE_PORT_UDP: SetKind.PORT,
    SetName.NODE_PORT_LOCAL_UDP: SetKind.PORT,
    SetName.NODE_PORT_SCTP: SetKind.IP_PORT,
    SetName.NODE_PORT_LOCAL_SCTP: SetKind.IP_PORT,
    SetName.HEALTH_CHECK_NODE_PORT: SetKind.PORT,
    SetName.IPVS_IPS: SetKind.IP,
}

NODE_PORT_SETS: dict[Protocol, tuple[SetName, SetName]] = {
    Protocol.TCP: (SetName.NODE_PORT_TCP, SetName.NODE_PORT_LOCAL_TCP),
    Protocol.UDP: (SetName.NODE_PORT_UDP, SetName.NODE_PORT_LOCAL_UDP),
    Protocol.SCTP: (SetName.NODE_PORT_SCTP, SetName.NODE_PORT_LOCAL_SCTP),
}
"""For every node port, and additionally for those with policy Local."""

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
}


@cache
def set_name(family: Family, name: SetName) -> str:
    """The set's name in this family; ipset allows 31 characters, and some are cut."""
    if family is Family.IPV4:
        return name.value
    return name.value.replace("KUBE-", "KUBE-6-", 1)[:_LONGEST_SET_NAME]
