"""The way of one packet of a flow through the rules of each mode, as stations.

In nftables and iptables mode the stations are what the tracers of `kpctl trace` pass while they
follow the packet through the rendered rules. In ipvs and userspace mode the kernel and the carrier
decide; there the stations follow from the fate that the flow states and its tests have verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from kpctl.flows.flow import Check, Flow, Packets
from kpctl.flows.model import node_facts, node_plans
from kpctl.flows.objects import Destination, World
from kpctl.flows.run import arrival_of, meeting_node, services_at
from kpctl.lab.probe import Fate
from kpctl.lab.topology import Node
from kpctl.trace.packets import Arrival, Step, StepKind
from kpctl.trace.tracers import trace_plans
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.iptables.options import Options
from kubeproxy.plan.types import ServicePlan


class Station(msgspec.Struct, frozen=True):
    """One line of a drawing: how deep in chains, where, and what happens there."""

    depth: int
    place: str
    what: str = ""


class Sent(msgspec.Struct, frozen=True):
    """A packet of a flow with everything around it, in IPv4."""

    flow: Flow
    check: Check
    world: World
    node: Node
    facts: NodeFacts
    plans: tuple[ServicePlan, ...]
    arrival: Arrival
    destination: Destination


def first_packet(flow: Flow, world: World, mode: str) -> Sent | None:
    """The first packet of a flow as its node meets it in a mode; None if there is none."""
    services = {service.name: service for service in flow.services}
    for step in flow.steps:
        services = dict(services_at(services, step))
        if isinstance(step, Packets):
            check = step.checks[0]
            destination = world.destinations(check.packet, services, Family.IPV4)[0]
            node = meeting_node(world.topology, check.packet, destination)
            facts = node_facts(node, world, Family.IPV4, mode=mode, flags=flow.proxy)
            plans = node_plans(services.values(), world, facts)
            arrival = arrival_of(world, check.packet, destination)
            return Sent(flow, check, world, node, facts, plans, arrival, destination)
    return None


def stations(sent: Sent, mode: str) -> list[Station]:
    """Where the packet passes on its node."""
    return list(_WAYS[mode](sent))


def _through_nftables(sent: Sent) -> Iterator[Station]:
    tracer = trace_plans(sent.plans, sent.facts, mode="nftables")
    way = tracer.ways(sent.arrival)[0]
    yield from _of_steps(way.steps, partial(_endpoint_text, sent))


def _through_iptables(sent: Sent) -> Iterator[Station]:
    localhost = sent.flow.proxy.get("iptables-localhost-nodeports") != "false"
    options = Options(localhost_node_ports=localhost)
    tracer = trace_plans(sent.plans, sent.facts, mode="iptables", options=options)
    way = tracer.ways(sent.arrival)[0]
    yield from _of_steps(way.steps, partial(_endpoint_text, sent))


def _endpoint_text(sent: Sent) -> str:
    return " or ".join(sorted(sent.check.expected("nftables").hosts)) or "the endpoint"


_ACTIONS = {
    "dnat": "the destination becomes {endpoint}",
    "mark": "mark it for masquerading",
    "unmark": "clear the mark",
    "masquerade": "the source becomes the node",
    "drop": "dropped",
    "reject": "rejected with an ICMP error",
    "accept": "passes",
    "return": "",
}


def _of_steps(steps: Sequence[Step], endpoint: Callable[[], str]) -> Iterator[Station]:
    """Chains in which something happened, nested as they were entered."""
    kept: list[Station] = []
    open_chains: list[int] = []
    for kind, name, _, _ in steps:
        if kind in (StepKind.HOOK, StepKind.ENTER):
            is_hook = kind is StepKind.HOOK
            open_chains = [] if is_hook else open_chains
            kept = _without_idle_hook(kept) if is_hook else kept
            open_chains.append(len(kept))
            kept.append(Station(len(open_chains) - 1, name))
        elif kind is StepKind.LEAVE:
            began = open_chains.pop()
            if not any(station.what for station in kept[began:]):
                del kept[began:]
        elif kind in (StepKind.LOOK, StepKind.DO):
            text = f"found in @{name}" if kind is StepKind.LOOK else _ACTIONS[name]
            kept += _acted(len(open_chains), text.format(endpoint=endpoint()))
    yield from _merged(_without_idle_hook(kept))


def _acted(depth: int, text: str) -> list[Station]:
    return [Station(depth, "", text)] if text else []


def _without_idle_hook(kept: list[Station]) -> list[Station]:
    """Leave a hook out in which nothing happened."""
    start = next((n for n in range(len(kept) - 1, -1, -1) if kept[n].depth == 0), None)
    if start is None or any(station.what for station in kept[start:]):
        return kept
    return kept[:start]


def _merged(kept: Sequence[Station]) -> Iterator[Station]:
    """Put what happens in a chain on the chain's own line, if it is the first thing there."""
    lines = list(kept)
    while lines:
        station = lines.pop(0)
        if lines and station.place and not lines[0].place and lines[0].depth == station.depth + 1:
            station = Station(station.depth, station.place, lines.pop(0).what)
        yield station


