"""What happens to a packet, decided over plans alone. Pure.

This tracer reads plans; modes have others over their items. The few things a mode decides without a
plan (what happens to unserved ports of a cluster IP, where node ports are served) are the table
`TRAITS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from kpctl.trace.packets import Arrival, End, Step, StepKind, Tracer, Way
from kubeproxy.facts.address import contained_in_any, contains, is_loopback, join_host_port
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import DetectorKind, NodeFacts
from kubeproxy.plan.guard import refusal
from kubeproxy.plan.types import Frontend, FrontendKind, Masquerade, Pool, ServicePlan, Verdict


class Traits(Struct, frozen=True):
    """What a mode decides without a plan."""

    serves_localhost: bool = False
    rejects_unserved_ports: bool = False
    drops_unallocated: bool = False
    filters_sources_first: bool = False
    refuses_on_all_addresses: bool = False
    """A node port without endpoints is refused on every address of the node, not only where node
    ports are served."""
    binds_addresses: bool = False
    """Service addresses are the node's: no port of them is left to the network, every client uses
    the same endpoints, the node itself is like any client, and a Local policy without local
    endpoints uses the others."""
    carries: bool = False
    """A process of the node connects to endpoints, so that they see the node. It knows no SCTP."""


TRAITS: Mapping[str, Traits] = {
    "nftables": Traits(
        rejects_unserved_ports=True, drops_unallocated=True, filters_sources_first=True
    ),
    "iptables": Traits(serves_localhost=True, refuses_on_all_addresses=True),
    "ipvs": Traits(rejects_unserved_ports=True, filters_sources_first=True, binds_addresses=True),
    "userspace": Traits(serves_localhost=True, carries=True),
}


def traits_of(mode: str, *, localhost_node_ports: bool = True) -> Traits:
    """The mode's traits, with what a setting changes about them."""
    traits = TRAITS[mode]
    return traits if localhost_node_ports else replace(traits, serves_localhost=False)


