"""The one decision path for all modes: a Service and its endpoints become plans. Pure.

One plan per service port, at the cost of the size of that Service. No mode decides again about
traffic policies, readiness, hints, gates or source ranges: it renders what a plan holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from msgspec import Struct

from kubeproxy.facts.address import contained_in_any
from kubeproxy.facts.endpoint import Endpoint, PortKey
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.policy import FULL_ROTATION, Rotation
from kubeproxy.facts.service import PortFacts, ServiceFacts
from kubeproxy.plan.balance import (
    algorithm_notes,
    effective_algorithm,
    taking_part,
    with_weights,
)
from kubeproxy.plan.draining import drain_seconds_of, draining_notes, flow_endpoints
from kubeproxy.plan.endpoints import Choice, choose_endpoints, excluded_endpoints
from kubeproxy.plan.guard import guard_notes, guard_of
from kubeproxy.plan.health import check_of, passing, refused_check_notes
from kubeproxy.plan.limits import admit_addresses, admit_endpoints, admit_node_port
from kubeproxy.plan.types import (
    Excluded,
    Frontend,
    FrontendKind,
    Masquerade,
    PoolName,
    ServicePlan,
    Verdict,
)

GATE_OFF = "feature gate AllowServiceExternalIPs is off"


def plan_service(
    service: ServiceFacts,
    endpoints: Mapping[PortKey, tuple[Endpoint, ...]],
    node: NodeFacts,
    rotation: Rotation = FULL_ROTATION,
) -> tuple[ServicePlan, ...]:
    """One plan per port of the Service."""
    return tuple(
        _plan_port(
            service, port, endpoints.get(PortKey(port.name, port.protocol), ()), node, rotation
        )
        for port in service.ports
    )


def _plan_port(
    service: ServiceFacts,
    port: PortFacts,
    endpoints: tuple[Endpoint, ...],
    node: NodeFacts,
    rotation: Rotation,
) -> ServicePlan:
    accessible = _is_externally_accessible(service, port)
    endpoints, refused = admit_endpoints(endpoints, node)
    outside = _outside_places(service, port, node)
    uses_cluster = not service.is_internal_policy_local or accessible
    uses_local = service.is_internal_policy_local or (
        service.is_external_policy_local and accessible
    )
    taking, quiesced = taking_part(endpoints, rotation.weights)
    health = passing(service, port.protocol, taking, rotation)
    choice = choose_endpoints(
        health.endpoints,
        uses_cluster=uses_cluster,
        uses_local=uses_local,
        node_name=node.name,
        zone=node.zone,
    )
    drain_seconds = drain_seconds_of(service, port.protocol)
    serving, lingering = flow_endpoints(
        port.protocol,
        drain_seconds,
        endpoints,
        taking=chain((e for e in health.endpoints if e.is_ready), choice.reachable),
        failing=health.rotation.failing,
    )
    return ServicePlan(
        id=service.port_id(port),
        cluster_ip=service.cluster_ip,
        port=port.port,
        node_port=outside.node_port,
        cluster=with_weights(choice.cluster, rotation.weights),
        local=with_weights(choice.local, rotation.weights),
        reachable=choice.reachable,
        has_endpoints=choice.has_endpoints,
        frontends=tuple(_frontends(service, port, choice, node, outside)),
        affinity_seconds=service.affinity_seconds,
        algorithm=effective_algorithm(service, node),
        health_check=check_of(service, port.protocol),
        drain_seconds=drain_seconds,
        is_internal_policy_local=service.is_internal_policy_local,
        is_external_policy_local=service.is_external_policy_local,
        is_externally_accessible=accessible,
        uses_cluster_pool=uses_cluster,
        uses_local_pool=uses_local,
        health_check_node_port=service.health_check_node_port,
        serving=serving,
        lingering=lingering,
        endpoint_count=len(endpoints),
        hairpin=tuple(e for e in endpoints if e.is_local),
        quiesced=quiesced,
        guard=guard_of(service, node),
        excluded=(
            *refused,
            *excluded_endpoints(endpoints, choice, health.rotation),
            *outside.excluded,
        ),
        notes=(
            *choice.notes,
            *service.ignored,
            *rotation.ignored,
            *algorithm_notes(service, node),
            *health.notes,
            *refused_check_notes(service, port.protocol, endpoints, node),
            *draining_notes(service, port.protocol),
            *guard_notes(service, node),
        ),
    )


def _is_externally_accessible(service: ServiceFacts, port: PortFacts) -> bool:
    """By what the object holds, before any gate: upstream decides the same way."""
    return bool(port.node_port or service.load_balancer_ips or service.external_ips)


class _OutsidePlaces(Struct, frozen=True, gc=False):
    """Where a service port is served for the outside, and where it is not."""

    external_ips: tuple[str, ...]
    load_balancer_ips: tuple[str, ...]
    node_port: int
    excluded: tuple[Excluded, ...]


def _outside_places(service: ServiceFacts, port: PortFacts, node: NodeFacts) -> _OutsidePlaces:
    limits = node.limits
    external, refused = admit_addresses(
        service.external_ips, limits.external_ip_cidrs, "--external-ip-cidrs"
    )
    balanced, also_refused = admit_addresses(
        service.load_balancer_ips, limits.load_balancer_cidrs, "--load-balancer-cidrs"
    )
    if not node.allows_external_ips:
        external = ()
        refused = tuple(Excluded(a, GATE_OFF) for a in service.external_ips)
    node_port, refused_port = admit_node_port(port, node)
    excluded = (*refused, *also_refused, *refused_port)
    return _OutsidePlaces(external, balanced, node_port, excluded)


def _frontends(
    service: ServiceFacts,
    port: PortFacts,
    choice: Choice,
    node: NodeFacts,
    places: _OutsidePlaces,
) -> Iterator[Frontend]:
    if service.cluster_ip:
        yield _cluster_ip(service, port, choice, node)
    outside = _outside_policy(service, choice)
    for address in places.external_ips:
        yield outside.frontend(FrontendKind.EXTERNAL_IP, address, port.port)
    vip_sources = _vip_sources(service, node, places.load_balancer_ips)
    for address in places.load_balancer_ips:
        yield outside.frontend(
            FrontendKind.LOAD_BALANCER,
            address,
            port.port,
            source_ranges=service.source_ranges,
            vip_sources=vip_sources,
        )
    if places.node_port:
        yield outside.frontend(FrontendKind.NODE_PORT, "", places.node_port)


def _verdict(is_local_policy: bool, choice: Choice) -> tuple[Verdict, str]:
    if not choice.has_endpoints:
        return Verdict.REJECT, "no endpoints"
    if is_local_policy and not choice.local:
        return Verdict.DROP, "no local endpoints, and the policy is Local"
    if is_local_policy:
        return Verdict.FORWARD, "policy Local"
    return Verdict.FORWARD, "policy Cluster"


def _pool_name(is_local_policy: bool) -> PoolName:
    return PoolName.LOCAL if is_local_policy else PoolName.CLUSTER


def _cluster_ip(
    service: ServiceFacts, port: PortFacts, choice: Choice, node: NodeFacts
) -> Frontend:
    verdict, reason = _verdict(service.is_internal_policy_local, choice)
    return Frontend(
        kind=FrontendKind.CLUSTER_IP,
        address=service.cluster_ip,
        port=port.port,
        verdict=verdict,
        pool=_pool_name(service.is_internal_policy_local),
        masquerade=_internal_masquerade(node),
        reason=reason,
    )


def _internal_masquerade(node: NodeFacts) -> Masquerade:
    if node.masquerade_all:
        return Masquerade.ALWAYS
    return Masquerade.NOT_LOCAL_PODS if node.detector.is_implemented else Masquerade.NEVER


class _OutsidePolicy(Struct, frozen=True, gc=False):
    """What externalTrafficPolicy decided, the same for every external frontend of a port."""

    verdict: Verdict
    reason: str
    is_local: bool
    has_short_circuit: bool

    def frontend(
        self,
        kind: FrontendKind,
        address: str,
        port: int,
        *,
        source_ranges: tuple[str, ...] = (),
        vip_sources: tuple[str, ...] = (),
    ) -> Frontend:
        return Frontend(
            kind=kind,
            address=address,
            port=port,
            verdict=self.verdict,
            pool=_pool_name(self.is_local),
            masquerade=Masquerade.NODE_ITSELF if self.is_local else Masquerade.ALWAYS,
            has_short_circuit=self.has_short_circuit,
            source_ranges=source_ranges,
            vip_sources=vip_sources,
            reason=self.reason,
        )


def _outside_policy(service: ServiceFacts, choice: Choice) -> _OutsidePolicy:
    is_local = service.is_external_policy_local
    verdict, reason = _verdict(is_local, choice)
    return _OutsidePolicy(verdict, reason, is_local, is_local and choice.has_endpoints)


def _vip_sources(
    service: ServiceFacts, node: NodeFacts, load_balancer_ips: tuple[str, ...]
) -> tuple[str, ...]:
    """A node within the ranges reaches a VIP with the VIP itself as source address."""
    if service.source_ranges and contained_in_any(node.ip, service.source_ranges):
        return load_balancer_ips
    return ()
