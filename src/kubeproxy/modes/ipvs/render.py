"""What one service port wants: virtual servers, set entries, bound addresses, rules. Pure.

A loop over the plan's frontends. Three things are this mode's own and have functions named after
them: a Local policy without local endpoints falls back to the cluster's, node ports are served on
each node address and never on loopback, and a port that has a node port but no address to serve
it on is left out of the health check set as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from msgspec.structs import replace

from kubeproxy.facts.address import is_ipv6_link_local, is_loopback
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.kernel.ipvs.wire import IP_VS_SVC_F_PERSISTENT
from kubeproxy.modes.ipvs.items import (
    PRESENT,
    BoundAddress,
    Fragment,
    IpSet,
    Item,
    Place,
    RealServer,
    ServerSpec,
    SetEntry,
    Value,
    VirtualServer,
)
from kubeproxy.modes.ipvs.names import GUARD_SETS, NODE_PORT_SETS, SetName, set_head, set_name
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.rules.scheduling import scheduling
from kubeproxy.modes.ipvs.rules.sets import out_filter, set_rules
from kubeproxy.plan.types import Frontend, FrontendKind, Pool, ServicePlan


def render(plan: ServicePlan, node: NodeFacts, options: Options) -> Fragment:
    """Everything one service port wants."""
    rendering = _Rendering(plan, node, options)
    rendering.hairpin()
    for frontend in plan.frontends:
        if frontend.kind is FrontendKind.NODE_PORT:
            rendering.node_port(frontend)
        else:
            rendering.address(frontend)
    rendering.health_check()
    return rendering.items


def services_without_local_endpoints(plans: Sequence[ServicePlan]) -> tuple[int, int]:
    """Count a Service once, whatever its number of ports, by internal and by external policy.

    As upstream does in this mode alone: it notes names of Services where it programs a virtual
    server by a Local policy. An external policy counts only if there is such a server.
    """
    served = [plan for plan in plans if plan.has_endpoints]
    internal = any(not plan.has_internal for plan in served)
    external = any(not plan.has_external and _uses_a_local_policy(plan) for plan in served)
    return int(internal), int(external)


def _uses_a_local_policy(plan: ServicePlan) -> bool:
    is_external = (each.kind is not FrontendKind.CLUSTER_IP for each in plan.frontends)
    return plan.is_internal_policy_local or any(is_external)


class _Rendering:
    """The items of one plan, as they come together."""

    def __init__(self, plan: ServicePlan, node: NodeFacts, options: Options) -> None:
        self.items: dict[Item, Value] = {}
        self._plan = plan
        self._node = node
        self._family = node.family
        self._protocol = plan.id.protocol
        self._number = plan.id.protocol.number
        self._scheduler = options.scheduler
        self._counts_refused = options.counts_refused
        self._rules = set_rules(node.family, node.detector, masquerade_all=node.masquerade_all)

    def hairpin(self) -> None:
        """Masquerade an endpoint that reaches itself: it must not see its own address as client."""
        for endpoint in self._plan.hairpin:
            self._enter(
                SetName.LOOP_BACK, endpoint.address, port=endpoint.port, second=endpoint.address
            )

    def address(self, frontend: Frontend) -> None:
        """Serve a cluster IP, external IP or load balancer address."""
        for name in _address_sets(frontend, self._plan):
            self._enter(name, frontend.address, port=frontend.port)
        if frontend.source_ranges:
            self._restrict(frontend)
        self._guard(frontend.address, frontend.port)
        self._serve(frontend.address, frontend.port, self._spec(frontend))
        if frontend.kind is FrontendKind.CLUSTER_IP or frontend.address not in self._node.addresses:
            self._bind(frontend.address)

    def _restrict(self, frontend: Frontend) -> None:
        """Admit the source ranges, and the node itself if it is within them."""
        if self._counts_refused:
            self._enter(SetName.SOURCE_REFUSED, frontend.address, port=frontend.port)
        self._enter_networks(
            SetName.LOAD_BALANCER_SOURCE_CIDR,
            frontend.source_ranges,
            frontend.address,
            frontend.port,
        )
        if frontend.vip_sources:
            self._enter(
                SetName.LOAD_BALANCER_SOURCE_IP,
                frontend.address,
                port=frontend.port,
                second=frontend.address,
            )
        else:
            rules = out_filter(self._family, frontend.address, self._number, frontend.port)
            self.items.update(rules.items())

    def _guard(self, address: str, port: int) -> None:
        """Admit only those to a place who are allowed and not denied."""
        guard = self._plan.guard
        if guard is None or not self._plan.has_endpoints:
            return
        # The node connects with the address itself as source, and no rule of INPUT sees that.
        if not guard.admits(address):
            rules = out_filter(self._family, address, self._number, port)
            self.items.update(rules.items())
        for name in GUARD_SETS:
            self.items[IpSet(self._set_name(name))] = set_head(self._family, name)
        if self._counts_refused:
            self._enter(SetName.GUARD_REFUSED, address, port=port)
        self._enter_networks(SetName.DENIED_SOURCES, guard.deny, address, port)
        if guard.allow is not None:
            self._enter_networks(SetName.ALLOWED_SOURCES, guard.allow, address, port)
            self._enter(SetName.GUARDED, address, port=port)

    def _enter_networks(self, name: SetName, cidrs: Iterable[str], address: str, port: int) -> None:
        for cidr in cidrs:
            network, _, length = cidr.partition("/")
            self._enter(name, address, port=port, second=network, prefix_length=int(length))

    def node_port(self, frontend: Frontend) -> None:
        """Serve every node address; they exist already, so nothing is bound."""
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
            self._guard(address, frontend.port)
            self._serve(address, frontend.port, spec)

    def _serve(self, address: str, port: int, spec: ServerSpec) -> None:
        """Want a virtual server. IPVS itself refuses what it has no real server for."""
        self.items[VirtualServer(self._number, address, port)] = spec
        if self._counts_refused and not spec.real_servers:
            self._enter(SetName.NO_ENDPOINTS, address, port=port)

    def health_check(self) -> None:
        """Admit the health check port to the host."""
        plan = self._plan
        if not plan.health_check_node_port or _lacks_node_addresses(plan, self._node):
            return
        self._enter_port(SetName.HEALTH_CHECK_NODE_PORT, plan.health_check_node_port)

    def _spec(self, frontend: Frontend) -> ServerSpec:
        pool = local_policy_falls_back(self._plan, frontend)
        balancing = scheduling(
            self._plan.algorithm, self._scheduler, is_weighted=bool(pool.weights)
        )
        persistent = IP_VS_SVC_F_PERSISTENT if self._plan.affinity_seconds else 0
        return ServerSpec(
            scheduler=balancing.scheduler,
            flags=persistent | balancing.flags,
            timeout_seconds=self._plan.affinity_seconds,
            real_servers=tuple(sorted(real_servers(self._plan, pool), key=_place)),
            drain_seconds=self._plan.drain_seconds,
        )

    def _bind(self, address: str) -> None:
        self.items[BoundAddress(address)] = PRESENT
        self._claim(SetName.IPVS_IPS, SetEntry(self._set_name(SetName.IPVS_IPS), address))

    def _enter(
        self, name: SetName, address: str, *, port: int, second: str = "", prefix_length: int = 0
    ) -> None:
        entry = SetEntry(self._set_name(name), address, self._number, port, second, prefix_length)
        self._claim(name, entry)

    def _enter_port(self, name: SetName, port: int) -> None:
        self._claim(name, SetEntry(self._set_name(name), port=port))

    def _claim(self, name: SetName, entry: SetEntry) -> None:
        """Claim an entry, and with it the rules that exist while the set has one."""
        self.items[entry] = PRESENT
        self.items.update(self._rules[name].items())

    def _set_name(self, name: SetName) -> str:
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


def local_policy_falls_back(plan: ServicePlan, frontend: Frontend) -> Pool:
    """Quirk: a Local policy without local endpoints uses the cluster's instead of dropping."""
    return plan.pool(frontend.pool) or plan.cluster


