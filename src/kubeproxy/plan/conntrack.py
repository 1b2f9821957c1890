"""What the flows of a service port must be like, and so which ones are stale. Pure.

The kernel keeps sending an established flow where its first packet went. UDP has no handshake by
which a client would notice that its endpoint is gone, or that a Service has appeared where its
packets used to be lost, so such flows must be deleted. TCP and SCTP notice by themselves, but a
Service may want its clients to notice at once (`plan.draining`).

    a frontend is    stale are flows to it that
    SERVED           go to anything but the endpoints that serve it
    EMPTY            were translated, but not to an endpoint that still exists: none serves
    REMOVED          go to one of the endpoints it used to have
    DRAINED          were translated, but not to an endpoint that keeps its connections (TCP)

Flows to an endpoint that has left a rule with a limit are spared until the limit. What a frontend
of TCP leaves behind is left alone: what is no Service's any more may be anyone's.

Promises: rules come from the changed service port alone, and a change by which no flow can become
stale calls for none. Leaves to others: what is owed since when (`sync.flow_debts`), and reading and
deleting flows.

Addresses and ports are compared as they stand in a flow: network byte order, packed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.ids import Protocol
from kubeproxy.plan.types import ServicePlan

Socket: TypeAlias = bytes
"""Packed address followed by packed port. A port alone is a node port, on any node address."""

PORT_BYTES = 2


class Standing(IntEnum):
    """What a frontend is at present. Of several claims to one place the highest one counts."""

    REMOVED = 1
    EMPTY = 2
    SERVED = 3
    DRAINED = 4


ANY_ENDPOINT: Socket = b""
"""Stands for all endpoints that no rule names: those of before are not known any more."""


class FlowRule(Struct, frozen=True, gc=False):
    """What makes a flow to one frontend stale.

    `limit_seconds` is how long flows to an endpoint may go on that leaves `endpoints`. With
    `is_reset` the Service asks for that: its clients are to notice, so their sockets are closed
    along with the flow.
    """

    standing: Standing
    endpoints: frozenset[Socket]
    limit_seconds: float = 0.0
    is_reset: bool = False

    def is_noticed(self, destination: Socket, reply_source: Socket) -> bool:
        """Is the client of a stale flow like this one to notice? Only if it was translated."""
        return self.is_reset and reply_source != destination

    def is_stale(self, destination: Socket, reply_source: Socket) -> bool:
        """Must a flow that was sent to `destination` and is answered by `reply_source` go?"""
        if self.standing is Standing.REMOVED:
            return reply_source in self.endpoints
        if reply_source == destination:
            # It was never translated, so it is not ours. Only of UDP it may be in the way of ours,
            # if there is somewhere better to send it.
            return self.standing is Standing.SERVED
        return reply_source not in self.endpoints and ANY_ENDPOINT not in self.endpoints


FlowRules: TypeAlias = Mapping[Socket, FlowRule]
"""The rules of one service port, by the place where flows were sent first."""

NO_FLOWS: FlowRules = {}


def flow_rules(plan: ServicePlan | None) -> FlowRules:
    """What the flows of a service port must be like while this plan is programmed.

    Traffic policies do not count: a flow may go on to any endpoint that still serves. If none does,
    it may go on to those that exist, as there is nowhere better; but the address of an endpoint
    that is gone may be another pod's soon.
    """
    if plan is None or not has_flow_rules(plan):
        return NO_FLOWS
    rule = FlowRule(
        _standing(plan),
        frozenset(pack_socket(e.address, e.port) for e in plan.serving or plan.lingering),
        limit_seconds=plan.drain_seconds or 0.0,
        is_reset=plan.drain_seconds is not None,
    )
    return {pack_socket(f.address, f.port): rule for f in plan.frontends}


def has_flow_rules(plan: ServicePlan) -> bool:
    """Can a flow of this service port become stale?"""
    return plan.id.protocol is Protocol.UDP or plan.drain_seconds is not None


def _standing(plan: ServicePlan) -> Standing:
    if plan.id.protocol is not Protocol.UDP:
        return Standing.DRAINED
    return Standing.SERVED if plan.serving else Standing.EMPTY


class AnyAt(Struct, frozen=True, gc=False):
    """All endpoints that no rule names, but of flows to this place alone."""

    place: Socket


Departed: TypeAlias = Socket | AnyAt
"""An endpoint that has left a service port, or whatever endpoints a new place had before."""


def spare(rules: FlowRules, spared: Collection[Departed]) -> FlowRules:
    """These rules, as long as flows to these endpoints may go on as well."""
    if not spared:
        return rules
    named = frozenset(one for one in spared if not isinstance(one, AnyAt))
    return {
        place: replace(rule, endpoints=rule.endpoints.union(named, _unnamed(place, spared)))
        if rule.limit_seconds
        else rule
        for place, rule in rules.items()
    }


def _unnamed(place: Socket, spared: Collection[Departed]) -> Collection[Socket]:
    return (ANY_ENDPOINT,) if AnyAt(place) in spared else ()


def departed(former: FlowRules, now: FlowRules) -> frozenset[Departed]:
    """The endpoints to which flows may exist that rules with a limit have no more.

    A place that begins with these rules may have flows to any endpoint: from before a restart, or
    from before the Service asked for a limit. The other places have their time all the same.
    """
    gone: set[Departed] = set()
    for place, rule in now.items():
        if rule.limit_seconds:
            before = former[place].endpoints if place in former else {ANY_ENDPOINT}
            left = before - rule.endpoints
            gone |= {AnyAt(place) if one == ANY_ENDPOINT else one for one in left}
    return frozenset(gone)


def without_names(former: FlowRules) -> FlowRules:
    """Former rules of which the endpoints are no longer remembered."""
    unknown = frozenset({ANY_ENDPOINT})
    return {place: replace(rule, endpoints=unknown) for place, rule in former.items()}


def stayed(former: FlowRules, now: FlowRules) -> Iterator[Departed]:
    """What does not leave, or no more: endpoints that rules have, and places that are gone."""
    for rule in now.values():
        yield from rule.endpoints
    yield from (AnyAt(place) for place in former if place not in now)


def limit_of(rules: FlowRules) -> float:
    """How long an endpoint that leaves keeps its flows: the same in all rules of a service port."""
    return max((rule.limit_seconds for rule in rules.values()), default=0.0)


def may_leave_stale(former: FlowRules, now: FlowRules) -> bool:
    """Can a flow be stale under the rules of now that was right, or none of ours, before?"""
    return any(_is_narrower(rule, former.get(place)) for place, rule in now.items()) or any(
        _leaves_stale(rule) and place not in now for place, rule in former.items()
    )


def _leaves_stale(gone: FlowRule) -> bool:
    """Must flows to a frontend that is gone go?"""
    return bool(gone.endpoints) and gone.standing is not Standing.DRAINED


def _is_narrower(now: FlowRule, former: FlowRule | None) -> bool:
    if former is None or former.standing < now.standing:
        # Of TCP only translated flows count: with any endpoint right, none is stale.
        return now.standing is not Standing.DRAINED or ANY_ENDPOINT not in now.endpoints
    return not (former.endpoints <= now.endpoints or ANY_ENDPOINT in now.endpoints)


def merge_former(older: FlowRules, newer: FlowRules) -> FlowRules:
    """What flows may be like of which some began under the older rules and some under the newer.

    The endpoints are all that either has. What only one of them has was not there all the time.
    """
    return {
        place: _merge_rules(older.get(place), newer.get(place))
        for place in older.keys() | newer.keys()
    }


def _merge_rules(older: FlowRule | None, newer: FlowRule | None) -> FlowRule:
    if older is None or newer is None:
        held = older or newer
        assert held is not None
        is_tcp = held.standing is Standing.DRAINED
        unknown = {ANY_ENDPOINT} if is_tcp or held.limit_seconds else ()
        standing = held.standing if is_tcp else Standing.REMOVED
        return FlowRule(standing, held.endpoints.union(unknown))
    endpoints = older.endpoints | newer.endpoints
    return FlowRule(min(older.standing, newer.standing), endpoints)


def owed_rules(former: FlowRules, now: FlowRules) -> FlowRules:
    """The rules by which flows that began under the former ones are found stale or right."""
    removed = {
        place: FlowRule(Standing.REMOVED, rule.endpoints)
        for place, rule in former.items()
        if _leaves_stale(rule) and place not in now
    }
    return {**removed, **now}


def remaining(rules: FlowRules) -> FlowRules:
    """These rules without frontends that are gone, once their flows are."""
    return {place: rule for place, rule in rules.items() if rule.standing is not Standing.REMOVED}


def pack_socket(address: str, port: int) -> Socket:
    """Address (may be empty) and port as they stand in a flow."""
    packed = pack_address(address) if address else b""
    return packed + port.to_bytes(PORT_BYTES, "big")
