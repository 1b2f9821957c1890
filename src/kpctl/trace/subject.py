"""Which packet is asked about: SOURCE and DESTINATION:PORT/PROTO as a node meets it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from kpctl.trace.packets import Arrival
from kubeproxy.errors import ConfigError
from kubeproxy.facts.address import contains, is_loopback, parse_ip
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import DetectorKind, NodeFacts
from kubeproxy.plan.types import ServicePlan

NODE, OUTSIDE = "node", "outside"
_OUTSIDE = {Family.IPV4: "203.0.113.1", Family.IPV6: "2001:db8:ffff::1"}
"""Addresses for documentation, which no cluster has."""
_ELSEWHERE = "(uplink)"
"""The interface of what does not come from a pod of this node. No interface is called so."""
_HIGHEST_PORT = 65535


class Destination(Struct, frozen=True):
    """Where a packet is sent."""

    family: Family
    address: str
    port: int
    protocol: Protocol


def parse_destination(text: str) -> Destination:
    """Parse `10.96.0.10:80`, `[fd00::10]:53/UDP`. Raises ConfigError."""
    place, _, protocol = text.partition("/")
    host, _, port = place.rpartition(":")
    found = parse_ip(host.removeprefix("[").removesuffix("]"))
    name = (protocol or "TCP").upper()
    if (
        found is None
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) <= _HIGHEST_PORT
        or name not in Protocol.__members__
    ):
        raise ConfigError(
            f"{text!r} is no destination: write ADDRESS:PORT or ADDRESS:PORT/UDP, an IPv6 address"
            " in brackets"
        )
    family, address = found
    return Destination(family, address, int(port), Protocol[name])


def arrival_at(
    node: NodeFacts,
    plans: Iterable[ServicePlan],
    source: str,
    destination: Destination,
    interface: str = "",
) -> Arrival:
    """The packet as the node meets it. Raises ConfigError."""
    address = _address(node, source, destination)
    is_own = source == NODE or address in node.addresses or is_loopback(address)
    through = interface or _interface(node, plans, address)
    return Arrival(
        family=node.family,
        protocol=destination.protocol,
        source=address,
        destination=destination.address,
        port=destination.port,
        interface="" if is_own else through,
    )


def _address(node: NodeFacts, source: str, destination: Destination) -> str:
    if source == OUTSIDE:
        return _OUTSIDE[node.family]
    if source == NODE:
        is_here = is_loopback(destination.address) or destination.address in node.addresses
        return destination.address if is_here else node.ip
    found = parse_ip(source)
    if found is None:
        raise ConfigError(f"{source!r} is no source: write an address, `node` or `outside`")
    if found[0] is not node.family:
        raise ConfigError(f"{source} and {destination.address} are not of one IP family")
    return found[1]


def _interface(node: NodeFacts, plans: Iterable[ServicePlan], source: str) -> str:
    """Where it arrives, as far as rules look at that: where pods of this node do, or elsewhere."""
    detector = node.detector
    by_name = (DetectorKind.BRIDGE, DetectorKind.INTERFACE_PREFIX)
    if detector.kind in by_name and source in _local_endpoints(plans):
        return detector.value
    return _ELSEWHERE


def _local_endpoints(plans: Iterable[ServicePlan]) -> set[str]:
    return {endpoint.address for plan in plans for endpoint in plan.hairpin}


def source_text(node: NodeFacts, arrival: Arrival) -> str:
    """Who the source is to the rules of this node, for people."""
    if arrival.is_from_node:
        return "the node itself"
    detector = node.detector
    if detector.kind is DetectorKind.CIDR and contains(detector.value, arrival.source):
        return f"a pod, because it is in {detector.value}"
    if detector.kind is DetectorKind.BRIDGE and arrival.interface == detector.value:
        return f"a pod, because it comes through {detector.value}"
    is_prefix = detector.kind is DetectorKind.INTERFACE_PREFIX
    if is_prefix and arrival.interface.startswith(detector.value):
        return f"a pod, because it comes through {detector.value}…"
    return "no pod of this node"
