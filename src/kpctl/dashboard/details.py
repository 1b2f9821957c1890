"""Everything about one Service, as plain data for its page: plans, endpoints, reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kpctl.dashboard.rows import Known
from kpctl.look.planview import NodePorts, plan_document
from kubeproxy.facts.endpoint import Endpoint, PortKey, merge_slices
from kubeproxy.facts.ids import Family
from kubeproxy.inspection.journal import endpoint_state
from kubeproxy.inspection.types import Held
from kubeproxy.plan.types import PoolName, ServicePlan

Document = dict[str, object]


def service_document(known: Known, node_ports: NodePorts) -> list[Document]:
    """Return one document per family that knows the Service."""
    return [_family(family, held, plans, node_ports) for family, (held, plans) in known.items()]


def _family(
    family: Family, held: Held, plans: Sequence[ServicePlan], node_ports: NodePorts
) -> Document:
    endpoints = merge_slices(held.slices)
    return {
        "ipFamily": family.value,
        "ports": [
            {
                **plan_document(family, plan, node_ports),
                "port": plan.id.port,
                "endpoints": _endpoints(
                    plan, endpoints.get(PortKey(plan.id.port, plan.id.protocol), ())
                ),
            }
            for plan in plans
        ],
        "slices": [facts.name for facts in held.slices],
        "hints": list(_mismatches(held, plans)),
        "changed": {"at": held.changed.at, "event": held.changed.event} if held.changed else None,
        "endpointChanges": [
            {"at": c.at, "endpoint": c.endpoint, "before": c.before, "after": c.after}
            for c in held.endpoint_changes
        ],
        "refused": [{"what": r.what, "reason": r.reason} for r in held.refused],
    }


def _endpoints(plan: ServicePlan, endpoints: Sequence[Endpoint]) -> list[Document]:
    """Every endpoint that is known for the port, with the pools that it is in or the reason."""
    excluded = {each.what: each.reason for each in plan.excluded}
    pools = {name: {e.text for e in plan.pool(name).endpoints} for name in PoolName}
    found = []
    for endpoint in endpoints:
        text = endpoint.text
        used = [name for name in PoolName if text in pools[name]]
        reasons = [plan.pool(name).reason for name in used] or [excluded.get(text, "")]
        found.append(
            {
                "at": text,
                "node": endpoint.node_name,
                "local": endpoint.is_local,
                "state": endpoint_state(endpoint),
                "zones": sorted(endpoint.zone_hints),
                "pools": [name.value for name in used],
                "reason": reasons[0],
            }
        )
    return found


def _mismatches(held: Held, plans: Sequence[ServicePlan]) -> Iterator[str]:
    """Why endpoints that exist are not found: no Service, or ports of other names."""
    if held.service is None:
        yield "EndpointSlices name this Service, but no such Service is served here"
        return
    wanted = {PortKey(plan.id.port, plan.id.protocol) for plan in plans}
    offered = {key for facts in held.slices for key, _ in facts.endpoints}
    for key in sorted(offered - wanted):
        yield f"the slices have port {_port(key)}, which the Service does not have"
    if not held.slices:
        yield f"there is no {held.family.value} EndpointSlice for this Service"
        return
    for key in sorted(wanted - offered):
        yield f"the Service has port {_port(key)}, which no slice has"


def _port(key: PortKey) -> str:
    return f"“{key.name}” {key.protocol.value}" if key.name else f"without a name {key.protocol}"
