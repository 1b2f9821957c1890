"""Why a service port has no endpoint that could answer: the real reason, as sentences. Pure.

"No endpoints" says nothing about the object to correct. What slices hold is compared with what the
Service asks for; slices that seem to be meant for it, but name another Service, are found as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from kpctl.look.moments import clock_text, instant
from kpctl.report.endpoints import EndpointReport
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.endpoint import PortKey, SliceFacts
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.plan.findings import refused_addresses
from kubeproxy.plan.types import ServicePlan

MOST_NAMED = 5
"""How many of many similar things a sentence names."""


def why_no_endpoints(
    snapshot: Snapshot, family: Family, plan: ServicePlan, endpoints: tuple[EndpointReport, ...]
) -> tuple[str, ...]:
    """Return nothing if there are endpoints that could answer and no address is refused."""
    if plan.has_endpoints:
        return (*_refused(plan), *_not_local(snapshot, plan, endpoints))
    held = snapshot.held[family, plan.id.service]
    if not held.slices:
        return (*_refused(plan), *_no_slices(snapshot, family, plan.id.service))
    if not endpoints:
        wanted = PortKey(plan.id.port, plan.id.protocol)
        return (*_refused(plan), *_no_match(wanted, held.slices))
    texts = {each.what for each in plan.excluded if each.is_refused}
    others = tuple(e for e in endpoints if e.at not in texts)
    return (*_refused(plan), *(_not_ready(snapshot, others) if others else ()))


def _refused(plan: ServicePlan) -> Iterator[str]:
    if found := refused_addresses([plan]):
        yield f"this node refuses {found}"


def _not_local(
    snapshot: Snapshot, plan: ServicePlan, endpoints: tuple[EndpointReport, ...]
) -> Iterator[str]:
    policies = [
        name
        for name, is_lacking in (
            ("internalTrafficPolicy", not plan.has_internal),
            ("externalTrafficPolicy", plan.is_externally_accessible and not plan.has_external),
        )
        if is_lacking
    ]
    if not policies:
        return
    policy = f"{' and '.join(policies)} is Local"
    nodes = named({e.node or "an unknown node" for e in endpoints if not e.is_local})
    here = tuple(e for e in endpoints if e.is_local)
    if here:
        states = " or ".join(sorted({e.state for e in here}))
        yield (
            f"{policy}, and no endpoint on this node can serve: {named(e.at for e in here)}"
            f" {'is' if len(here) == 1 else 'are'} {states}{_since(snapshot, here)};"
            f" others are on: {nodes}"
        )
    else:
        yield f"{policy}, and all endpoints are on other nodes: {nodes}"


# --- slices ---


def _no_slices(snapshot: Snapshot, family: Family, name: ServiceName) -> Iterator[str]:
    other = snapshot.held.get((family.other, name))
    if other is not None and other.slices:
        slices = named(facts.name for facts in other.slices)
        yield (
            f"its EndpointSlices are of {family.other.value} only ({slices}), and this is its"
            f" {family.value} address"
        )
        return
    hints = [*_elsewhere(snapshot, name), *_misnamed(snapshot, name)]
    yield f"no EndpointSlice of {family.value} names it" + (
        ""
        if hints
        else ": its selector matches no pod, or it has no selector and no slice was made"
    )
    yield from hints


def _orphans(snapshot: Snapshot) -> dict[ServiceName, list[str]]:
    """Slices by the Service that they name, where no such Service is served here."""
    served = {name for (_, name), held in snapshot.held.items() if held.service is not None}
    found: dict[ServiceName, list[str]] = {}
    for (_, name), held in snapshot.held.items():
        if name not in served:
            found.setdefault(name, []).extend(facts.name for facts in held.slices)
    return found


def _elsewhere(snapshot: Snapshot, name: ServiceName) -> Iterator[str]:
    for orphan, slices in _orphans(snapshot).items():
        if orphan.name == name.name and orphan.namespace != name.namespace:
            yield (
                f"EndpointSlice {named(slices)} in namespace {orphan.namespace} names a Service"
                f" {name.name}, but a slice serves Services of its own namespace only; this one is"
                f" in {name.namespace}"
            )


def _misnamed(snapshot: Snapshot, name: ServiceName) -> Iterator[str]:
    orphans = {o.name: s for o, s in _orphans(snapshot).items() if o.namespace == name.namespace}
    for near in get_close_matches(name.name, orphans, MOST_NAMED, 0.6):
        yield (
            f"EndpointSlice {named(orphans[near])} names a Service {name.namespace}/{near}, which"
            " does not exist here"
        )


# --- ports ---


def _no_match(wanted: PortKey, slices: tuple[SliceFacts, ...]) -> Iterator[str]:
    offered = {key: facts.name for facts in slices for key, _ in facts.endpoints}
    names = named(facts.name for facts in slices)
    if wanted in offered:
        yield f"EndpointSlice {names} has no endpoints: no pod matches the Service's selector"
    elif not offered:
        yield (
            f"EndpointSlice {names} has no ports: no pod has the Service's target port, or no pod"
            " matches its selector"
        )
    else:
        yield from (_mismatch(wanted, key, slice_name) for key, slice_name in offered.items())


def _mismatch(wanted: PortKey, offered: PortKey, slice_name: str) -> str:
    if wanted.name == offered.name:
        return (
            f"EndpointSlice {slice_name} has the port {_name(offered.name)} for"
            f" {offered.protocol.value}, and the Service wants {wanted.protocol.value}"
        )
    protocol = "" if wanted.protocol is offered.protocol else _other_protocol(wanted, offered)
    return (
        f"the port of EndpointSlice {slice_name} is named {_name(offered.name)}, and the Service"
        f" wants {_name(wanted.name)}{protocol}"
    )


def _other_protocol(wanted: PortKey, offered: PortKey) -> str:
    return f" (and {wanted.protocol.value}, not {offered.protocol.value})"


def _name(name: str) -> str:
    return f"`{name}`" if name else "`` (no name)"


# --- readiness ---


def _not_ready(snapshot: Snapshot, endpoints: tuple[EndpointReport, ...]) -> Iterator[str]:
    states = sorted({e.state for e in endpoints})
    count = "its only endpoint is" if len(endpoints) == 1 else f"all {len(endpoints)} endpoints are"
    yield f"{count} {' or '.join(states)}{_since(snapshot, endpoints)}"


def _since(snapshot: Snapshot, endpoints: tuple[EndpointReport, ...]) -> str:
    if snapshot.status is None:
        return ""
    now = instant(snapshot.status.now)
    changed = [endpoint.since for endpoint in endpoints if endpoint.since]
    if changed:
        last = "" if len(endpoints) == 1 else "the last of them "
        return f", {last}since {clock_text(max(changed), now)}"
    started = clock_text(instant(snapshot.status.started_at), now)
    return f", for as long as this proxy remembers (it started {started})"


# --- words ---


def named(names: Iterable[str]) -> str:
    """Return these names in order, the first of them if there are many."""
    ordered = sorted(set(names))
    more = len(ordered) - MOST_NAMED
    shown = ", ".join(ordered[:MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown


def ports_text(plans: Iterable[ServicePlan]) -> str:
    """Return the ports of plans as `80/TCP (http)`."""
    return named(
        f"{plan.port}/{plan.id.protocol.value}" + (f" ({plan.id.port})" if plan.id.port else "")
        for plan in plans
    )
