"""A plan for people and for programs: plain data, and a table with the reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family
from kubeproxy.plan.types import Frontend, Pool, ServicePlan

if TYPE_CHECKING:
    from rich.table import Table


def plan_document(family: Family, plan: ServicePlan) -> dict[str, object]:
    """The plan as plain data, every choice with its reason."""
    return {
        "service": plan.id.label,
        "protocol": plan.id.protocol.value,
        "ipFamily": family.value,
        "frontends": [_frontend(frontend) for frontend in plan.frontends],
        "pools": {
            name: _pool(pool) for name, pool in (("cluster", plan.cluster), ("local", plan.local))
        },
        "affinitySeconds": plan.affinity_seconds,
        "healthCheckNodePort": plan.health_check_node_port,
        "excluded": [{"what": e.what, "reason": e.reason} for e in plan.excluded],
        "notes": list(plan.notes),
    }


def _frontend(frontend: Frontend) -> dict[str, object]:
    return {
        "kind": frontend.kind.value,
        "at": frontend_text(frontend),
        "verdict": frontend.verdict.value,
        "pool": frontend.pool.value,
        "masquerade": frontend.masquerade.value,
        "shortCircuit": frontend.has_short_circuit,
        "sourceRanges": list(frontend.source_ranges),
        "reason": frontend.reason,
    }


def _pool(pool: Pool) -> dict[str, object]:
    return {
        "endpoints": [_endpoint(endpoint) for endpoint in pool.endpoints],
        "reason": pool.reason,
    }


def _endpoint(endpoint: Endpoint) -> dict[str, object]:
    return {"at": endpoint.text, "node": endpoint.node_name, "local": endpoint.is_local}


def frontend_text(frontend: Frontend) -> str:
    if not frontend.address:
        return f"*:{frontend.port}"
    return join_host_port(frontend.address, frontend.port)


def plan_rows(plans: Iterable[tuple[Family, ServicePlan]]) -> list[tuple[str, str, str, str, str]]:
    """Rows of the table: service, where traffic arrives, what happens, to whom, why."""
    rows = []
    for _, plan in plans:
        label = f"{plan.id.label} {plan.id.protocol.value}"
        for frontend in plan.frontends:
            rows.append((label, *_frontend_cells(plan, frontend)))
            label = ""
        rows.extend(("", "", "left out", e.what, e.reason) for e in plan.excluded)
        rows.extend(("", "", "note", "", note) for note in plan.notes)
    return rows


def _frontend_cells(plan: ServicePlan, frontend: Frontend) -> tuple[str, str, str, str]:
    where = f"{frontend.kind.value} {frontend_text(frontend)}"
    if not frontend.accepts_anyone:
        return where, frontend.verdict.value, "", frontend.reason
    pool = plan.pool(frontend.pool)
    fate, why = frontend.verdict.value, [frontend.reason, pool.reason]
    targets = pool.endpoints
    if frontend.has_short_circuit:
        here = "pods of this node and the node itself use all endpoints"
        why.append(here)
        targets = targets or plan.cluster.endpoints
    if frontend.source_ranges:
        why.append(f"only from {', '.join(frontend.source_ranges)}")
    if plan.affinity_seconds:
        why.append(f"a client stays for {plan.affinity_seconds} s")
    return where, fate, "\n".join(e.text for e in targets), "; ".join(w for w in why if w)


def plan_table(plans: Iterable[tuple[Family, ServicePlan]], node: str) -> Table:
    """The rows for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Services as node {node} sees them", title_justify="left")
    for heading in ("service port", "arrives at", "is", "goes to", "because"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("is", "goes to"))
    for row in plan_rows(plans):
        # As text, because rich takes the brackets around an IPv6 address for a style.
        table.add_row(*map(Text, row))
    return table
