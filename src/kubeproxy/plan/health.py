"""What health checks mean for one Service: which endpoints are checked, and which pass. Pure.

An endpoint that fails is as good as one that is not ready: it leaves the pools, hints and locality
are decided without it, and UDP flows to it are cut. Two things are different. An endpoint that was
not checked yet passes, and where everything fails nothing is left out: a check that is wrong, or a
node that reaches nothing, must not take a Service down.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from kubeproxy.facts.endpoint import Endpoint, PortKey
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.policy import CheckKind, HealthCheck, Rotation
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.plan.endpoints import FAILS, may_serve
from kubeproxy.plan.limits import is_refused_port

ALL_FAIL = f"every endpoint {FAILS}"
"""Marks the note about that."""

_NONE_FAILING: Mapping[str, str] = {}


class Health(Struct, frozen=True):
    """What checks make of the endpoints of a service port.

    `endpoints` are those that pass, or all if none does; `rotation.failing` has only those that
    are therefore left out.
    """

    endpoints: tuple[Endpoint, ...]
    rotation: Rotation
    notes: tuple[str, ...] = ()


def check_of(service: ServiceFacts, protocol: Protocol) -> HealthCheck | None:
    """How endpoints of this protocol are checked.

    A check of another protocol has nothing to try at an endpoint's own port.
    """
    check = service.policy.health_check if service.policy else None
    if check is None or check.port:
        return check
    own = Protocol.UDP if check.kind is CheckKind.UDP else Protocol.TCP
    return check if protocol is own else None


def checked_endpoints(
    service: ServiceFacts, endpoints: Mapping[PortKey, tuple[Endpoint, ...]], node: NodeFacts
) -> dict[str, tuple[str, int]]:
    """The address and port to try for each endpoint that may serve, by the endpoint's text."""
    return {
        endpoint.text: (endpoint.address, check.port or endpoint.port)
        for port in service.ports
        if (check := check_of(service, port.protocol)) is not None
        for endpoint in endpoints.get(PortKey(port.name, port.protocol), ())
        if may_serve(endpoint) and not is_refused_port(endpoint.address, check.port, node)
    }


def refused_check_notes(
    service: ServiceFacts, protocol: Protocol, endpoints: tuple[Endpoint, ...], node: NodeFacts
) -> tuple[str, ...]:
    """Name the first endpoint that is not checked because of the port that the check tries."""
    check = check_of(service, protocol)
    if check is None or not node.limits.refused_node_ports:
        return ()
    refused = (e.text for e in endpoints if is_refused_port(e.address, check.port, node))
    reason = f"its health check tries port {check.port} of this node, in --refused-node-ports"
    return tuple(f"{text} is not checked: {reason}" for text in islice(refused, 1))


def passing(
    service: ServiceFacts,
    protocol: Protocol,
    endpoints: tuple[Endpoint, ...],
    rotation: Rotation,
) -> Health:
    """Leave out endpoints that fail, unless that leaves none that may serve."""
    if service.policy is None or service.policy.health_check is None:
        return Health(endpoints, rotation)
    if check_of(service, protocol) is None:
        note = _not_checked(service.policy.health_check, protocol)
        return Health(endpoints, replace(rotation, failing=_NONE_FAILING), (note,))
    failing = rotation.failing
    if not failing:
        return Health(endpoints, rotation)
    found = tuple(e for e in endpoints if e.text not in failing)
    if any(map(may_serve, found)):
        return Health(found, rotation)
    notes = tuple(_all_fail(e, failing) for e in endpoints if may_serve(e))[:1]
    return Health(endpoints, replace(rotation, failing=_NONE_FAILING), notes)


def _all_fail(first: Endpoint, failing: Mapping[str, str]) -> str:
    return f"{ALL_FAIL}, so all are used; {first.text}: {failing[first.text]}"


def _not_checked(check: HealthCheck, protocol: Protocol) -> str:
    return (
        f"endpoints are not checked: health check {check.kind} is not for {protocol.value}; with"
        f" port= it tries another port of the same address"
    )