class PlanTracer(Tracer):
    """Traces over plans."""

    def __init__(self, plans: Sequence[ServicePlan], node: NodeFacts, traits: Traits) -> None:
        self._plans = plans
        self._node = node
        self._traits = traits

    def ways(self, arrival: Arrival) -> Sequence[Way]:
        found = self.match(arrival)
        if found is None:
            return [self._unserved(arrival)]
        plan, frontend = found
        return list(self._decide(plan, frontend, arrival))

    def match(self, arrival: Arrival) -> tuple[ServicePlan, Frontend] | None:
        """The frontend that takes the packet, with its plan."""
        for plan in self._plans:
            if not (self._traits.carries and plan.id.protocol is Protocol.SCTP):
                for frontend in plan.frontends:
                    if self._matches(plan, frontend, arrival):
                        return plan, frontend
        return None

    def _unserved(self, arrival: Arrival) -> Way:
        """Traffic to a service address that no frontend takes."""
        is_ours = arrival.destination in self._addresses()
        if is_ours and self._traits.rejects_unserved_ports:
            step = _do("reject", "no Service serves this port of a service address")
            return _ended(End.REJECTED, arrival, step)
        is_reserved = contained_in_any(arrival.destination, self._node.service_cidrs)
        if self._traits.drops_unallocated and is_reserved and not is_ours:
            step = _do("drop", "no Service has this address of a service network")
            return _ended(End.DROPPED, arrival, step)
        return _ended(End.ACCEPTED, arrival, _do("pass", "no Service takes it"))

    def _addresses(self) -> set[str]:
        """Addresses of which the mode owns every port."""
        own = {plan.cluster_ip for plan in self._plans}
        if self._traits.binds_addresses:
            frontends = (each for plan in self._plans for each in plan.frontends)
            own |= {each.address for each in frontends} - set(self._node.addresses)
        return own - {""}

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

    def _decide(self, plan: ServicePlan, frontend: Frontend, arrival: Arrival) -> Iterator[Way]:
        place = join_host_port(arrival.destination, frontend.port)
        name = f"{frontend.kind.value} {place}/{plan.id.protocol.value}"
        seen = (Step(StepKind.LOOK, name, str(plan.id), plan.id),)
        has_any = plan.has_endpoints or self._traits.filters_sources_first
        if has_any and not _is_admitted(frontend, arrival.source):
            ranges = ", ".join(frontend.source_ranges)
            step = _do("drop", f"{arrival.source} is not in loadBalancerSourceRanges ({ranges})")
            yield _ended(End.DROPPED, arrival, *seen, step)
            return
        refused = refusal(plan.guard, arrival.source) if plan.has_endpoints else ""
        if refused:
            yield _ended(End.DROPPED, arrival, *seen, _do("drop", refused))
            return
        pool, reason = self._pool(plan, frontend, arrival)
        if pool:
            chosen = _do("choose", _choice_text(plan, pool, reason))
            steps = (*seen, chosen)
            yield from self._forward(pool, frontend, arrival, steps)
            return
        is_drop = frontend.verdict is Verdict.DROP and not self._traits.binds_addresses
        step = _do("drop" if is_drop else "reject", frontend.reason or "it has no endpoint")
        yield _ended(End.DROPPED if is_drop else End.REJECTED, arrival, *seen, step)

    def _pool(self, plan: ServicePlan, frontend: Frontend, arrival: Arrival) -> tuple[Pool, str]:
        """The endpoints that this client may use, and why these."""
        own = plan.pool(frontend.pool)
        if self._traits.binds_addresses:
            pool = own or plan.cluster
            return pool, pool.reason
        is_inside = self._is_local_pod(arrival) or arrival.is_from_node
        if frontend.has_short_circuit and is_inside:
            reason = "policy Local does not apply to pods of this node and to the node itself"
            return plan.cluster, reason
        if frontend.verdict is Verdict.FORWARD:
            return own, own.reason
        return Pool(), ""

    def _forward(
        self,
        pool: Pool,
        frontend: Frontend,
        arrival: Arrival,
        steps: tuple[Step, ...],
    ) -> Iterator[Way]:
        weights = pool.weights or (1,) * len(pool.endpoints)
        for endpoint, weight in zip(pool.endpoints, weights, strict=True):
            reason = self._masquerade_reason(frontend, arrival, endpoint)
            hidden = (_do("masquerade", reason),) if reason else ()
            place = join_host_port(endpoint.address, endpoint.port)
            yield Way(
                end=End.ACCEPTED,
                destination=endpoint.address,
                port=endpoint.port,
                is_translated=True,
                is_masqueraded=bool(reason),
                share=Fraction(weight, sum(weights)),
                steps=(*steps, _do("dnat", f"to {place}"), *hidden),
            )

    def _masquerade_reason(self, frontend: Frontend, arrival: Arrival, endpoint: Endpoint) -> str:
        """Why the endpoint sees the node instead of the client; empty if it sees the client."""
        if self._traits.carries:
            return "a process of this node connects to the endpoint"
        if endpoint.address == arrival.source:
            return "an endpoint that reaches itself must not see its own address"
        match frontend.masquerade:
            case Masquerade.ALWAYS if self._node.masquerade_all:
                return "--masquerade-all"
            case Masquerade.ALWAYS:
                return "replies to traffic from outside must pass this node again"
            case Masquerade.NODE_ITSELF if (
                arrival.is_from_node and not self._traits.binds_addresses
            ):
                return "it comes from the node itself"
            case Masquerade.NOT_LOCAL_PODS if not self._is_local_pod(arrival):
                return f"the client is no pod of this node ({self._detector_text()})"
        return ""

    def _detector_text(self) -> str:
        detector = self._node.detector
        return f"{detector.kind.value} {detector.value}"

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


def _choice_text(plan: ServicePlan, pool: Pool, reason: str) -> str:
    count = len(pool.endpoints)
    by = f" by {plan.algorithm}" if plan.algorithm and count > 1 else ""
    return f"{count} endpoint{'s' if count > 1 else ''}{by}: {reason}" if reason else ""


def _do(name: str, text: str) -> Step:
    return Step(StepKind.DO, name, text)


def _ended(end: End, arrival: Arrival, *steps: Step) -> Way:
    return Way(end, arrival.destination, arrival.port, steps=steps)


def _is_admitted(frontend: Frontend, source: str) -> bool:
    """May this client use this frontend at all?"""
    if not frontend.source_ranges or source in frontend.vip_sources:
        return True
    return contained_in_any(source, frontend.source_ranges)
