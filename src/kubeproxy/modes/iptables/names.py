"""Names and fixed words of the iptables mode, as upstream spells them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

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

POOL_CHAIN_PREFIXES = ("KUBE-SVC-", "KUBE-SVL-")
"""Chains that choose one of several endpoints."""
PORT_CHAIN_PREFIXES = (*POOL_CHAIN_PREFIXES, "KUBE-EXT-", "KUBE-FW-")
"""Chains whose hash is that of their service port."""
SERVICE_CHAIN_PREFIXES = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-")
"""All chains of services and endpoints."""

INVALID_COUNTER = "ct_state_invalid_dropped_pkts"
LOCALHOST_COUNTER = "localhost_nps_accepted_pkts"

AMONG_SERVICES = 0
LAST = 1
"""Ranks of sections: those of services stand in order of their names, others behind them."""

NODE_PORTS_LAST = '"kubernetes service nodeports; NOTE: this must be the last rule in this chain"'

HASH_LENGTH = 16
"""Characters in the part of a chain's name that is a hash."""
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)


def _hashed(text: str) -> str:
    """The first 16 characters of the base32 form of the SHA-256 digest.

    They are the digest's first 80 bits, taken here ten at a time: a cold start asks for one name
    per endpoint, and the library's encoder would be its largest cost.
    """
    digest = sha256(text.encode()).digest()
    high, low = int.from_bytes(digest[:5], "big"), int.from_bytes(digest[5:10], "big")
    pairs = _PAIRS
    return (
        f"{pairs[high >> 30]}{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}"
        f"{pairs[high & 1023]}{pairs[low >> 30]}{pairs[low >> 20 & 1023]}"
        f"{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )


class ServiceChains(NamedTuple):
    """The chains of one service port and the hash they share, equal in both families."""

    common: str
    cluster: str
    local: str
    external: str
    firewall: str


class GuardChains(NamedTuple):
    """The chains that hold lists of sources of one service port: before which chain of it."""

    internal: str
    external: str
    firewall: str


def guard_chains(common: str) -> GuardChains:
    """Named like upstream's source ranges, so that upstream's proxy removes them as its own."""
    return GuardChains(*(f"KUBE-FW-{kind}-{common}" for kind in "IEF"))


def service_chains(port: ServicePortId) -> ServiceChains:
    """The chains of a service port, which share one hash of its name and protocol."""
    common = _hashed(port.label + port.protocol.lower_name)
    return ServiceChains(
        common=common,
        cluster=f"KUBE-SVC-{common}",
        local=f"KUBE-SVL-{common}",
        external=f"KUBE-EXT-{common}",
        firewall=f"KUBE-FW-{common}",
    )


def endpoint_chains(port: ServicePortId, endpoints: Iterable[str]) -> dict[str, str]:
    """The chain of each endpoint, by the endpoint's text."""
    common = port.label + port.protocol.lower_name
    return {text: f"KUBE-SEP-{_hashed(common + text)}" for text in endpoints}
