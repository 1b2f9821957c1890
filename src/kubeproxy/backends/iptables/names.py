"""Names and fixed words of the iptables mode, as upstream spells them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
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


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)


def _hashed(text: str) -> str:
    """The first 16 characters of the base32 form of the SHA-256 digest.

    They are the digest's first 80 bits, taken here ten at a time: a cold start asks for one name
    per endpoint, and the library's encoder would be its largest cost.
    """
    bits = int.from_bytes(sha256(text.encode()).digest()[:10], "big")
    return "".join([_PAIRS[bits >> shift & 1023] for shift in range(70, -1, -10)])


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


def endpoint_chains(port: ServicePortId, endpoints: Iterable[str]) -> dict[str, str]:
    """The chain of each endpoint, by the endpoint's text."""
    common = port.label + port.protocol.lower_name
    return {text: f"KUBE-SEP-{_hashed(common + text)}" for text in endpoints}
