"""What one service port wants: virtual servers, set entries, bound addresses, rules. Pure.

A loop over the plan's frontends. Three things are this mode's own and have functions named after
them: a Local policy without local endpoints falls back to the cluster's, node ports are served on
each node address and never on loopback, and a port that has a node port but no address to serve
it on is left out of the health check set as well.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from kubeproxy.facts.address import is_loopback
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import Fragment, Item, Value
from kubeproxy.modes.ipvs.items import (
    HASH_PORT,
    PERSISTENT,
    PRESENT,
    BoundAddress,
    Destination,
    IpSet,
    ServerSpec,
    ServiceLink,
    SetEntry,
    SetKind,
    SetSpec,
    VirtualServer,
)
from kubeproxy.modes.ipvs.names import NODE_PORT_SETS, SERVICE_LINK, SET_KINDS, SetName, set_name
from kubeproxy.modes.ipvs.rules.chains import (
    RuleSettings,
    out_filter,
    scaffold_rules,
    set_fragments,
)
from kubeproxy.plan.types import Frontend, FrontendKind, ServicePlan

DEFAULT_SCHEDULER = "rr"
_HASHING_SCHEDULER = "mh"


class RenderSettings(Struct, frozen=True, gc=False):
    """What configuration says about rendering."""

    family: Family
    scheduler: str = DEFAULT_SCHEDULER
    mark: str = "0x00004000"
    has_random_fully: bool = True
    allows_host_ports: bool = False

    def rules(self, node: NodeFacts) -> RuleSettings:
        return RuleSettings(
            family=self.family,
            detector=node.detector,
            masquerade_all=node.masquerade_all,
            mark=self.mark,
            has_random_fully=self.has_random_fully,
            allows_host_ports=self.allows_host_ports,
        )


def render_scaffold(node: NodeFacts, settings: RenderSettings) -> Fragment:
    """The link, the empty sets, and the rules that exist with no service at all."""
    items: dict[Item, Value] = {ServiceLink(SERVICE_LINK): PRESENT}
    for name, kind in SET_KINDS.items():
        is_ipv6 = settings.family is Family.IPV6 and kind is not SetKind.PORT
        items[IpSet(set_name(settings.family, name))] = SetSpec(kind, is_ipv6)
    return items | dict(scaffold_rules(settings.rules(node)))


def render_plan(plan: ServicePlan, node: NodeFacts, settings: RenderSettings) -> Fragment:
    """Everything one service port wants."""
    rendering = _Rendering(plan, node, settings)
    rendering.hairpin()
    for frontend in plan.frontends:
        if frontend.kind is FrontendKind.NODE_PORT:
            rendering.node_port(frontend)
        else:
            rendering.address(frontend)
    rendering.health_check()
    return rendering.items


class _Rendering:
    """The items of one plan, as they come together."""

    def __init__(self, plan: ServicePlan, node: NodeFacts, settings: RenderSettings) -> None:
        self.items: dict[Item, Value] = {}
        self._plan = plan
        self._node = node
        self._family = settings.family
        self._protocol = plan.id.protocol
        self._number = plan.id.protocol.number
        self._scheduler = settings.scheduler
        self._rules = set_fragments(settings.rules(node))

    def hairpin(self) -> None:
        """An endpoint that reaches itself through a service must not see its own address."""
        for endpoint in self._plan.hairpin:
            self._enter(
                SetName.LOOP_BACK, endpoint.address, port=endpoint.port, second=endpoint.address
            )

    def address(self, frontend: Frontend) -> None:
        """A cluster IP, external IP or load balancer address."""
        for name in _address_sets(frontend, self._plan):
            self._enter(name, frontend.address, port=frontend.port)
        if frontend.source_ranges:
            self._restrict(frontend)
        server = VirtualServer(self._number, frontend.address, frontend.port)
        self.items[server] = self._spec(frontend)
        if frontend.kind is FrontendKind.CLUSTER_IP or frontend.address not in self._node.addresses:
            self._bind(frontend.address)

    def _restrict(self, frontend: Frontend) -> None:
        """Source ranges, and whether the node itself is within them."""
        for cidr in frontend.source_ranges:
            network, _, length = cidr.partition("/")
            self._enter(
                SetName.LOAD_BALANCER_SOURCE_CIDR,
                frontend.address,
                port=frontend.port,
                second=network,
                prefix_length=int(length),
            )
        if frontend.vip_sources:
            self._enter(
                SetName.LOAD_BALANCER_SOURCE_IP,
                frontend.address,
                port=frontend.port,
                second=frontend.address,
            )
        else:
            self.items |= out_filter(self._family, frontend.address, self._number, frontend.port)

    def node_port(self, frontend: Frontend) -> None:
        """One virtual server per node address; nothing is bound, the addresses are there."""
        addresses = node_port_addresses(self._node)
        every, local = NODE_PORT_SETS[self._protocol]
        names = (every, local) if self._plan.is_external_policy_local else (every,)
        for name in names if addresses else ():
            if self._protocol is Protocol.SCTP:
                for address in addresses:
                    self._enter(name, address, port=frontend.port)
            else:
                self._enter_port(name, frontend.port)
        spec = self._spec(frontend)
        for address in addresses:
            self.items[VirtualServer(self._number, address, frontend.port)] = spec

    def health_check(self) -> None:
        plan = self._plan
        if not plan.health_check_node_port or _lacks_node_addresses(plan, self._node):
            return
        self._enter_port(SetName.HEALTH_CHECK_NODE_PORT, plan.health_check_node_port)

    def _spec(self, frontend: Frontend) -> ServerSpec:
        endpoints = local_policy_falls_back(self._plan, frontend)
        flags = PERSISTENT if self._plan.affinity_seconds else 0
        if self._scheduler == _HASHING_SCHEDULER:
            flags |= HASH_PORT
        return ServerSpec(
            scheduler=self._scheduler,
            flags=flags,
            timeout_seconds=self._plan.affinity_seconds,
            destinations=_destinations(endpoints),
        )

    def _bind(self, address: str) -> None:
        self.items[BoundAddress(address)] = PRESENT
        self._claim(SetName.IPVS_IPS, SetEntry(self._name(SetName.IPVS_IPS), address))

    def _enter(
        self, name: SetName, address: str, *, port: int, second: str = "", prefix_length: int = 0
    ) -> None:
        entry = SetEntry(self._name(name), address, self._number, port, second, prefix_length)
        self._claim(name, entry)

    def _enter_port(self, name: SetName, port: int) -> None:
        self._claim(name, SetEntry(self._name(name), port=port))

    def _claim(self, name: SetName, entry: SetEntry) -> None:
        """An entry, and with it the rules that exist while the set has one."""
        self.items[entry] = PRESENT
        self.items |= self._rules[name]

    def _name(self, name: SetName) -> str:
        return set_name(self._family, name)


def _address_sets(frontend: Frontend, plan: ServicePlan) -> Iterable[SetName]:
    """The sets that hold an address and port of this kind."""
    is_local = plan.is_external_policy_local
    if frontend.kind is FrontendKind.CLUSTER_IP:
        yield SetName.CLUSTER_IP
    elif frontend.kind is FrontendKind.EXTERNAL_IP:
        yield SetName.EXTERNAL_IP_LOCAL if is_local else SetName.EXTERNAL_IP
    else:
        yield SetName.LOAD_BALANCER
        if is_local:
            yield SetName.LOAD_BALANCER_LOCAL
        if frontend.source_ranges:
            yield SetName.LOAD_BALANCER_FW


def local_policy_falls_back(plan: ServicePlan, frontend: Frontend) -> tuple[Endpoint, ...]:
    """Quirk: a Local policy without local endpoints uses the cluster's instead of dropping."""
    return plan.pool(frontend.pool).endpoints or plan.cluster.endpoints