def _ipvs_fate(sent: Sent) -> tuple[Fate, str, bool]:
    expected = sent.check.expected("ipvs")
    hosts = sorted(expected.hosts)
    seen = {expected.seen_by(host) for host in hosts}
    return expected.fate, " or ".join(hosts), sent.node.name in seen


def _is_node_port(sent: Sent) -> bool:
    return sent.destination.address in sent.facts.addresses


def _through_ipvs(sent: Sent) -> Iterator[Station]:
    fate, hosts, is_masqueraded = _ipvs_fate(sent)
    if fate in (Fate.REFUSED, Fate.UNREACHABLE):
        return
    is_own = sent.arrival.is_from_node
    chain = "KUBE-NODE-PORT" if _is_node_port(sent) else "KUBE-SERVICES"
    marks = "mark it for masquerading" if is_masqueraded else "no mark"
    yield Station(0, f"nat {'OUTPUT' if is_own else 'PREROUTING'}")
    yield Station(1, chain, f"found in an ipset: {marks}")
    if not is_own:
        where = "the node" if _is_node_port(sent) else "kube-ipvs0"
        yield Station(0, "routing", f"the address is on {where}, so it is local")
        dropped = fate is Fate.DROPPED
        yield Station(0, "filter INPUT")
        yield Station(1, *(("KUBE-PROXY-FIREWALL", "dropped") if dropped else ("", "passes")))
        if dropped:
            return
    protocol = sent.destination.protocol.value
    yield Station(0, f"IPVS {protocol} {sent.destination.address}:{sent.destination.port}")
    if fate is not Fate.ANSWERED:
        yield Station(1, "", "no real server: rejected with an ICMP error")
        return
    yield Station(1, "", f"the destination becomes {hosts}")
    if is_masqueraded:
        yield Station(0, "nat POSTROUTING")
        yield Station(1, "KUBE-POSTROUTING", "the source becomes the node")


def _through_userspace(sent: Sent) -> Iterator[Station]:
    expected = sent.check.expected("userspace")
    is_own = sent.arrival.is_from_node
    if expected.fate in (Fate.REFUSED, Fate.UNREACHABLE):
        return
    if expected.fate is not Fate.ANSWERED:
        yield Station(0, "filter " + ("OUTPUT" if is_own else "INPUT or FORWARD"))
        word = "dropped" if expected.fate is Fate.DROPPED else "rejected with an ICMP error"
        yield Station(1, "KUBE-PORTALS-FILTER", word)
        return
    kind = "NODEPORT" if _is_node_port(sent) else "PORTALS"
    side = "HOST" if is_own else "CONTAINER"
    yield Station(0, f"nat {'OUTPUT' if is_own else 'PREROUTING'}")
    yield Station(1, f"KUBE-{kind}-{side}", "diverted to a port of the proxy")
    yield Station(0, "carrier", "accepts, picks an endpoint, connects to it")


_WAYS: Mapping[str, Callable[[Sent], Iterator[Station]]] = {
    "nftables": _through_nftables,
    "iptables": _through_iptables,
    "ipvs": _through_ipvs,
    "userspace": _through_userspace,
}


def claims(flow: Flow, mode: str) -> bool:
    """Does the mode serve this flow's first packet? userspace mode carries no SCTP."""
    protocols = {port.protocol for service in flow.services for port in service.ports}
    return flow.runs_in(mode) and not (mode == "userspace" and protocols == {Protocol.SCTP})
