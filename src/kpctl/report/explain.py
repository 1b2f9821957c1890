"""Explain a Service: from a snapshot to a report. Pure; the text is in `text`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from kpctl.look.moments import instant, moment
from kpctl.look.planview import NodePorts
from kpctl.report.endpoints import endpoints_of
from kpctl.report.missing import why_no_endpoints
from kpctl.report.sources import Source, family_of_source, sources_of, way_of
from kpctl.report.types import (
    ChangeReport,
    EndpointChangeReport,
    Explanation,
    FrontendReport,
    PortReport,
    ServiceReport,
)
from kpctl.report.unknown import problems_of, why_unknown
from kpctl.snapshot.target import Found, Target, find
from kpctl.snapshot.types import Snapshot
from kubeproxy.api.annotations import format_draining, format_health_check
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.inspection.types import Changed, Held, Refused
from kubeproxy.plan.types import Frontend, FrontendKind, ServicePlan


def explain(snapshot: Snapshot, target: Target, source: str = "") -> Explanation:
    """Answer a question; `source` is a checked `--from`."""
    found = find(snapshot, target, family_of_source(source))
    services = tuple(
        service_report(snapshot, name, list(plans), source)
        for name, plans in groupby(found, key=lambda each: each[1].id.service)
    )
    return Explanation(
        asked=target.text,
        origin=snapshot.origin,
        node=snapshot.node,
        mode=snapshot.mode,
        now=moment(snapshot.status.now) if snapshot.status else None,
        services=services,
        faults=() if services else why_unknown(snapshot, target),
    )


def is_served(explanation: Explanation) -> bool:
    """Does everything that was asked about reach an endpoint, from every client asked about?"""
    ports = [port for service in explanation.services for port in service.ports]
    return bool(ports) and all(
        not port.refused and client.is_forwarded
        for port in ports
        for frontend in port.frontends
        for client in frontend.clients
    )


def service_report(
    snapshot: Snapshot, name: ServiceName, found: Sequence[Found], source: str = ""
) -> ServiceReport:
    """Report some service ports of one Service."""
    helds = [held for family in snapshot.pipelines if (held := snapshot.held.get((family, name)))]
    changes = {change for held in helds for change in held.endpoint_changes}
    changed = max((held.changed for held in helds if held.changed), key=_at, default=None)
    return ServiceReport(
        service=str(name),
        changed=ChangeReport(instant(changed.at), changed.event) if changed else None,
        remembered_since=moment(snapshot.status.started_at) if snapshot.status else None,
        ports=tuple(port_report(snapshot, family, plan, source) for family, plan in found),
        endpoint_changes=tuple(
            EndpointChangeReport(instant(c.at), c.endpoint, c.before, c.after)
            for c in sorted(changes, key=lambda change: (change.at, change.endpoint))
        ),
        problems=problems_of(snapshot, name),
    )


def _at(changed: Changed) -> float:
    return changed.at


def port_report(
    snapshot: Snapshot, family: Family, plan: ServicePlan, source: str = ""
) -> PortReport:
    """Report one service port in one family."""
    held = snapshot.held[family, plan.id.service]
    pipeline = snapshot.pipelines[family]
    clients = sources_of(source, pipeline.node, lambda: _local_addresses(snapshot, family))
    endpoints = endpoints_of(plan, held)
    used = {endpoint.at for endpoint in endpoints}
    fragment = pipeline.ledger.fragment(plan.id)
    return PortReport(
        service_port=plan.id.label,
        protocol=plan.id.protocol.value,
        ip_family=family.value,
        port=plan.port,
        node_port=plan.node_port,
        internal_traffic_policy=_policy(plan.is_internal_policy_local),
        external_traffic_policy=_policy(plan.is_external_policy_local),
        affinity_seconds=plan.affinity_seconds,
        health_check_node_port=plan.health_check_node_port,
        frontends=tuple(_frontends(snapshot, family, plan, clients)),
        endpoints=endpoints,
        notes=(*plan.notes, *_addresses_left_out(plan, used), *_health(snapshot, family, plan)),
        faults=why_no_endpoints(snapshot, family, plan, endpoints),
        claimed_by=tuple(_claimed_by(snapshot, family, plan)),
        refused=refused_of(held, plan),
        kernel_objects=tuple(snapshot.backends[family].lines(fragment)),
        algorithm=plan.algorithm or "",
        health_check=format_health_check(plan.health_check) if plan.health_check else "",
        draining="" if plan.drain_seconds is None else format_draining(plan.drain_seconds),
    )


def _policy(is_local: bool) -> str:
    return "Local" if is_local else "Cluster"


def _local_addresses(snapshot: Snapshot, family: Family) -> frozenset[str]:
    """Addresses of endpoints on this node: pods, where no network tells which these are."""
    return frozenset(
        endpoint.address
        for (each, _), held in snapshot.held.items()
        for facts in (held.slices if each is family else ())
        for _, endpoints in facts.endpoints
        for endpoint in endpoints
        if endpoint.is_local
    )


def _frontends(
    snapshot: Snapshot, family: Family, plan: ServicePlan, clients: Sequence[Source]
) -> Iterator[FrontendReport]:
    node = snapshot.pipelines[family].node
    node_ports = NodePorts.of(snapshot.settings, [node])
    for frontend in plan.frontends:
        yield FrontendReport(
            kind=frontend.kind.value,
            at=tuple(node_ports.texts(family, frontend)),
            verdict=frontend.verdict.value,
            because=frontend.reason,
            source_ranges=frontend.source_ranges,
            clients=tuple(
                way_of(plan, frontend, client, node=node, mode=snapshot.mode) for client in clients
            ),
        )


def _addresses_left_out(plan: ServicePlan, endpoints: set[str]) -> Iterator[str]:
    """Addresses of the Service that are not used; endpoints that are not are shown as such."""
    for each in plan.excluded:
        if each.what not in endpoints:
            yield f"{each.what} is not used: {each.reason}"


def _health(snapshot: Snapshot, family: Family, plan: ServicePlan) -> Iterator[str]:
    if plan.health_check_node_port:
        ready = snapshot.pipelines[family].local_ready.get(plan.id.service, 0)
        answer = "200" if ready else "503, so that load balancers avoid this node"
        yield (
            f"health check node port {plan.health_check_node_port} answers {answer}: endpoints"
            f" ready on this node: {ready}"
        )


def refused_of(held: Held, plan: ServicePlan) -> tuple[Refused, ...]:
    """What is held back of this port, or of the Service as a whole."""
    whole = {str(plan.id), str(plan.id.service), plan.id.label}
    return tuple(refused for refused in held.refused if refused.what in whole)


def _claimed_by(snapshot: Snapshot, family: Family, plan: ServicePlan) -> Iterator[str]:
    own = {_place(frontend) for frontend in plan.frontends}
    for other in snapshot.pipelines[family].plans():
        is_rival = other.id != plan.id and other.id.protocol is plan.id.protocol
        if is_rival and any(_place(frontend) in own for frontend in other.frontends):
            yield other.id.label


def _place(frontend: Frontend) -> tuple[bool, str, int]:
    return frontend.kind is FrontendKind.NODE_PORT, frontend.address, frontend.port