def node_port_addresses(node: NodeFacts) -> tuple[str, ...]:
    """The node's addresses that serve node ports: never loopback, and link-local only if told."""
    return tuple(
        address
        for address in node.node_port_addresses
        if not is_loopback(address) and not (node.node_ports_match_all and _is_link_local(address))
    )


def facts_used(node: NodeFacts) -> NodeFacts:
    """The facts that rendering looks at. What pods' interfaces bring is not among them, so that
    pods that come and go render nothing anew."""
    serving = node_port_addresses(node)
    kept = (a for a in node.addresses if a in serving or not _is_unusable(a))
    return replace(node, addresses=tuple(kept), service_cidrs=(), is_large_cluster=False)


def _is_unusable(address: str) -> bool:
    return is_loopback(address) or _is_link_local(address)


def _is_link_local(address: str) -> bool:
    return ":" in address and ipaddress.IPv6Address(address).is_link_local


def _lacks_node_addresses(plan: ServicePlan, node: NodeFacts) -> bool:
    """Quirk: a node port that no address serves takes the health check port with it."""
    return bool(plan.node_port) and not node_port_addresses(node)


def _destinations(endpoints: Iterable[Endpoint]) -> tuple[Destination, ...]:
    return tuple(
        Destination(address, port)
        for address, port in sorted((e.address, e.port) for e in endpoints)
    )
