"""Follows a packet through the items of the ipvs mode, without a kernel: rules, sets, IPVS. Pure.

A service address is on a link of the node, hence a packet to it is local, and IPVS takes it:

    from elsewhere  nat PREROUTING ─ filter INPUT ─ IPVS ─ filter OUTPUT ─ nat POSTROUTING
    from the node   nat OUTPUT ─ IPVS ─ filter OUTPUT ─ nat POSTROUTING

What no virtual server takes goes the way of any packet. An endpoint on the node itself is reached
without leaving it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from kpctl.trace.matches import Context, State
from kpctl.trace.packets import End, StepKind, Untraceable
from kpctl.trace.rules import RuleTracer, rules_of_items
from kubeproxy.facts.address import contains, join_host_port
from kubeproxy.facts.node import SERVICE_LINK, NodeFacts
from kubeproxy.kernel.ipset.wire import SetHead, SetType
from kubeproxy.kernel.ipvs.wire import IP_VS_SVC_F_PERSISTENT
from kubeproxy.modes.base import AnyItem, items_of
from kubeproxy.modes.ipvs.describe import format_entry
from kubeproxy.modes.ipvs.items import (
    BoundAddress,
    IpSet,
    Presence,
    RealServer,
    ServerSpec,
    SetEntry,
    VirtualServer,
)


class ItemTracer(RuleTracer):
    """Traces packets of one node and one family through the items that sinks hold or want."""

    def __init__(self, items: Mapping[AnyItem, object], node: NodeFacts) -> None:
        self._items = items
        bound = {item.address for item in items_of(items, BoundAddress, Presence)}
        local = frozenset(node.addresses) | bound
        super().__init__(rules_of_items(items), Context(local, node.ip, _ItemSets(items)))

    def outcomes(self, start: State) -> Iterator[tuple[State, End]]:
        start = self._on_link(start)
        hooks = [("nat", "OUTPUT" if start.arrival.is_from_node else "PREROUTING")]
        if not start.arrival.is_from_node and self._context.is_local(start.destination):
            hooks.append(("filter", "INPUT"))
        for state, end in self.through(hooks, start):
            if end is End.ACCEPTED:
                yield from self._balance(state)
            else:
                yield state, end

    def _on_link(self, start: State) -> State:
        """Look for the address on our link. The node takes such an address for its own as well."""
        item = BoundAddress(start.destination)
        is_bound = item in self._items
        kind = StepKind.LOOK if is_bound else StepKind.MISS
        is_from_vip = is_bound and start.arrival.is_from_node
        noted = start.noting(kind, SERVICE_LINK, start.destination, item)
        return replace(noted, is_from_vip=is_from_vip)

    def _balance(self, state: State) -> Iterator[tuple[State, End]]:
        server = VirtualServer(state.arrival.protocol.number, state.destination, state.port)
        spec = self._items.get(server)
        is_met = state.arrival.is_from_node or self._context.is_local(state.destination)
        if not isinstance(spec, ServerSpec) or not is_met:
            missed = state.noting(StepKind.MISS, f"IPVS {server}", "", server) if is_met else state
            yield from self._unbalanced(missed)
            return
        weighted = [real for real in spec.real_servers if real.weight > 0]
        taken = replace(state, virtual=(server.protocol, server.address, server.port))
        taken = taken.noting(StepKind.HOOK, f"IPVS {server}", _spec_text(spec), server)
        if not weighted:
            yield taken.noting(StepKind.DO, "reject", "it has no real server"), End.REJECTED
        for real in weighted:
            share = Fraction(real.weight, sum(each.weight for each in weighted))
            yield from self._to_real(taken, real, share)

    def _to_real(
        self, state: State, real: RealServer, share: Fraction
    ) -> Iterator[tuple[State, End]]:
        moved = replace(
            state,
            destination=real.address,
            port=real.port,
            is_dnat=True,
            weight=state.weight * share,
        ).noting(StepKind.DO, "dnat", f"to {join_host_port(*real.place)}")
        if self._context.is_local(real.address) and not state.arrival.is_from_node:
            yield moved, End.ACCEPTED
            return
        yield from self.through((("filter", "OUTPUT"), ("nat", "POSTROUTING")), moved)

    def _unbalanced(self, state: State) -> Iterator[tuple[State, End]]:
        """The way of a packet that IPVS leaves alone."""
        is_here = self._context.is_local(state.destination)
        if state.arrival.is_from_node:
            after = (("filter", "OUTPUT"), ("nat", "POSTROUTING"))
            yield from self.through((*after, ("filter", "INPUT")) if is_here else after, state)
        elif is_here:
            yield state, End.ACCEPTED
        else:
            yield from self.through((("filter", "FORWARD"), ("nat", "POSTROUTING")), state)


def _spec_text(spec: ServerSpec) -> str:
    is_persistent = spec.flags & IP_VS_SVC_F_PERSISTENT
    affinity = f", a client stays for {spec.timeout_seconds} s" if is_persistent else ""
    return f"scheduler {spec.scheduler}{affinity}"


class _ItemSets(Struct, frozen=True):
    """The sets among the items."""

    items: Mapping[AnyItem, object]

    def find(self, name: str, directions: str, state: State) -> tuple[AnyItem, str, bool]:
        head = self.items.get(IpSet(name))
        if not isinstance(head, SetHead):
            raise Untraceable(f"a rule matches set {name}, which does not exist")
        entry = self._entry(name, head.type, directions, state)
        return entry, format_entry(entry), entry in self.items

    def _entry(self, name: str, kind: str, directions: str, state: State) -> SetEntry:
        sides = {"dst": state.destination, "src": state.source}
        address, protocol = sides[directions.partition(",")[0]], state.arrival.protocol.number
        if kind == SetType.PORT:
            return SetEntry(name, port=state.port)
        if kind == SetType.IP:
            return SetEntry(name, address)
        entry = SetEntry(name, address, protocol, state.port)
        if kind == SetType.IP_PORT:
            return entry
        second = sides[directions.rpartition(",")[2]]
        if kind == SetType.IP_PORT_IP:
            return replace(entry, second=second)
        return self._network(entry, second)

    def _network(self, wanted: SetEntry, source: str) -> SetEntry:
        """The entry whose network contains the source; if there is none, that of the host."""
        for entry in items_of(self.items, SetEntry, Presence):
            bare = replace(entry, second="", prefix_length=0)
            if bare == wanted and contains(f"{entry.second}/{entry.prefix_length}", source):
                return entry
        return replace(wanted, second=source, prefix_length=128 if ":" in source else 32)
