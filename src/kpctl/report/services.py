"""Services as they are programmed, one row per service port: `kpctl get`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from kpctl.look.moments import ago, instant, moment
from kpctl.look.planview import NodePorts
from kpctl.report.endpoints import EndpointReport, endpoints_of, weight_text
from kpctl.report.explain import refused_of
from kpctl.report.types import ChangeReport, PlaceReport, ProgrammedReport
from kpctl.snapshot.target import Found, Target, find
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.endpoint import merge_slices
from kubeproxy.facts.ids import Family
from kubeproxy.plan.types import ServicePlan

HEADINGS = ("service port", "arrives at", "endpoints", "changed")
WIDE_HEADINGS = (*HEADINGS, "policies", "affinity", "slices")
MOST_ENDPOINTS = 6


def programmed(snapshot: Snapshot, target: Target, pod: str = "") -> list[ProgrammedReport]:
    """Return the service ports that match; with `pod`, those with an endpoint at this address."""
    node_ports = NodePorts.of(snapshot.settings, [p.node for p in snapshot.pipelines.values()])
    return [
        _report(snapshot, each, node_ports)
        for each in find(snapshot, target)
        if not pod or _has_pod(snapshot, each, pod)
    ]


def _has_pod(snapshot: Snapshot, found: Found, pod: str) -> bool:
    family, plan = found
    known = merge_slices(snapshot.held[family, plan.id.service].slices)
    return any(endpoint.address == pod for each in known.values() for endpoint in each)


def _report(snapshot: Snapshot, found: Found, node_ports: NodePorts) -> ProgrammedReport:
    family, plan = found
    held = snapshot.held[family, plan.id.service]
    changed = held.changed
    return ProgrammedReport(
        service_port=plan.id.label,
        protocol=plan.id.protocol.value,
        ip_family=family.value,
        frontends=tuple(_places(family, plan, node_ports)),
        endpoints=endpoints_of(plan, held),
        changed=ChangeReport(instant(changed.at), changed.event) if changed else None,
        internal_traffic_policy="Local" if plan.is_internal_policy_local else "Cluster",
        external_traffic_policy="Local" if plan.is_external_policy_local else "Cluster",
        affinity_seconds=plan.affinity_seconds,
        slices=tuple(facts.name for facts in held.slices),
        algorithm=plan.algorithm or "",
        refused=tuple(refused.reason for refused in refused_of(held, plan)),
    )


def _places(family: Family, plan: ServicePlan, node_ports: NodePorts) -> Iterator[PlaceReport]:
    for frontend in plan.frontends:
        at = tuple(node_ports.texts(family, frontend))
        yield PlaceReport(frontend.kind.value, at, frontend.verdict.value, frontend.reason)


def rows(
    reports: Sequence[ProgrammedReport], snapshot: Snapshot, *, is_wide: bool
) -> list[tuple[str, ...]]:
    """The cells of each service port."""
    now = moment(snapshot.status.now) if snapshot.status else None
    started = moment(snapshot.status.started_at) if snapshot.status else None
    return [
        (
            f"{each.service_port} {each.protocol}",
            "\n".join(_place_texts(each)),
            "\n".join(_endpoint_texts(each.endpoints, is_wide=is_wide)),
            _changed(each, now, started),
            *(_wide_cells(each) if is_wide else ()),
        )
        for each in reports
    ]


def _place_texts(report: ProgrammedReport) -> Iterator[str]:
    for reason in report.refused:
        yield f"REFUSED: {reason}"
    for place in report.frontends:
        verdict = "" if place.verdict == "forward" else f" ({place.verdict}: {place.because})"
        yield from (f"{place.kind} {at}{verdict}" for at in place.at)


def _endpoint_texts(endpoints: Sequence[EndpointReport], *, is_wide: bool) -> Iterator[str]:
    shown = endpoints if is_wide else endpoints[:MOST_ENDPOINTS]
    for each in shown:
        used = filter(None, (each.at, weight_text(each.weight)))
        yield " ".join(used) if each.is_used else f"{each.at} (out: {each.because})"
    if len(shown) < len(endpoints):
        yield f"and {len(endpoints) - len(shown)} more"
    if not endpoints:
        yield "none"


def _changed(report: ProgrammedReport, now: datetime | None, started: datetime | None) -> str:
    if now is None or started is None:
        return "-"
    if report.changed is None:
        return f"not lately (started {ago(started, now)})"
    return f"{ago(report.changed.at, now)}: {report.changed.event}"


def _wide_cells(report: ProgrammedReport) -> Iterator[str]:
    policies = (
        f"internal {report.internal_traffic_policy}, external {report.external_traffic_policy}"
    )
    yield f"{policies}, {report.algorithm}" if report.algorithm else policies
    yield f"{report.affinity_seconds} s" if report.affinity_seconds else "-"
    yield "\n".join(report.slices) or "-"
