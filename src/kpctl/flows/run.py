"""Runs a flow against tracers: no kernel, no sockets, no time.

Walks the steps, keeps the Services as they are at each step, and queries the tracer of the node
that each packet meets. What only time and sockets can show (restarts, loads, stickiness) is left to
`lab_run`. Mistakes are returned as sentences, and none means that the flow holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from msgspec.structs import replace

from kpctl.flows.flow import (
    Apply,
    Check,
    Flow,
    HangUp,
    Listen,
    Packets,
    Remove,
    ServiceText,
    Step,
)
from kpctl.flows.model import node_facts, node_plans
from kpctl.flows.objects import LOCALHOST, Destination, World
from kpctl.flows.text import Expected, Packet
from kpctl.lab.probe import Fate
from kpctl.lab.topology import Client, Node, Pod, Topology
from kpctl.lab.wiring import BRIDGE, UPLINK
from kpctl.trace.packets import Arrival, Ruling, Traced, Tracer, shares, summary
from kubeproxy.facts.address import family_of, is_loopback
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.plan.types import ServicePlan

MakeTracer: TypeAlias = Callable[[Sequence[ServicePlan], NodeFacts], Tracer]
_FAMILIES = {"IPv4": (Family.IPV4,), "IPv6": (Family.IPV6,), "dual": tuple(Family)}
_ROUNDING = 0.02
"""Shares are rounded to whole slots (`kubeproxy.plan.slots`)."""
_FATES = {Ruling.REJECT: Fate.REJECTED, Ruling.DROP: Fate.DROPPED}


def families_of(variant: str) -> tuple[Family, ...]:
    return _FAMILIES[variant]


def services_at(held: Mapping[str, ServiceText], step: Step) -> Mapping[str, ServiceText]:
    """The Services after a step."""
    match step:
        case Apply(services=services):
            return {**held, **{service.name: service for service in services}}
        case Remove(service=gone):
            return {name: service for name, service in held.items() if name != gone}
        case HangUp(service=name, hosts=hosts):
            silent = (*held[name].hung_up, *hosts)
            return {**held, name: replace(held[name], hung_up=silent)}
        case Listen(service=name, hosts=hosts):
            silent = tuple(host for host in held[name].hung_up if host not in hosts)
            return {**held, name: replace(held[name], hung_up=silent)}
    return held


def run_traced(flow: Flow, world: World, make_tracer: MakeTracer, *, mode: str) -> Sequence[str]:
    """Run the flow. Return what is wrong, in sentences."""
    wrong: list[str] = []
    services: Mapping[str, ServiceText] = {service.name: service for service in flow.services}
    for number, step in enumerate(flow.steps, 1):
        services = services_at(services, step)
        if isinstance(step, Packets):
            moment = _Moment(flow, world, services, make_tracer, mode)
            wrong += [f"step {number}: {text}" for text in moment.mistakes(step.checks)]
    return wrong


class _Moment:
    """The cluster between two steps. Tracers are made when a packet first meets a node."""

    def __init__(
        self,
        flow: Flow,
        world: World,
        services: Mapping[str, ServiceText],
        make_tracer: MakeTracer,
        mode: str,
    ) -> None:
        self._flow = flow
        self._world = world
        self._services = services
        self._make_tracer = make_tracer
        self._mode = mode
        self._tracers: dict[tuple[str, Family], Tracer] = {}

    def mistakes(self, checks: Sequence[Check]) -> Iterator[str]:
        for family in self._world.families:
            for check in checks:
                expected = check.expected(self._mode)
                for mistake in self._compare(check.packet, expected, family):
                    yield f"{family.value} {check.packet.text}: {mistake}"

    def _compare(self, packet: Packet, expected: Expected, family: Family) -> Iterator[str]:
        for destination in self._world.destinations(packet, self._services, family):
            yield from self._compare_one(packet, expected, destination, family)

    def _compare_one(
        self, packet: Packet, expected: Expected, destination: Destination, family: Family
    ) -> Iterator[str]:
        node = meeting_node(self._world.topology, packet, destination)
        ways = self._tracer(node, family).ways(arrival_of(self._world, packet, destination))
        traced = summary(ways)
        fate = fate_of(traced, destination, self._world)
        if fate is Fate.ANSWERED and self._is_unanswerable(packet, destination, traced, node):
            fate = Fate.DROPPED
        if fate is not expected.fate:
            yield f"expected {expected.fate.value}, the rules say {fate.value}"
        elif fate is Fate.ANSWERED:
            yield from self._compare_answers(
                packet, expected, traced, node=node, spread=shares(ways)
            )

    def _is_unanswerable(
        self, packet: Packet, destination: Destination, traced: Traced, node: Node
    ) -> bool:
        """Do replies miss the node that would translate them back?

        An endpoint on another node that sees the client replies to it directly, unless the client
        is on the node. In ipvs mode a node that sends to a service address has it as its own.
        """
        topology = self._world.topology
        sender = topology.host(packet.source)
        is_vip = topology.owner(destination.address) is None
        if sender is node and not (self._mode == "ipvs" and is_vip):
            return False
        if isinstance(sender, Pod) and sender.node == node.name:
            return False
        seen = (topology.owner(address) for address, _ in traced.endpoints - traced.masqueraded)
        return any(topology.entry_node(name) is not node for name in seen if name)

    def _compare_answers(
        self,
        packet: Packet,
        expected: Expected,
        traced: Traced,
        *,
        node: Node,
        spread: Mapping[tuple[str, int], Fraction],
    ) -> Iterator[str]:
        owners = {
            self._world.topology.owner(address): (address, port)
            for address, port in traced.endpoints
        }
        # In ipvs mode a Local policy applies to every client, so that pods meet fewer endpoints.
        is_fewer = self._mode == "ipvs" and not expected.is_even and set(owners) < expected.hosts
        if set(owners) != expected.hosts and not is_fewer:
            found = ", ".join(sorted(str(owner) for owner in owners)) or "no host"
            yield f"expected answers from {', '.join(sorted(expected.hosts))}, not {found}"
        if expected.shares and not is_fewer:
            yield from self._compare_shares(expected, spread)
        for host, endpoint in sorted(owners.items(), key=lambda pair: str(pair[0])):
            seen = node.name if endpoint in traced.masqueraded else packet.source
            wanted = expected.seen_by(host or "")
            if wanted and seen != wanted:
                yield f"{host} must see {wanted}, sees {seen}"

    def _compare_shares(
        self, expected: Expected, spread: Mapping[tuple[str, int], Fraction]
    ) -> Iterator[str]:
        weights = expected.weights
        found = {self._world.topology.owner(address): part for (address, _), part in spread.items()}
        for host, weight in weights.items():
            due = weight / sum(weights.values())
            if abs(float(found.get(host, 0)) - due) > _ROUNDING:
                yield f"{host} must get {due:.3f} of all, gets {float(found.get(host, 0)):.3f}"

    def _tracer(self, node: Node, family: Family) -> Tracer:
        key = (node.name, family)
        if key not in self._tracers:
            flow = self._flow
            facts = node_facts(node, self._world, family, mode=self._mode, flags=flow.proxy)
            plans = node_plans(self._services.values(), self._world, facts)
            self._tracers[key] = self._make_tracer(plans, facts)
        return self._tracers[key]


def meeting_node(topology: Topology, packet: Packet, destination: Destination) -> Node:
    """The node whose rules decide: the one addressed, else the one where the packet enters."""
    owner = topology.owner(destination.address)
    if owner is not None and isinstance(topology.host(owner), Node):
        return topology.node(owner)
    return topology.entry_node(packet.source)


def arrival_of(world: World, packet: Packet, destination: Destination) -> Arrival:
    """The packet as that node meets it."""
    topology = world.topology
    family = family_of(destination.address)
    sender = topology.host(packet.source)
    node = meeting_node(topology, packet, destination)
    is_from_itself = packet.place == LOCALHOST
    return Arrival(
        family=family,
        protocol=destination.protocol,
        source=destination.address if is_from_itself else sender.addresses.of(family),
        destination=destination.address,
        port=destination.port,
        interface=_interface(sender, node),
    )


def _interface(sender: Node | Pod | Client, node: Node) -> str:
    if sender is node:
        return ""
    return BRIDGE if isinstance(sender, Pod) and sender.node == node.name else UPLINK


def fate_of(traced: Traced, destination: Destination, world: World) -> Fate:
    """The fate of a packet under this ruling."""
    if traced.ruling is Ruling.FORWARD:
        return Fate.ANSWERED
    if traced.ruling is Ruling.UNTOUCHED:
        return _natural_fate(destination, world)
    return _FATES[traced.ruling]


def _natural_fate(destination: Destination, world: World) -> Fate:
    """The fate of a packet that no rule touches: a closed port, or no route to its address."""
    if not is_loopback(destination.address) and world.topology.owner(destination.address) is None:
        return Fate.UNREACHABLE
    return Fate.REFUSED if destination.protocol is Protocol.TCP else Fate.REJECTED
