"""The iptables rules of one service port. Pure.

For plain services they are v1.25's, word for word and in its order. What v1.25 did not have
(traffic policies, source ranges, node port addresses, refusal of what no endpoint serves) is
expressed by the same rules with a few more matches.

External IPs are diverted like any other address. v1.25 meant them for clients "from off the
machine", roughly those whose packets no bridge brought in (`physdev ! --physdev-is-in`), and for
all clients if it is the node's own address (`addrtype --dst-type LOCAL`). Packets of pods to any
other address were left to the network, which was to bring them back to some node. Where it does
not, pods behind a bridge with br_netfilter reached nothing at all, and every mode of today diverts
them. Pods and v1.25's two cases are all there is in PREROUTING: one rule without these matches
covers them. It also spares the host the physdev match, whose module turns br_netfilter on for all
bridges.

    PREROUTING ─ from pods and from outside ─▶ REDIRECT to the proxy port (or DNAT, see below)
    OUTPUT     ─ from the node itself       ─▶ DNAT to the node's address and the proxy port
    filter     ─ what was not diverted      ─▶ REJECT (no endpoint serves it) or DROP (client or
                                               policy excluded)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.address import is_loopback, join_host_port
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts
from kubeproxy.modes.base import (
    NO_ENDPOINTS,
    NO_LOCAL_ENDPOINTS,
    OUTSIDE_SOURCE_RANGES,
    REFUSED_BY_ANNOTATION,
)
from kubeproxy.modes.netfilter.rules.matches import from_local_pods
from kubeproxy.modes.userspace import names
from kubeproxy.modes.userspace.options import Options
from kubeproxy.plan.types import Frontend, FrontendKind, Guard, PoolName, ServicePlan, Verdict

PlacedRule: TypeAlias = tuple[str, str, str]
"""Table, chain, and what stands behind `-A CHAIN `."""

_LOCAL = " -m addrtype --dst-type LOCAL"


class Portals(Struct, frozen=True):
    """Writes the rules of one service port; `ports` are the proxy ports that are bound."""

    plan: ServicePlan
    node: NodeFacts
    ports: Mapping[PoolName, int]
    options: Options

    def rules_of(self, frontend: Frontend) -> Iterator[PlacedRule]:
        """All rules of one frontend, in order."""
        if frontend.kind is FrontendKind.NODE_PORT:
            yield from self._divert(frontend, names.NODE_PORT_CONTAINER, names.NODE_PORT_HOST)
            yield from self._accept_proxy_ports(frontend)
        else:
            yield from self._divert(frontend, names.PORTALS_CONTAINER, names.PORTALS_HOST)
        yield from self._refuse(frontend)

    # --- nat ---

    def _divert(self, frontend: Frontend, container: str, host: str) -> Iterator[PlacedRule]:
        if frontend.accepts_anyone:
            yield from self._return_denied(frontend, container, host)
        for clients, pool in self._from_elsewhere(frontend):
            target = self._container_target(pool)
            for match in self._matches(frontend):
                yield "nat", container, f"{match}{clients}{target}"
        for clients, pool in self._from_node(frontend):
            target = self._host_target(pool)
            for match in self._host_matches(frontend):
                yield "nat", host, f"{match}{clients}{target}"

    def _return_denied(self, frontend: Frontend, container: str, host: str) -> Iterator[PlacedRule]:
        """Do not divert what may not connect, whatever else admits it."""
        for source in self._guard.denied:
            for match in self._matches(frontend):
                yield "nat", container, f"{match} -s {source} -j RETURN"
            for match in self._host_matches(frontend):
                yield "nat", host, f"{match} -s {source} -j RETURN"

    @property
    def _guard(self) -> Guard:
        return self.plan.guard or _ANYONE

    def _admitted(self, frontend: Frontend) -> tuple[str, ...] | None:
        """Networks that may connect, but for those that are denied; None means all."""
        return both((*frontend.source_ranges, *frontend.vip_sources) or None, self._guard.allowed)

    def _from_elsewhere(self, frontend: Frontend) -> Iterator[tuple[str, PoolName]]:
        """Clients that come in through an interface, as a match, and the pool they use."""
        if frontend.has_short_circuit and PoolName.CLUSTER in self.ports:
            for match in pod_matches(self.node.detector, self._admitted(frontend)):
                yield match, PoolName.CLUSTER
        yield from self._by_policy(frontend)

    def _from_node(self, frontend: Frontend) -> Iterator[tuple[str, PoolName]]:
        """Likewise for processes of the node itself, to which a Local policy does not apply."""
        if frontend.has_short_circuit and PoolName.CLUSTER in self.ports:
            for match in source_matches(self._admitted(frontend)):
                yield match, PoolName.CLUSTER
        else:
            yield from self._by_policy(frontend)

    def _by_policy(self, frontend: Frontend) -> Iterator[tuple[str, PoolName]]:
        if frontend.verdict is Verdict.FORWARD and frontend.pool in self.ports:
            for match in source_matches(self._admitted(frontend)):
                yield match, frontend.pool

    def _host_matches(self, frontend: Frontend) -> Iterator[str]:
        is_node_port = frontend.kind is FrontendKind.NODE_PORT
        if is_node_port and not self.options.serves_localhost(self.node.family):
            yield from self._off_localhost(frontend)
        else:
            yield from self._matches(frontend)

    def _off_localhost(self, frontend: Frontend) -> Iterator[str]:
        """A node port everywhere but at the loopback addresses."""
        common = self._common(frontend.port)
        if self.node.node_ports_match_all:
            yield f"{common} ! -d {self.node.family.loopback_cidr}"
        else:
            addresses = self.node.node_port_addresses
            yield from (f"{common} -d {each}" for each in addresses if not is_loopback(each))

    def _matches(self, frontend: Frontend, reason: str = "") -> Iterator[str]:
        """Packets to this frontend; the chain of node ports sees only packets to the node."""
        common = self._common(frontend.port, reason)
        if frontend.kind is not FrontendKind.NODE_PORT:
            yield f"{common} -d {frontend.address}"
        elif self.node.node_ports_match_all:
            yield common
        else:
            yield from (f"{common} -d {each}" for each in self.node.node_port_addresses)

    def _common(self, port: int, reason: str = "") -> str:
        protocol = self.plan.id.protocol.lower_name
        label = f'"{self.plan.id.label} {reason}"' if reason else self.plan.id.label
        return f"-m comment --comment {label} -p {protocol} -m {protocol} --dport {port}"

    def _container_target(self, pool: PoolName) -> str:
        address = self.options.listen_address(self.node.family)
        if address == self.node.family.wildcard:
            return self._redirect(pool)
        return self._dnat(address, pool)

    def _host_target(self, pool: PoolName) -> str:
        """In OUTPUT, REDIRECT goes to the loopback address, which not every source may reach.

        So locally made packets go to an address of the node, if it has one.
        """
        address = self.options.listen_address(self.node.family)
        if address != self.node.family.wildcard:
            return self._dnat(address, pool)
        candidates = (self.node.ip, *self.node.addresses)
        own = next((each for each in candidates if not is_loopback(each)), "")
        return self._dnat(own, pool) if own else self._redirect(pool)

    def _redirect(self, pool: PoolName) -> str:
        return f" -j REDIRECT --to-ports {self.ports[pool]}"

    def _dnat(self, address: str, pool: PoolName) -> str:
        return f" -j DNAT --to-destination {join_host_port(address, self.ports[pool])}"

    # --- filter ---

    def _accept_proxy_ports(self, frontend: Frontend) -> Iterator[PlacedRule]:
        """Accept diverted packets of a node port.

        A firewall that accepts node ports sees the proxy port, because that is the destination
        once a packet is diverted.
        """
        for pool in dict.fromkeys(pool for _, pool in self._from_elsewhere(frontend)):
            accept = "-m state --state NEW -j ACCEPT"
            yield "filter", names.NODE_PORT_NON_LOCAL, f"{self._common(self.ports[pool])} {accept}"

    def _refuse(self, frontend: Frontend) -> Iterator[PlacedRule]:
        """Reject or drop what still has the frontend as its destination: it was not diverted."""
        verdict = frontend.verdict
        if verdict is Verdict.FORWARD and not frontend.source_ranges and self.plan.guard is None:
            return
        is_node_port = frontend.kind is FrontendKind.NODE_PORT
        place = _LOCAL if is_node_port and self.node.node_ports_match_all else ""
        target = "REJECT" if verdict is Verdict.REJECT else "DROP"
        reason = _REASONS[verdict]
        if verdict is Verdict.FORWARD and not frontend.source_ranges:
            reason = REFUSED_BY_ANNOTATION
        for match in self._matches(frontend, reason):
            yield "filter", names.PORTALS_FILTER, f"{match}{place} -j {target}"


_REASONS = {
    Verdict.REJECT: NO_ENDPOINTS,
    Verdict.DROP: NO_LOCAL_ENDPOINTS,
    Verdict.FORWARD: OUTSIDE_SOURCE_RANGES,
}
"""Why a packet is refused, as the comment of the rule has it."""


_ANYONE = Guard()


def both(first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The networks that both lists admit; None admits all."""
    if first is None or second is None:
        return second if first is None else first
    return tuple(part for cidr in first for part in _within(cidr, second))


def source_matches(sources: tuple[str, ...] | None) -> Iterator[str]:
    yield from ("",) if sources is None else (f" -s {source}" for source in sources)


def pod_matches(detector: LocalDetector, sources: tuple[str, ...] | None) -> Iterator[str]:
    """Pods of this node, as far as they are among the sources that may connect."""
    if detector.kind is DetectorKind.CIDR:
        # A rule can have only one `-s`, so networks are intersected here.
        yield from (f" -s {part}" for part in _within(detector.value, sources))
    elif detector.is_implemented:
        pods = from_local_pods(detector)
        yield from (f" {pods}{source}" for source in source_matches(sources))


def _within(cidr: str, sources: tuple[str, ...] | None) -> Iterator[str]:
    """The parts of a network that are among the sources.

    Two networks never overlap in part: one contains the other, or they have nothing in common.
    """
    if sources is None:
        yield cidr
        return
    network = ipaddress.ip_network(cidr)
    for source in sources:
        other = ipaddress.ip_network(source)
        if network.overlaps(other):
            yield cidr if network.prefixlen >= other.prefixlen else source
