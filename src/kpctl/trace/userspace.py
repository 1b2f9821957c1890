"""Follows a packet through the items of the userspace mode, without a kernel. Pure.

Rules divert it to a proxy port, where the carrier accepts it, chooses an endpoint by the listener's
balance and connects itself. So the endpoint sees this node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from msgspec.structs import replace

from kpctl.trace.matches import Context, State
from kpctl.trace.packets import End, StepKind, Way
from kpctl.trace.rules import RuleTracer, rules_of_items, way_of
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import AnyItem, items_of
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.items import Listener

Ports = Mapping[Listener, int]
"""The proxy port of each listener, which binding its socket teaches."""


class ItemTracer(RuleTracer):
    """Traces packets of one node and one family through the items that sinks hold or want."""

    def __init__(
        self, items: Mapping[AnyItem, object], node: NodeFacts, ports: Ports | None = None
    ) -> None:
        context = Context(frozenset(node.addresses), _address(node))
        super().__init__(rules_of_items(items), context)
        self._items = items
        self._listeners: dict[tuple[Protocol, int], Listener] = {
            (listener.owner.protocol, port): listener for listener, port in (ports or {}).items()
        }

    def arrive(self, state: State, end: End) -> Iterator[Way]:
        if end is not End.ACCEPTED or not state.is_dnat:
            yield way_of(state, end)
            return
        listener = self._listeners.get((state.arrival.protocol, state.port))
        balance = self._items.get(listener) if listener else None
        name = f"carrier, port {state.port}"
        if not isinstance(balance, Balance):
            refused = state.noting(StepKind.MISS, name, "nothing listens", listener)
            yield way_of(refused.noting(StepKind.DO, "reject", "the port is closed"), End.REJECTED)
            return
        state = state.noting(StepKind.HOOK, name, _balance_text(balance), listener)
        if not balance.targets:
            closed = state.noting(StepKind.DO, "reject", "it has no endpoint")
            yield way_of(closed, End.REJECTED)
        weights = balance.weights or (1,) * len(balance.targets)
        for target, weight in zip(balance.targets, weights, strict=True):
            moved = replace(
                state,
                destination=target.address,
                port=target.port,
                is_masqueraded=True,
                weight=state.weight * Fraction(weight, sum(weights)),
            )
            place = join_host_port(target.address, target.port)
            yield way_of(moved.noting(StepKind.DO, "connect", f"to {place}"), end)


def _balance_text(balance: Balance) -> str:
    by = f"by {balance.algorithm}" if balance.algorithm else "in turn"
    if balance.affinity_seconds:
        return f"{by}, a client stays for {balance.affinity_seconds} s"
    return by


def _address(node: NodeFacts) -> str:
    return node.ip if node.ip in node.addresses else next(iter(node.addresses), node.ip)


def listeners_of(items: Mapping[AnyItem, object]) -> Iterator[Listener]:
    return iter(items_of(items, Listener, Balance))
