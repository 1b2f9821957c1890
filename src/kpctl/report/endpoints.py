"""Each endpoint of a service port: used or not, why, and since when. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from kpctl.look.moments import moment
from kubeproxy.facts.endpoint import PortKey, SliceFacts, merge_rotation, merge_slices
from kubeproxy.facts.policy import DEFAULT_WEIGHT
from kubeproxy.inspection.journal import endpoint_state
from kubeproxy.inspection.types import Held
from kubeproxy.plan.types import ServicePlan


class EndpointReport(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One endpoint. `since` is when its state last changed, as far as that is remembered."""

    at: str
    node: str
    is_local: bool
    state: str
    is_used: bool
    because: str
    pools: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()
    since: datetime | None = None
    weight: int = DEFAULT_WEIGHT


def weight_text(weight: int) -> str:
    """Empty for the weight that an endpoint has without any."""
    return "" if weight == DEFAULT_WEIGHT else f"weight {weight}"


def endpoints_of(plan: ServicePlan, held: Held) -> tuple[EndpointReport, ...]:
    """Every endpoint that slices have for this service port, in canonical order."""
    key = PortKey(plan.id.port, plan.id.protocol)
    known = merge_slices(held.slices).get(key, ())
    excluded = {each.what: each.reason for each in plan.excluded}
    slices, pools = _slices_by_endpoint(held.slices, key), _Pools(plan)
    weights = merge_rotation(held.slices).weights
    changed = {change.endpoint: change.at for change in held.endpoint_changes}
    return tuple(
        EndpointReport(
            at=each.text,
            node=each.node_name,
            is_local=each.is_local,
            state=endpoint_state(each),
            is_used=each.text not in excluded,
            because=excluded.get(each.text) or pools.reason(each.text),
            pools=pools.names(each.text),
            slices=slices[each.text],
            zone_hints=tuple(sorted(each.zone_hints)),
            node_hints=tuple(sorted(each.node_hints)),
            since=moment(changed.get(each.text)),
            weight=weights.get(each.address, DEFAULT_WEIGHT),
        )
        for each in known
    )


class _Pools:
    """Which pools of a plan an endpoint is in, and why."""

    def __init__(self, plan: ServicePlan) -> None:
        pools = (("cluster", plan.cluster), ("local", plan.local))
        self._pools = [(name, p.reason, {e.text for e in p.endpoints}) for name, p in pools]

    def names(self, endpoint: str) -> tuple[str, ...]:
        return tuple(name for name, _, texts in self._pools if endpoint in texts)

    def reason(self, endpoint: str) -> str:
        reasons = [reason for _, reason, texts in self._pools if endpoint in texts]
        return "; ".join(dict.fromkeys(reasons))


def _slices_by_endpoint(
    slices: tuple[SliceFacts, ...], key: PortKey
) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for facts in slices:
        for port, endpoints in facts.endpoints:
            for endpoint in endpoints if port == key else ():
                found[endpoint.text] = (*found.get(endpoint.text, ()), facts.name)
    return found
