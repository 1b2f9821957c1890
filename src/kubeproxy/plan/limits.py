"""Which addresses may not be served or be targets, whatever an object says. Pure.

The API server refuses most of these itself. A proxy does not rely on it: the check had holes
(CVE-2021-25737), manifests do not pass it, and a user who may write EndpointSlices chooses where
the node sends traffic with its own address as source (CVE-2021-25740).
"""

from __future__ import annotations

from kubeproxy.facts.address import contained_in_any, is_ipv6_link_local, is_loopback
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.limits import NO_LIMITS
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import PortFacts
from kubeproxy.plan.types import Excluded

REFUSED = "refused: "
"""How the reasons begin."""

_SUSPECTS = {
    Family.IPV4: ("127.", "169.254.", "22", "23", "255.255.255.255"),
    Family.IPV6: ("::1", "fe", "ff"),
}
"""How refused addresses begin. Nearly no address begins like this, so one look is enough."""


def refused_kind(address: str) -> str:
    """Name the kind of a canonical address that is no target for anyone, or return nothing."""
    if is_loopback(address):
        return "a loopback address"
    if address.startswith("169.254.") or is_ipv6_link_local(address):
        return "a link-local address"
    if address == "255.255.255.255":
        return "the broadcast address"
    if _is_ipv6_multicast(address) or _is_ipv4_multicast(address):
        return "a multicast address"
    return ""


def _is_ipv6_multicast(address: str) -> bool:
    # The first group has four digits: `ff0::` is 0ff0::.
    return address.startswith("ff") and address.find(":") == 4


def _is_ipv4_multicast(address: str) -> bool:
    first, dot, _ = address.partition(".")
    return bool(dot) and 224 <= int(first) <= 239


def admit_endpoints(
    endpoints: tuple[Endpoint, ...], node: NodeFacts
) -> tuple[tuple[Endpoint, ...], tuple[Excluded, ...]]:
    """Return the endpoints that may be targets, and the others with the reason."""
    if node.limits == NO_LIMITS:
        suspects = _SUSPECTS[node.family]
        if not any(e.address.startswith(suspects) for e in endpoints):
            return endpoints, ()
    refused = {id(e): found for e in endpoints if (found := _refused(e, node))}
    if not refused:
        return endpoints, ()
    return tuple(e for e in endpoints if id(e) not in refused), tuple(refused.values())


def _refused(endpoint: Endpoint, node: NodeFacts) -> Excluded | None:
    limits, is_here = node.limits, endpoint.is_local
    reason = refused_kind(endpoint.address)
    if not reason and limits.endpoint_cidrs:
        is_allowed = contained_in_any(endpoint.address, limits.endpoint_cidrs)
        reason = "" if is_allowed else "not within --endpoint-cidrs"
    if not reason and is_refused_port(endpoint.address, endpoint.port, node):
        reason, is_here = "a port of this node in --refused-node-ports", True
    if not reason:
        return None
    return Excluded(endpoint.text, REFUSED + reason, is_refused=True, is_here=is_here)


def is_refused_port(address: str, port: int, node: NodeFacts) -> bool:
    """Is this a port of this node that the operator lets no object choose?"""
    ports = node.limits.refused_node_ports
    return any(first <= port <= last for first, last in ports) and (
        address == node.ip or address in node.addresses
    )


def admit_node_port(port: PortFacts, node: NodeFacts) -> tuple[int, tuple[Excluded, ...]]:
    """Return the node port that is served, or 0, and why it is not.

    The API server allocates from a range that an administrator chooses; manifests have any number.
    A Service that took the health port would answer the kubelet and load balancers for the proxy.
    """
    if port.protocol is not Protocol.TCP or port.node_port not in node.own_ports:
        return port.node_port, ()
    reason = f"{REFUSED}a port of kube-proxy's own servers"
    return 0, (Excluded(f"node port {port.node_port}", reason, is_refused=True),)


def admit_addresses(
    addresses: tuple[str, ...], cidrs: tuple[str, ...], flag: str
) -> tuple[tuple[str, ...], tuple[Excluded, ...]]:
    """Return the addresses of a Service within the allowed networks, and the others."""
    reasons = {address: _why_not_served(address, cidrs, flag) for address in addresses}
    return tuple(a for a, reason in reasons.items() if not reason), tuple(
        Excluded(a, REFUSED + reason, is_refused=True) for a, reason in reasons.items() if reason
    )


def _why_not_served(address: str, cidrs: tuple[str, ...], flag: str) -> str:
    if is_loopback(address):
        return "a loopback address, it would take connections of the node to itself"
    return f"not within {flag}" if cidrs and not contained_in_any(address, cidrs) else ""