def real_servers(plan: ServicePlan, pool: Pool) -> Iterator[RealServer]:
    """The endpoints with their weights, and those of weight 0, which keep their connections."""
    weights = pool.weights or repeat(1)
    for endpoint, weight in zip(pool.endpoints, weights, strict=False):
        yield RealServer(endpoint.address, endpoint.port, weight)
    for endpoint in _keeping(plan, pool):
        yield RealServer(endpoint.address, endpoint.port, 0)


def _keeping(plan: ServicePlan, pool: Pool) -> Iterator[Endpoint]:
    """The endpoints that keep their connections without a limit, and take no new one here.

    Where a Service resets or limits connections, the plan names all of them (`serving`), also those
    that a traffic policy or a hint has left out of this pool: once removed, a real server has only
    the limit. Whom the plan does not name is removed, so that the limit begins.
    """
    if plan.drain_seconds is None:
        yield from (e for e in plan.quiesced if e.is_local or pool is not plan.local)
    else:
        present = {id(endpoint) for endpoint in pool.endpoints}
        yield from (e for e in plan.serving if id(e) not in present)


def _place(real: RealServer) -> Place:
    return real.place


def node_port_addresses(node: NodeFacts) -> tuple[str, ...]:
    """The node's addresses that serve node ports.

    Never loopback, and link-local ones only if `nodePortAddresses` is configured.
    """
    return tuple(
        address
        for address in node.node_port_addresses
        if not is_loopback(address)
        and not (node.node_ports_match_all and is_ipv6_link_local(address))
    )


def rendering_facts(node: NodeFacts) -> NodeFacts:
    """What rendering reads of the node.

    What pods' interfaces bring is left out, so that pods that come and go render nothing again.
    """
    serving = node_port_addresses(node)
    kept = (
        address
        for address in node.addresses
        if address in serving or not (is_loopback(address) or is_ipv6_link_local(address))
    )
    return replace(node, addresses=tuple(kept), service_cidrs=(), is_large_cluster=False)


def _lacks_node_addresses(plan: ServicePlan, node: NodeFacts) -> bool:
    """Quirk: a node port that no address serves takes the health check port with it."""
    return bool(plan.node_port) and not node_port_addresses(node)
