"""Names and fixed words of the iptables mode, as upstream spells them. Pure."""

from __future__ import annotations

from base64 import b32encode
from functools import lru_cache
from hashlib import sha256

from kubeproxy.facts.ids import ServicePortId

SERVICES = "KUBE-SERVICES"
EXTERNAL_SERVICES = "KUBE-EXTERNAL-SERVICES"
NODE_PORTS = "KUBE-NODEPORTS"
POSTROUTING = "KUBE-POSTROUTING"
MARK_MASQ = "KUBE-MARK-MASQ"
FORWARD = "KUBE-FORWARD"
PROXY_FIREWALL = "KUBE-PROXY-FIREWALL"
KUBELET_FIREWALL = "KUBE-FIREWALL"
CANARY = "KUBE-PROXY-CANARY"

SERVICE_CHAIN_PREFIXES = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-")

INVALID_COUNTER = "ct_state_invalid_dropped_pkts"
LOCALHOST_COUNTER = "localhost_nps_accepted_pkts"

NODE_PORTS_LAST = '"kubernetes service nodeports; NOTE: this must be the last rule in this chain"'


def _hashed(text: str) -> str:
    return b32encode(sha256(text.encode()).digest())[:16].decode()


@lru_cache(maxsize=4096)
def service_hash(port: ServicePortId) -> str:
    """What the chains of one service port have in common; the same in both families."""
    return _hashed(port.label + port.protocol.lower_name)


def cluster_chain(port: ServicePortId) -> str:
    return f"KUBE-SVC-{service_hash(port)}"


def local_chain(port: ServicePortId) -> str:
    return f"KUBE-SVL-{service_hash(port)}"


def firewall_chain(port: ServicePortId) -> str:
    return f"KUBE-FW-{service_hash(port)}"


def external_chain(port: ServicePortId) -> str:
    return f"KUBE-EXT-{service_hash(port)}"


def endpoint_chain(port: ServicePortId, endpoint: str) -> str:
    return f"KUBE-SEP-{_hashed(port.label + port.protocol.lower_name + endpoint)}"
