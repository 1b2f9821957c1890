"""Which UDP flows the kernel remembers wrongly after service ports changed. Pure.

The kernel keeps sending an established flow where its first packet went. UDP has no handshake by
which a client would notice that its endpoint is gone, or that a Service has appeared where its
packets used to be lost, so such flows must be deleted. TCP and SCTP notice by themselves.

Promises: rules come from the changed service ports alone, and none come from ports whose frontends
and serving endpoints stayed the same. Leaves reading and deleting flows to others.

Addresses and ports are compared as they stand in a flow: network byte order, packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.plan.types import ServicePlan

Socket: TypeAlias = bytes
"""Packed address followed by packed port."""

PORT_BYTES = 2

PlanChange: TypeAlias = tuple[ServicePlan | None, ServicePlan | None]
"""A service port before and after; None where there was or is none."""


class StaleRules(Struct, frozen=True):
    """What makes a flow stale; keys are where it was sent first, as packed address and port.

    `serving`: a flow to this frontend must go to one of these endpoints.
    `removed`: a flow to this former frontend must not go to one of these, its former endpoints.
    A key of a port alone is a node port, and holds for `node_addresses` only.
    """

    serving: Mapping[Socket, frozenset[Socket]] = {}
    removed: Mapping[Socket, frozenset[Socket]] = {}
    node_addresses: frozenset[bytes] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.serving or self.removed)

    @property
    def destinations(self) -> frozenset[Socket]:
        """Every frontend with a rule; a port alone stands for any address."""
        return frozenset(self.serving.keys() | self.removed.keys())


def stale_rules(changes: Iterable[PlanChange], node: NodeFacts) -> StaleRules:
    """The rules these changes call for; empty rules mean there is nothing to look for.

    On start, and whenever what was before is not known, `before` is None for every service port.
    """
    serving: dict[Socket, frozenset[Socket]] = {}
    removed: dict[Socket, frozenset[Socket]] = {}
    for before, after in changes:
        old, new = _frontends(before), _frontends(after)
        if old == new:
            continue
        # Of several changes to one frontend the last one counts.
        for frontend in old.keys() - new.keys():
            removed[frontend] = old[frontend]
            serving.pop(frontend, None)
        serving |= {frontend: endpoints for frontend, endpoints in new.items() if endpoints}
    addresses = frozenset(map(pack_address, node.node_port_addresses)) if serving or removed else ()
    return StaleRules(serving, removed, frozenset(addresses))


def _frontends(plan: ServicePlan | None) -> dict[Socket, frozenset[Socket]]:
    """Where flows of a UDP port arrive, and the endpoints they may go to.

    Traffic policies do not count: a flow may go on to any endpoint that still serves.
    """
    if plan is None or plan.id.protocol is not Protocol.UDP:
        return {}
    endpoints = frozenset(pack_socket(e.address, e.port) for e in plan.serving)
    return {pack_socket(f.address, f.port): endpoints for f in plan.frontends}


def is_stale(destination: Socket, reply_source: Socket, rules: StaleRules) -> bool:
    """Must this UDP flow, sent to `destination` and answered by `reply_source`, be deleted?"""
    stale = _is_stale_at(destination, reply_source, rules)
    if stale is None and destination[:-PORT_BYTES] in rules.node_addresses:
        stale = _is_stale_at(destination[-PORT_BYTES:], reply_source, rules)
    return stale or False


def _is_stale_at(frontend: Socket, reply_source: Socket, rules: StaleRules) -> bool | None:
    """Apply the rules of one frontend. Return None if it has none.

    A frontend that has a new owner is decided by that owner alone.
    """
    serving = rules.serving.get(frontend)
    if serving is not None:
        return reply_source not in serving
    removed = rules.removed.get(frontend)
    return None if removed is None else reply_source in removed


def pack_socket(address: str, port: int) -> Socket:
    """Address (may be empty) and port as they stand in a flow."""
    packed = pack_address(address) if address else b""
    return packed + port.to_bytes(PORT_BYTES, "big")
