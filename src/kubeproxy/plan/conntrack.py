"""What the flows of a service port must be like, and so which ones are stale. Pure.

The kernel keeps sending an established flow where its first packet went. UDP has no handshake by
which a client would notice that its endpoint is gone, or that a Service has appeared where its
packets used to be lost, so such flows must be deleted. TCP and SCTP notice by themselves.

    a frontend is    stale are flows to it that
    SERVED           go to anything but the endpoints that serve it
    EMPTY            were translated, but not to an endpoint that still exists: none serves
    REMOVED          go to one of the endpoints it used to have

Promises: rules come from the changed service port alone, and a change by which no flow can become
stale calls for none. Leaves to others: what is owed since when (`sync.flow_debts`), and reading and
deleting flows.

Addresses and ports are compared as they stand in a flow: network byte order, packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct

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


class FlowRule(Struct, frozen=True, gc=False):
    """What makes a flow to one frontend stale."""

    standing: Standing
    endpoints: frozenset[Socket]

    def is_stale(self, destination: Socket, reply_source: Socket) -> bool:
        """Must a flow that was sent to `destination` and is answered by `reply_source` go?"""
        if self.standing is Standing.REMOVED:
            return reply_source in self.endpoints
        if self.standing is Standing.EMPTY and reply_source == destination:
            # It was never translated, so it is not ours, and there is nowhere to send it.
            return False
        return reply_source not in self.endpoints


FlowRules: TypeAlias = Mapping[Socket, FlowRule]
"""The rules of one service port, by the place where flows were sent first."""

NO_FLOWS: FlowRules = {}


def flow_rules(plan: ServicePlan | None) -> FlowRules:
    """What the flows of a UDP port must be like while this plan is programmed.

    Traffic policies do not count: a flow may go on to any endpoint that still serves. If none does,
    it may go on to those that exist, as there is nowhere better; but the address of an endpoint
    that is gone may be another pod's soon.
    """
    if plan is None or plan.id.protocol is not Protocol.UDP:
        return NO_FLOWS
    standing = Standing.SERVED if plan.serving else Standing.EMPTY
    endpoints = plan.serving or plan.lingering
    rule = FlowRule(standing, frozenset(pack_socket(e.address, e.port) for e in endpoints))
    return {pack_socket(f.address, f.port): rule for f in plan.frontends}


def may_leave_stale(former: FlowRules, now: FlowRules) -> bool:
    """Can a flow be stale under the rules of now that was right, or none of ours, before?"""
    return any(_is_narrower(rule, former.get(place)) for place, rule in now.items()) or any(
        rule.endpoints and place not in now for place, rule in former.items()
    )


def _is_narrower(now: FlowRule, former: FlowRule | None) -> bool:
    return former is None or former.standing < now.standing or not former.endpoints <= now.endpoints


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
        return FlowRule(Standing.REMOVED, held.endpoints)
    endpoints = older.endpoints | newer.endpoints
    return FlowRule(min(older.standing, newer.standing), endpoints)


def owed_rules(former: FlowRules, now: FlowRules) -> FlowRules:
    """The rules by which flows that began under the former ones are found stale or right."""
    removed = {
        place: FlowRule(Standing.REMOVED, rule.endpoints)
        for place, rule in former.items()
        if rule.endpoints and place not in now
    }
    return {**removed, **now}


def pack_socket(address: str, port: int) -> Socket:
    """Address (may be empty) and port as they stand in a flow."""
    packed = pack_address(address) if address else b""
    return packed + port.to_bytes(PORT_BYTES, "big")
