"""What happens to a packet, decided over plans alone. Pure.

A tracer is given one new connection as one node meets it (`Arrival`) and returns what the node's
rules do (`Traced`). This one reads plans; modes have others over their rendered items. The few
things a mode decides without a plan (what happens to unserved ports of a cluster IP, where node
ports are served) are the table `TRAITS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from typing import Protocol as Seam

import msgspec

from kubeproxy.facts.address import contained_in_any, contains, is_loopback
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import DetectorKind, NodeFacts
from kubeproxy.plan.types import Frontend, FrontendKind, Masquerade, ServicePlan, Verdict


class End(Enum):
    """How a chain left a packet."""

    FELL_OUT = "fell out"
    ACCEPTED = "accepted"
    DROPPED = "dropped"
    REJECTED = "rejected"


class Arrival(msgspec.Struct, frozen=True):
    """A new connection as a node meets it. No `interface` means that the node itself sends it."""

    family: Family
    protocol: Protocol
    source: str
    destination: str
    port: int
    interface: str = ""

    @property
    def is_from_node(self) -> bool:
        return not self.interface


class Ruling(StrEnum):
    """What the node's rules do."""

    FORWARD = "forward"
    REJECT = "reject"
    DROP = "drop"
    UNTOUCHED = "untouched"


class Traced(msgspec.Struct, frozen=True):
    """A ruling, and for FORWARD the endpoints and those that see the node as source."""

    ruling: Ruling
    endpoints: frozenset[tuple[str, int]] = frozenset()
    masqueraded: frozenset[tuple[str, int]] = frozenset()


class Tracer(Seam):
    """Traces packets for one node and one family."""

    def trace(self, arrival: Arrival) -> Traced: ...


class Traits(msgspec.Struct, frozen=True):
    """What a mode decides without a plan."""

    serves_localhost: bool = False
    rejects_unserved_ports: bool = False
    drops_unallocated: bool = False
    filters_sources_first: bool = False
    refuses_on_all_addresses: bool = False
    """A node port without endpoints is refused on every address of the node, not only where node
    ports are served."""


TRAITS: Mapping[str, Traits] = {
    "nftables": Traits(
        rejects_unserved_ports=True, drops_unallocated=True, filters_sources_first=True
    ),
    "iptables": Traits(serves_localhost=True, refuses_on_all_addresses=True),
}


def traits_of(mode: str, flags: Mapping[str, str]) -> Traits:
    """The mode's traits, with what flags change about them."""
    traits = TRAITS.get(mode, Traits())
    if flags.get("iptables-localhost-nodeports") == "false":
        return msgspec.structs.replace(traits, serves_localhost=False)
    return traits


class PlanTracer:
    """Traces over plans."""

    def __init__(self, plans: Sequence[ServicePlan], node: NodeFacts, traits: Traits) -> None:
        self._plans = plans
        self._node = node
        self._traits = traits

    def trace(self, arrival: Arrival) -> Traced:
        for plan in self._plans:
            for frontend in plan.frontends:
                if self._matches(plan, frontend, arrival):
                    return self._decide(plan, frontend, arrival)
        return Traced(self._unserved(arrival))

    def _unserved(self, arrival: Arrival) -> Ruling:
        """Traffic to a service address that no frontend takes."""
        is_cluster_ip = any(plan.cluster_ip == arrival.destination for plan in self._plans)
        if is_cluster_ip and self._traits.rejects_unserved_ports:
            return Ruling.REJECT
        is_reserved = contained_in_any(arrival.destination, self._node.service_cidrs)
        if self._traits.drops_unallocated and is_reserved and not is_cluster_ip:
            return Ruling.DROP
        return Ruling.UNTOUCHED

    def _matches(self, plan: ServicePlan, frontend: Frontend, arrival: Arrival) -> bool:
        if (frontend.port, plan.id.protocol) != (arrival.port, arrival.protocol):
            return False
        if frontend.kind is FrontendKind.NODE_PORT:
            return self._serves_node_ports(arrival.destination) or (
                self._traits.refuses_on_all_addresses
                and frontend.verdict is not Verdict.FORWARD
                and arrival.destination in self._node.addresses
            )
        return frontend.address == arrival.destination

    def _serves_node_ports(self, address: str) -> bool:
        if is_loopback(address):
            node = self._node
            return self._traits.serves_localhost and node.node_ports_include_ipv4_loopback
        return address in self._node.node_port_addresses

    def _decide(self, plan: ServicePlan, frontend: Frontend, arrival: Arrival) -> Traced:
        has_any = plan.has_endpoints or self._traits.filters_sources_first
        if has_any and not _is_admitted(frontend, arrival.source):
            return Traced(Ruling.DROP)
        if frontend.has_short_circuit and (self._is_local_pod(arrival) or arrival.is_from_node):
            return self._forward(plan.cluster.endpoints, frontend, arrival)
        if frontend.verdict is Verdict.FORWARD:
            return self._forward(plan.pool(frontend.pool).endpoints, frontend, arrival)
        return Traced(Ruling.REJECT if frontend.verdict is Verdict.REJECT else Ruling.DROP)

    def _forward(
        self, endpoints: Sequence[Endpoint], frontend: Frontend, arrival: Arrival
    ) -> Traced:
        chosen = frozenset((e.address, e.port) for e in endpoints)
        if self._masquerades(frontend, arrival):
            return Traced(Ruling.FORWARD, chosen, chosen)
        hairpin = frozenset(e for e in chosen if e[0] == arrival.source)
        return Traced(Ruling.FORWARD, chosen, hairpin)

    def _masquerades(self, frontend: Frontend, arrival: Arrival) -> bool:
        match frontend.masquerade:
            case Masquerade.ALWAYS:
                return True
            case Masquerade.NODE_ITSELF:
                return arrival.is_from_node
            case Masquerade.NOT_LOCAL_PODS:
                return not self._is_local_pod(arrival)
            case Masquerade.NEVER:
                return False

    def _is_local_pod(self, arrival: Arrival) -> bool:
        detector = self._node.detector
        match detector.kind:
            case DetectorKind.CIDR:
                return contains(detector.value, arrival.source)
            case DetectorKind.BRIDGE:
                return arrival.interface == detector.value
            case DetectorKind.INTERFACE_PREFIX:
                return arrival.interface.startswith(detector.value)
            case DetectorKind.NONE:
                return False


def _is_admitted(frontend: Frontend, source: str) -> bool:
    """May this client use this frontend at all?"""
    if not frontend.source_ranges or source in frontend.vip_sources:
        return True
    return contained_in_any(source, frontend.source_ranges)
