"""One line per Service for the list of the dashboard: what a glance should tell. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.inspection.types import Held
from kubeproxy.plan.types import Frontend, FrontendKind, ServicePlan, Verdict

REFUSED = "refused"
NO_SERVICE = "noService"
FORWARD = "forward"
PARTIAL = "partial"

Known = Mapping[Family, tuple[Held, tuple[ServicePlan, ...]]]
"""One Service in every family that knows it."""


class Row(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A Service at a glance.

    `state` is the worst of its frontends: `refused` by the kernel, `noService` for slices without a
    Service, `reject` and `drop` as in a plan, `partial` if only some ports have endpoints, else
    `forward`. Endpoints are counted by address, in the family that has most of them.
    """

    namespace: str
    name: str
    state: str
    addresses: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    used: int = 0
    endpoints: int = 0
    changed_at: float = 0.0


def row(name: ServiceName, known: Known, *, is_refused: bool) -> Row:
    """Return the row of one Service."""
    plans = [plan for _, found in known.values() for plan in found]
    changed = [held.changed.at for held, _ in known.values() if held.changed]
    return Row(
        namespace=name.namespace,
        name=name.name,
        state=REFUSED if is_refused else _state(plans),
        addresses=tuple(dict.fromkeys(_place(f) for plan in plans for f in plan.frontends)),
        families=tuple(family.value for family in known),
        used=max((_used(found) for _, found in known.values()), default=0),
        endpoints=max((_endpoints(held) for held, _ in known.values()), default=0),
        changed_at=max(changed, default=0.0),
    )


def refused_names(owners: Iterable[str]) -> frozenset[ServiceName]:
    """Return the Services of refused owners, which are texts such as `shop/web:http/TCP`."""
    found = set()
    for owner in owners:
        namespace, _, rest = owner.partition("/")
        name = rest.partition("/")[0].partition(":")[0]
        if name:
            found.add(ServiceName(namespace, name))
    return frozenset(found)


def _state(plans: Collection[ServicePlan]) -> str:
    if not plans:
        return NO_SERVICE
    verdicts = {frontend.verdict for plan in plans for frontend in plan.frontends}
    if verdicts == {Verdict.REJECT}:
        return Verdict.REJECT.value
    if Verdict.REJECT in verdicts:
        return PARTIAL
    return Verdict.DROP.value if Verdict.DROP in verdicts else FORWARD


def _place(frontend: Frontend) -> str:
    if frontend.kind is FrontendKind.NODE_PORT:
        return f"node:{frontend.port}"
    return join_host_port(frontend.address, frontend.port)


def _used(plans: Iterable[ServicePlan]) -> int:
    return len({endpoint.address for plan in plans for endpoint in plan.reachable})


def _endpoints(held: Held) -> int:
    return len({e.address for facts in held.slices for _, found in facts.endpoints for e in found})
