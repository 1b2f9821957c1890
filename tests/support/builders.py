"""Short ways to write facts in tests: only what matters to the sentence is spelled out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kubeproxy.facts.endpoint import Endpoint, PortKey, SliceFacts
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.limits import NO_LIMITS, Limits
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts
from kubeproxy.facts.policy import NO_POLICY, Algorithm, HealthCheck, Policy, Rotation
from kubeproxy.facts.service import PortFacts, ServiceFacts
from kubeproxy.plan.service import plan_service
from kubeproxy.plan.types import ServicePlan

NODE = "worker-a"


def endpoint(
    address: str = "10.244.1.5",
    port: int = 8080,
    *,
    local: bool = False,
    ready: bool = True,
    serving: bool = True,
    terminating: bool = False,
    zones: Sequence[str] = (),
    nodes: Sequence[str] = (),
) -> Endpoint:
    return Endpoint(
        address=address,
        port=port,
        is_local=local,
        is_ready=ready,
        is_serving=serving,
        is_terminating=terminating,
        node_name=NODE if local else "worker-b",
        zone_hints=frozenset(zones),
        node_hints=frozenset(nodes),
    )


def port(
    number: int = 80,
    *,
    name: str = "http",
    protocol: Protocol = Protocol.TCP,
    node_port: int = 0,
) -> PortFacts:
    return PortFacts(name=name, protocol=protocol, port=number, node_port=node_port)


def service(
    name: str = "default/web",
    *,
    cluster_ip: str = "10.96.0.10",
    ports: Sequence[PortFacts] = (),
    node_port: int = 0,
    external_ips: Sequence[str] = (),
    load_balancer_ips: Sequence[str] = (),
    source_ranges: Sequence[str] = (),
    affinity_seconds: int = 0,
    external_local: bool = False,
    internal_local: bool = False,
    health_check_node_port: int = 0,
    algorithm: Algorithm | None = None,
    health_check: HealthCheck | None = None,
    allow_sources: Sequence[str] | None = None,
    deny_sources: Sequence[str] = (),
    drain_seconds: float | None = None,
) -> ServiceFacts:
    namespace, _, short = name.partition("/")
    allow = None if allow_sources is None else tuple(allow_sources)
    asked = Policy(
        algorithm,
        health_check,
        drain_seconds=drain_seconds,
        allow_sources=allow,
        deny_sources=tuple(deny_sources),
    )
    return ServiceFacts(
        name=ServiceName(namespace, short),
        cluster_ip=cluster_ip,
        ports=tuple(ports) or (port(node_port=node_port),),
        external_ips=tuple(external_ips),
        load_balancer_ips=tuple(load_balancer_ips),
        source_ranges=tuple(source_ranges),
        affinity_seconds=affinity_seconds,
        is_external_policy_local=external_local,
        is_internal_policy_local=internal_local,
        health_check_node_port=health_check_node_port,
        policy=asked if asked != NO_POLICY else None,
    )


def endpoint_slice(
    name: str = "default/web",
    endpoints: Sequence[Endpoint] = (),
    *,
    slice_name: str = "web-1",
    port_name: str = "http",
    protocol: Protocol = Protocol.TCP,
    weights: Mapping[str, int] | None = None,
) -> SliceFacts:
    namespace, _, short = name.partition("/")
    key = PortKey(port_name, protocol)
    return SliceFacts(
        ServiceName(namespace, short),
        slice_name,
        ((key, tuple(endpoints)),),
        weights=tuple((weights or {}).items()),
    )


def node(
    family: Family = Family.IPV4,
    *,
    name: str = NODE,
    ip: str = "",
    zone: str = "",
    detector: LocalDetector | None = None,
    node_port_cidrs: Sequence[str] = (),
    addresses: Sequence[str] = (),
    service_cidrs: Sequence[str] = (),
    masquerade_all: bool = False,
    external_ips: bool = True,
    large: bool = False,
    limits: Limits = NO_LIMITS,
    own_ports: Sequence[int] = (),
    mode: str = "",
    algorithms: Collection[Algorithm] = tuple(Algorithm),
) -> NodeFacts:
    """A node that recognises its pods by the cluster CIDR, unless a detector is given."""
    is_ipv4 = family is Family.IPV4
    own = ip or ("192.0.2.10" if is_ipv4 else "2001:db8:10::10")
    cidr = "10.244.0.0/16" if is_ipv4 else "fd00:244::/56"
    return NodeFacts(
        name=name,
        family=family,
        ip=own,
        zone=zone,
        detector=detector or LocalDetector(DetectorKind.CIDR, cidr),
        node_port_cidrs=tuple(node_port_cidrs) or (family.zero_cidr,),
        addresses=tuple(addresses) or (own,),
        service_cidrs=tuple(service_cidrs),
        masquerade_all=masquerade_all,
        own_ports=tuple(own_ports),
        allows_external_ips=external_ips,
        is_large_cluster=large,
        limits=limits,
        mode=mode,
        algorithms=frozenset(algorithms),
    )


def plan(
    facts: ServiceFacts | None = None,
    endpoints: Sequence[Endpoint] = (),
    on: NodeFacts | None = None,
    *,
    weights: Mapping[str, int] | None = None,
    failing: Mapping[str, str] | None = None,
) -> ServicePlan:
    """The plan of the Service's first port, which the endpoints serve."""
    facts = facts or service()
    return plans(facts, endpoints, on, weights=weights, failing=failing)[0]


def plans(
    facts: ServiceFacts,
    endpoints: Sequence[Endpoint],
    on: NodeFacts | None = None,
    *,
    weights: Mapping[str, int] | None = None,
    failing: Mapping[str, str] | None = None,
) -> tuple[ServicePlan, ...]:
    """The plans of all ports; every port is served by the same endpoints."""
    ordered = tuple(sorted(endpoints, key=lambda e: e.text))
    served: Mapping[PortKey, tuple[Endpoint, ...]] = {
        PortKey(p.name, p.protocol): ordered for p in facts.ports
    }
    return plan_service(facts, served, on or node(), Rotation(weights or {}, failing or {}))
