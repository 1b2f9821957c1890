"""A plan for people and for programs: plain data, and rows with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from msgspec import Struct

from kubeproxy.api.annotations import format_draining, format_health_check
from kubeproxy.config.command import Settings
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.plan.guard import guard_text
from kubeproxy.plan.types import Frontend, FrontendKind, Pool, ServicePlan, Verdict
from kubeproxy.run.startup import PRIMARY

ALL = "*"
UNKNOWN = "<primary address>"
SHORT_CIRCUIT = "from pods of this node and the node itself"


class NodePorts(Struct, frozen=True):
    """Where each family serves node ports: `*` for all addresses, else one by one."""

    places: Mapping[Family, Sequence[str]]

    @classmethod
    def of(cls, settings: Settings, nodes: Iterable[NodeFacts]) -> NodePorts:
        known = {node.family: node for node in nodes}
        is_primary = list(settings.config.node_port_addresses or ()) == [PRIMARY]
        if is_primary and not any(node.addresses for node in known.values()):
            return cls(dict.fromkeys(known, (UNKNOWN,)))
        return cls({family: _places(node) for family, node in known.items()})

    def texts(self, family: Family, frontend: Frontend) -> list[str]:
        """Where traffic for a frontend arrives: one place, or several for a node port."""
        if frontend.kind is not FrontendKind.NODE_PORT:
            return [join_host_port(frontend.address, frontend.port)]
        return [_join(place, frontend.port) for place in self.places[family]]


def _places(node: NodeFacts) -> Sequence[str]:
    if node.node_ports_match_all:
        return (ALL,)
    return node.node_port_addresses or node.node_port_cidrs


def _join(place: str, port: int) -> str:
    return join_host_port(place, port) if place[0].isalnum() else f"{place}:{port}"


def plan_document(family: Family, plan: ServicePlan, node_ports: NodePorts) -> dict[str, object]:
    """The plan as plain data, every choice with its reason."""
    asked = {"algorithm": plan.algorithm.value} if plan.algorithm else {}
    if plan.health_check is not None:
        asked["healthCheck"] = format_health_check(plan.health_check)
    if plan.drain_seconds is not None:
        asked["draining"] = format_draining(plan.drain_seconds)
    return {
        "service": plan.id.label,
        "protocol": plan.id.protocol.value,
        "ipFamily": family.value,
        "frontends": [_frontend(f, node_ports.texts(family, f)) for f in plan.frontends],
        "pools": {
            name: _pool(pool) for name, pool in (("cluster", plan.cluster), ("local", plan.local))
        },
        "affinitySeconds": plan.affinity_seconds,
        **asked,
        **_sources(plan),
        "healthCheckNodePort": plan.health_check_node_port,
        "excluded": [{"what": e.what, "reason": e.reason} for e in plan.excluded],
        "notes": list(plan.notes),
    }


def _sources(plan: ServicePlan) -> dict[str, object]:
    """The lists of sources, where there are any."""
    if plan.guard is None:
        return {}
    allow = {} if plan.guard.allow is None else {"allowSources": list(plan.guard.allow)}
    return {**allow, "denySources": list(plan.guard.deny)}


def _frontend(frontend: Frontend, places: list[str]) -> dict[str, object]:
    return {
        "kind": frontend.kind.value,
        "at": places,
        "verdict": frontend.verdict.value,
        "pool": frontend.pool.value,
        "masquerade": frontend.masquerade.value,
        "shortCircuit": frontend.has_short_circuit,
        "sourceRanges": list(frontend.source_ranges),
        "reason": frontend.reason,
    }


def _pool(pool: Pool) -> dict[str, object]:
    return {
        "endpoints": [_endpoint(endpoint, weight) for endpoint, weight in _weighted(pool)],
        "reason": pool.reason,
    }


def _weighted(pool: Pool) -> Iterator[tuple[Endpoint, int | None]]:
    """The endpoints with their weights; None where all are equal."""
    return zip(pool.endpoints, pool.weights or repeat(None), strict=False)


def _endpoint(endpoint: Endpoint, weight: int | None) -> dict[str, object]:
    share = {} if weight is None else {"weight": weight}
    return {"at": endpoint.text, "node": endpoint.node_name, "local": endpoint.is_local, **share}


class Row(Struct, frozen=True):
    """Service port, where traffic arrives, what happens, to whom, why."""

    service: str
    places: tuple[str, ...]
    fate: str
    targets: tuple[str, ...]
    why: str


def plan_rows(plans: Iterable[tuple[Family, ServicePlan]], node_ports: NodePorts) -> list[Row]:
    """The rows of all plans."""
    rows: list[Row] = []
    for family, plan in plans:
        label = f"{plan.id.label} {plan.id.protocol.value}"
        for frontend in plan.frontends:
            rows += _frontend_rows(label, plan, frontend, node_ports.texts(family, frontend))
        rows += [Row(label, (), "left out", (e.what,), e.reason) for e in plan.excluded]
        rows += [Row(label, (), "note", (), note) for note in plan.notes]
    return rows


def _frontend_rows(
    label: str, plan: ServicePlan, frontend: Frontend, places: list[str]
) -> Iterator[Row]:
    """One row for what the policy decides, and one for those to whom it does not apply.

    What is dropped or rejected goes nowhere, and its row names no endpoint.
    """
    where = tuple(f"{frontend.kind.value} {place}" for place in places)
    pool = plan.pool(frontend.pool)
    is_forwarded = frontend.verdict is Verdict.FORWARD
    why = [frontend.reason, pool.reason] if is_forwarded else [frontend.reason]
    if places == [_join(ALL, frontend.port)]:
        why.append("on all addresses of the node")
    if is_forwarded:
        why += _conditions(plan, frontend)
    targets = _texts(pool) if is_forwarded else ()
    yield Row(label, where, frontend.verdict.value, targets, _sentence(why))
    if frontend.has_short_circuit:
        why = [SHORT_CIRCUIT, *_conditions(plan, frontend)]
        yield Row(label, where, "forward", _texts(plan.cluster), _sentence(why))


def _conditions(plan: ServicePlan, frontend: Frontend) -> Iterator[str]:
    if frontend.source_ranges:
        yield f"only from {', '.join(frontend.source_ranges)}"
    if plan.guard is not None:
        yield guard_text(plan.guard)
    if plan.affinity_seconds:
        yield f"a client stays for {plan.affinity_seconds} s"
    if plan.algorithm:
        yield f"algorithm {plan.algorithm}"
    if plan.drain_seconds is not None:
        yield f"draining: {format_draining(plan.drain_seconds)}"


def _texts(pool: Pool) -> tuple[str, ...]:
    return tuple(
        endpoint.text if weight is None else f"{endpoint.text} weight {weight}"
        for endpoint, weight in _weighted(pool)
    )


def _sentence(parts: Iterable[str]) -> str:
    return "; ".join(filter(None, parts))
