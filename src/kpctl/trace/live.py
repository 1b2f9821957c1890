"""Follows one real connection through the rules of the kernel as they execute."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from kpctl.snapshot.types import Snapshot
from kpctl.trace.legacy import LegacyMarking
from kpctl.trace.marking import Marking, Match, NftMarking, Passed
from kpctl.trace.packets import Arrival, Ruling, summary
from kpctl.trace.plan import PlanTracer, traits_of
from kpctl.trace.question import Question, arrival_in, wanted_items
from kpctl.trace.rules import rules_of_items
from kpctl.trace.subject import NODE, OUTSIDE
from kubeproxy.errors import ConfigError, ProxyError
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.modes.base import SCAFFOLD, Owner
from kubeproxy.modes.netfilter.sinks.tools import programs
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.modes.nftables.items import ChainItem
from kubeproxy.modes.nftables.names import TABLE_NAME

_KINDS = {
    Protocol.TCP: (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    Protocol.UDP: (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
    Protocol.SCTP: (socket.SOCK_STREAM, socket.IPPROTO_SCTP),
}


class Followed(Struct, frozen=True):
    """What a real connection passed, and what the plan says about it."""

    arrival: Arrival
    passed: tuple[Passed, ...]
    service: str
    expected: Ruling
    endpoints: frozenset[tuple[str, int]]
    owners: Mapping[tuple[str, str], Owner]
    """Whose chain it is, by table and chain."""

    @property
    def is_dropped(self) -> bool:
        return any(each.is_drop for each in self.passed)

    @property
    def reached(self) -> tuple[str, int] | None:
        """Where the packet was sent in the end."""
        known = [each.destination for each in self.passed if each.destination]
        return known[-1] if known else None

    @property
    def ruling(self) -> Ruling:
        """What the rules did. A packet that they drop may have been answered with an error."""
        if self.is_dropped:
            is_refused = self.expected in (Ruling.REJECT, Ruling.DROP)
            return self.expected if is_refused else Ruling.DROP
        is_moved = self.reached != (self.arrival.destination, self.arrival.port)
        return Ruling.FORWARD if is_moved else Ruling.UNTOUCHED

    @property
    def is_as_planned(self) -> bool:
        if self.ruling is Ruling.FORWARD and self.expected is Ruling.FORWARD:
            return not self.endpoints or self.reached in self.endpoints
        return self.ruling is self.expected


async def follow_live(
    snapshot: Snapshot, question: Question, *, is_sent: bool, timeout_seconds: float
) -> Followed:
    """Mark the connection, wait for it or make it, and gather what it passes.

    Raises ProxyError, also if no such connection comes in time.
    """
    arrival = arrival_in(snapshot, question)
    if is_sent and question.source != NODE:
        raise ConfigError("--send sends from this host: with it SOURCE must be `node`")
    marking = await _marking(snapshot, question, timeout_seconds)
    try:
        await marking.open()
        with _sent(arrival) if is_sent else contextlib.nullcontext():
            passed = await marking.collect(timeout_seconds)
    finally:
        await marking.close()
    if not passed:
        raise ProxyError(f"no new connection of this kind met a rule within {timeout_seconds:g} s")
    return _followed(snapshot, arrival, passed)


async def _marking(snapshot: Snapshot, question: Question, timeout_seconds: float) -> Marking:
    to = question.destination
    origin = "" if question.source in (NODE, OUTSIDE) else question.source
    match = Match(to.family, to.protocol, to.address, to.port, origin)
    if snapshot.mode == "nftables":
        return NftMarking(match)
    options = snapshot.backends[to.family].options.tools
    tools = programs(to.family, options.variant)
    if (await Xtables(to.family, options).probe()).is_nft:
        return NftMarking(match, tools)
    return LegacyMarking(match, tools, timeout_seconds)


@contextlib.contextmanager
def _sent(arrival: Arrival) -> Iterator[None]:
    """A new connection, begun and not waited for."""
    kind, protocol = _KINDS[arrival.protocol]
    address = socket.AF_INET if arrival.family is Family.IPV4 else socket.AF_INET6
    with socket.socket(address, kind | socket.SOCK_NONBLOCK, protocol) as handle:
        # The rules may refuse it at once, which is what is to be seen.
        with contextlib.suppress(OSError):
            handle.connect((arrival.destination, arrival.port))
            if arrival.protocol is Protocol.UDP:
                handle.send(b"kpctl trace\n")
        yield


def _followed(snapshot: Snapshot, arrival: Arrival, passed: Sequence[Passed]) -> Followed:
    pipeline = snapshot.pipelines[arrival.family]
    localhost = snapshot.settings.config.iptables.localhost_node_ports
    traits = traits_of(snapshot.mode, localhost_node_ports=localhost)
    plans = sorted(pipeline.plans(), key=lambda plan: plan.id)
    tracer = PlanTracer(plans, pipeline.node, traits)
    found, traced = tracer.match(arrival), summary(tracer.ways(arrival))
    return Followed(
        arrival=arrival,
        passed=tuple(passed),
        service=str(found[0].id) if found else "",
        expected=traced.ruling,
        # A process carries it on in userspace mode, and the packet ends at that.
        endpoints=frozenset() if traits.carries else traced.endpoints,
        owners=_chain_owners(snapshot, arrival.family),
    )


def _chain_owners(snapshot: Snapshot, family: Family) -> Mapping[tuple[str, str], Owner]:
    wanted = wanted_items(snapshot, family)
    chains = rules_of_items(wanted.items).items
    of_nft = {
        (TABLE_NAME, item.name): owner
        for item, owner in wanted.owners.items()
        if isinstance(item, ChainItem)
    }
    of_iptables = {key: wanted.owners[item] for key, item in chains.items()}
    return {key: owner for key, owner in (of_nft | of_iptables).items() if owner != SCAFFOLD}
