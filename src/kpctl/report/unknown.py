"""Why nothing is found for what was asked: what is possible, and what is nearest. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from kpctl.report.missing import MOST_NAMED, named, ports_text
from kpctl.snapshot.target import Target
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.address import contained_in_any
from kubeproxy.facts.ids import ServiceName
from kubeproxy.inspection.types import Problem
from kubeproxy.plan.types import ServicePlan

NOT_SERVED = (
    "it does not exist, is headless (clusterIP: None), is of type ExternalName, or is left to"
    " another proxy (label service.kubernetes.io/service-proxy-name)"
)


def why_unknown(snapshot: Snapshot, target: Target) -> tuple[str, ...]:
    """Return sentences about a question that no service port answers."""
    if target.address:
        return tuple(_address(snapshot, target))
    if target.node_port:
        return tuple(_node_port(snapshot, target))
    return tuple(_name(snapshot, target))


def problems_of(snapshot: Snapshot, name: ServiceName) -> tuple[Problem, ...]:
    """Return what could not be used of a Service and of its slices."""
    if snapshot.status is None:
        return ()
    slices = {
        f"{name.namespace}/{facts.name}"
        for (_, service), held in snapshot.held.items()
        for facts in (held.slices if service == name else ())
    }
    return tuple(
        problem
        for problem in snapshot.status.problems
        # An object of a manifest may have no namespace.
        if (problem.kind == "Service" and problem.name in (str(name), name.name))
        or (problem.kind == "EndpointSlice" and problem.name in slices)
    )


# --- names ---


def _name(snapshot: Snapshot, target: Target) -> Iterator[str]:
    served = sorted({name for (_, name), held in snapshot.held.items() if held.service})
    if target.service in served:
        yield from _no_such_port(snapshot, target)
        return
    yield f"no Service {target.text} is served on this node: {NOT_SERVED}"
    wanted = target.service or ServiceName("default", target.name)
    for problem in problems_of(snapshot, wanted):
        yield f"{problem.kind} {problem.name} could not be used: {problem.reason}"
    slices = [f.name for (_, n), held in snapshot.held.items() if n == wanted for f in held.slices]
    if slices:
        yield f"EndpointSlice {named(slices)} names it, and serves nothing as long as it is absent"
    same = [str(name) for name in served if name.name == target.name]
    if same:
        yield f"a Service of this name is in another namespace: {named(same)}"
        return
    near = get_close_matches(str(wanted), map(str, served), MOST_NAMED, 0.7)
    if near:
        yield f"similar names: {named(near)}"


def _no_such_port(snapshot: Snapshot, target: Target) -> Iterator[str]:
    plans = [p for _, p in snapshot.plans() if p.id.service == target.service]
    if plans:
        yield f"{target.service} has no such port; it has {ports_text(plans)}"
    else:
        yield f"{target.service} has no port that can be used"


# --- places ---


def _address(snapshot: Snapshot, target: Target) -> Iterator[str]:
    plans = [plan for _, plan in snapshot.plans()]
    owners = [p for p in plans if any(f.address == target.address for f in p.frontends)]
    if owners:
        for service in sorted({plan.id.service for plan in owners}):
            ports = ports_text(plan for plan in owners if plan.id.service == service)
            yield f"{target.address} is an address of {service}, which has {ports}"
        return
    yield f"no Service has the address {target.address}"
    for name, text in sorted(_ignored(snapshot, target.address)):
        yield f"{name}: {text}"
    nodes = [pipeline.node for pipeline in snapshot.pipelines.values()]
    if any(contained_in_any(target.address, node.service_cidrs) for node in nodes):
        yield "it is within the Service network, where no Service has it at present"
    if any(target.address in (node.ip, *node.addresses) for node in nodes):
        yield "it is an address of this node, where node ports are served"
        yield from _nearest_node_ports(plans, target.port)
    behind = [str(p.id.service) for p in plans if _has_endpoint(p, target.address)]
    if behind:
        yield f"it is the address of an endpoint, of {named(behind)}"


def _ignored(snapshot: Snapshot, address: str) -> set[tuple[ServiceName, str]]:
    """What Services hold of this address and do not use, by Service."""
    return {
        (name, text)
        for (_, name), held in snapshot.held.items()
        for text in (held.service.ignored if held.service else ())
        if address in text.split()
    }


def _has_endpoint(plan: ServicePlan, address: str) -> bool:
    return any(endpoint.address == address for endpoint in plan.reachable)


def _node_port(snapshot: Snapshot, target: Target) -> Iterator[str]:
    plans = [plan for _, plan in snapshot.plans()]
    yield f"no Service has the node port {target.text}"
    others = [p for p in plans if p.node_port == target.node_port]
    if others:
        yield f"{named(p.id.label for p in others)} has it for {others[0].id.protocol.value}"
        return
    yield from _nearest_node_ports(plans, target.node_port)
    same = [plan.id.label for plan in plans if plan.port == target.node_port]
    if same:
        yield f"it is the port of {named(same)}, at the cluster IP: ask for the Service by name"


def _nearest_node_ports(plans: list[ServicePlan], wanted: int) -> Iterator[str]:
    having = {plan.node_port: plan.id.label for plan in plans if plan.node_port}
    nearest = sorted(having, key=lambda port: abs(port - wanted))[:3]
    if nearest:
        yield "the nearest node ports are " + ", ".join(f"{p} ({having[p]})" for p in nearest)
    else:
        yield "no Service has a node port"
