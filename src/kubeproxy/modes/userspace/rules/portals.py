"""The iptables rules of one service port. Pure.

For plain services they are v1.25's, word for word and in its order. What v1.25 did not know
(traffic policies, source ranges, node port addresses, refusing what nobody serves) is said with
the same words and a few more matches.

    PREROUTING ─ from pods and from outside ─▶ REDIRECT to the proxy port (or DNAT, see below)
    OUTPUT     ─ from the node itself       ─▶ DNAT to the node's address and the proxy port
    filter     ─ what was not diverted      ─▶ REJECT (nobody serves it) or DROP (not for you)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.address import is_loopback, join_host_port
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts
from kubeproxy.modes.userspace.items import PortalOptions
from kubeproxy.modes.userspace.scaffold import (
    NODE_PORT_CONTAINER,
    NODE_PORT_HOST,
    NODE_PORT_NON_LOCAL,
    PORTALS_CONTAINER,
    PORTALS_FILTER,
    PORTALS_HOST,
)
from kubeproxy.plan.types import Frontend, FrontendKind, PoolName, ServicePlan, Verdict

PlacedRule: TypeAlias = tuple[str, str, str]
"""Table, chain, and what stands behind `-A CHAIN `."""

_WILDCARDS = ("0.0.0.0", "::")
_LOCAL = " -m addrtype --dst-type LOCAL"
_NOT_LOCALHOST = " ! -d 127.0.0.0/8"
_NOT_FROM_BRIDGE = " -m physdev ! --physdev-is-in"


def host_address(node: NodeFacts) -> str:
    """The address at which the node reaches its own proxy ports; empty if it has none."""
    candidates = (node.ip, *node.addresses)
    return next((address for address in candidates if not is_loopback(address)), "")


class Portals(Struct, frozen=True):
    """What the rules of one service port depend on."""

    plan: ServicePlan
    node: NodeFacts
    ports: Mapping[PoolName, int]
    options: PortalOptions
    host_address: str

    def rules_of(self, frontend: Frontend) -> Iterator[PlacedRule]:
        """All rules of one frontend, in order."""
        if frontend.kind is FrontendKind.NODE_PORT:
            yield from self._divert(frontend, NODE_PORT_CONTAINER, NODE_PORT_HOST)
            yield from self._let_in(frontend)
        else:
            yield from self._divert(frontend, PORTALS_CONTAINER, PORTALS_HOST)
        yield from self._answer(frontend)

    # --- nat ---

    def _divert(self, frontend: Frontend, container: str, host: str) -> Iterator[PlacedRule]:
        for clients, pool in self._from_elsewhere(frontend):
            target = self._container_target(pool)
            for match in self._container_matches(frontend):
                yield "nat", container, f"{match}{clients}{target}"
        for clients, pool in self._from_node(frontend):
            target = self._host_target(pool)
            for match in self._host_matches(frontend):
                yield "nat", host, f"{match}{clients}{target}"

    def _from_elsewhere(self, frontend: Frontend) -> Iterator[tuple[str, PoolName]]:
        """Clients that come in through an interface, as a match, and the pool they use."""
        if frontend.has_short_circuit and PoolName.CLUSTER in self.ports:
            for match in pod_matches(self.node.detector, allowed_sources(frontend)):
                yield match, PoolName.CLUSTER
        yield from self._by_policy(frontend)

    def _from_node(self, frontend: Frontend) -> Iterator[tuple[str, PoolName]]:
        """Likewise for processes of the node itself, to which a Local policy does not apply."""
        if frontend.has_short_circuit and PoolName.CLUSTER in self.ports:
            for match in source_matches(allowed_sources(frontend)):
                yield match, PoolName.CLUSTER
        else:
            yield from self._by_policy(frontend)

    def _by_policy(self, frontend: Frontend) -> Iterator[tuple[str, PoolName]]:
        if frontend.verdict is Verdict.FORWARD and frontend.pool in self.ports:
            for match in source_matches(allowed_sources(frontend)):
                yield match, frontend.pool

    def _container_matches(self, frontend: Frontend) -> Iterator[str]:
        for match in self._matches(frontend):
            if frontend.kind is FrontendKind.EXTERNAL_IP:
                yield match + _NOT_FROM_BRIDGE
                yield match + _LOCAL
            else:
                yield match

    def _host_matches(self, frontend: Frontend) -> Iterator[str]:
        if frontend.kind is FrontendKind.NODE_PORT and not self.options.serves_localhost:
            yield from self._off_localhost(frontend)
            return
        for match in self._matches(frontend):
            if frontend.kind is FrontendKind.EXTERNAL_IP:
                yield match + _LOCAL
            # v1.25 stops here for external IPs: the node itself then reaches them only if they
            # are its own. Every other mode diverts them, and so do we.
            yield match

    def _off_localhost(self, frontend: Frontend) -> Iterator[str]:
        """A node port everywhere but at 127.0.0.1."""
        common = self._common(frontend.port)
        if self.node.node_ports_match_all:
            yield common + _NOT_LOCALHOST
        else:
            addresses = self.node.node_port_addresses
            yield from (f"{common} -d {each}" for each in addresses if not is_loopback(each))

    def _matches(self, frontend: Frontend) -> Iterator[str]:
        """Packets to this frontend; the chain of node ports sees only packets to the node."""
        common = self._common(frontend.port)
        if frontend.kind is not FrontendKind.NODE_PORT:
            yield f"{common} -d {frontend.address}"
        elif self.node.node_ports_match_all:
            yield common
        else:
            yield from (f"{common} -d {each}" for each in self.node.node_port_addresses)

    def _common(self, port: int) -> str:
        protocol = self.plan.id.protocol.lower_name
        label = self.plan.id.label
        return f"-m comment --comment {label} -p {protocol} -m {protocol} --dport {port}"

    def _container_target(self, pool: PoolName) -> str:
        if self.options.listen_address in _WILDCARDS:
            return f" -j REDIRECT --to-ports {self.ports[pool]}"
        return self._dnat(self.options.listen_address, pool)

    def _host_target(self, pool: PoolName) -> str:
        """Redirecting would go to the loopback address, which not every source may talk to."""
        if self.options.listen_address not in _WILDCARDS:
            return self._dnat(self.options.listen_address, pool)
        if not self.host_address:
            return f" -j REDIRECT --to-ports {self.ports[pool]}"
        return self._dnat(self.host_address, pool)

    def _dnat(self, address: str, pool: PoolName) -> str:
        return f" -j DNAT --to-destination {join_host_port(address, self.ports[pool])}"

    # --- filter ---

    def _let_in(self, frontend: Frontend) -> Iterator[PlacedRule]:
        """A firewall that lets node ports in sees the proxy port, since that is the destination
        once diverted."""
        for pool in dict.fromkeys(pool for _, pool in self._from_elsewhere(frontend)):
            accept = "-m state --state NEW -j ACCEPT"
            yield "filter", NODE_PORT_NON_LOCAL, f"{self._common(self.ports[pool])} {accept}"

    def _answer(self, frontend: Frontend) -> Iterator[PlacedRule]:
        """What arrives here was not diverted: say so, or say nothing."""
        verdict = frontend.verdict
        if verdict is Verdict.FORWARD and not allowed_sources(frontend):
            return
        is_node_port = frontend.kind is FrontendKind.NODE_PORT
        place = _LOCAL if is_node_port and self.node.node_ports_match_all else ""
        target = "REJECT" if verdict is Verdict.REJECT else "DROP"
        for match in self._matches(frontend):
            yield "filter", PORTALS_FILTER, f"{match}{place} -j {target}"


def allowed_sources(frontend: Frontend) -> tuple[str, ...]:
    """Networks and addresses that may connect; none means everybody."""
    return (*frontend.source_ranges, *frontend.vip_sources)


def source_matches(sources: tuple[str, ...]) -> Iterator[str]:
    yield from (f" -s {source}" for source in sources) if sources else ("",)


def pod_matches(detector: LocalDetector, sources: tuple[str, ...]) -> Iterator[str]:
    """Pods of this node, as far as they are among the sources that may connect."""
    match detector.kind:
        case DetectorKind.NONE:
            return
        case DetectorKind.BRIDGE:
            yield from (f" -i {detector.value}{source}" for source in source_matches(sources))
        case DetectorKind.INTERFACE_PREFIX:
            yield from (f" -i {detector.value}+{source}" for source in source_matches(sources))
        case DetectorKind.CIDR:
            yield from (f" -s {part}" for part in _within(detector.value, sources))


def _within(cidr: str, sources: tuple[str, ...]) -> Iterator[str]:
    """The parts of a network that are among the sources. Two networks never overlap by halves:
    one contains the other, or they have nothing in common."""
    if not sources:
        yield cidr
    network = ipaddress.ip_network(cidr)
    for source in sources:
        other = ipaddress.ip_network(source)
        if network.overlaps(other):
            yield cidr if network.prefixlen >= other.prefixlen else source
