"""One service port's plan becomes the items it wants. Pure.

Each frontend has a dispatch element (destination → class chain), a pool (the endpoints the class
chain picks from), and where needed a no-endpoint or firewall element. All four share the
frontend's key, by which `compile` keeps them together in one transaction. With the option for
node ports on localhost, a node port also has a listener there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from kubeproxy.facts.address import merge_cidrs, pack_address
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.policy import Algorithm
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    ChainKind,
    Element,
    ElementItem,
    Fragment,
    Item,
    ListenerItem,
    Pool,
    PoolItem,
    SetItem,
    Target,
    Value,
)
from kubeproxy.modes.nftables.names import FamilyLayout, layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.rules import affinity
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.classes import (
    DRAWS,
    ClassContext,
    ServiceClass,
    local_class,
    masqueraded_class,
    pick_class,
)
from kubeproxy.modes.nftables.rules.guards import guard_items
from kubeproxy.modes.nftables.rules.own import external_chain, pool_chain
from kubeproxy.modes.nftables.rules.pieces import Draw, rule
from kubeproxy.modes.nftables.rules.refused import counting_items
from kubeproxy.modes.nftables.rules.turns import turn_items
from kubeproxy.modes.nftables.scaffold import admitted_set_specs
from kubeproxy.plan import types as plans
from kubeproxy.plan.balance import slot_count, slots_of
from kubeproxy.plan.types import Frontend, FrontendKind, Guard, PoolName, ServicePlan, Verdict

_IN_SET = Element()
_REFUSING = {
    Verdict.REJECT: nft.Verdict(nft.NFT_GOTO, names.REJECT_CHAIN),
    Verdict.DROP: nft.DROP,
}
_RELAYED = (Protocol.TCP, Protocol.UDP)


def render(plan: ServicePlan, node: NodeFacts, options: Options) -> Fragment:
    """The items this service port wants."""
    context = ClassContext(layout_of(node.family), node.detector, options.masquerade_mark)
    items: dict[Item, Value] = {}
    if plan.cluster_ip:
        items[ElementItem(names.CLUSTER_IPS, pack_address(plan.cluster_ip))] = _IN_SET
    protocol = plan.id.protocol.number
    for endpoint in plan.reachable:
        if endpoint.is_local:
            items[ElementItem(names.HAIRPIN, names.hairpin_key(endpoint, protocol))] = _IN_SET
    if plan.affinity_seconds and plan.has_endpoints:
        items |= affinity.affinity_items(plan, context)
    elif _is_in_turn(plan) and plan.has_endpoints:
        items |= turn_items(plan, context)
    slots = _Slots(plan.algorithm)
    for frontend in plan.frontends:
        _add_frontend(items, plan, frontend, context, slots)
    if plan.guard is not None:
        items |= _guarded(plan, plan.guard, items, context.layout)
    if options.counts_refused:
        items |= counting_items(items, context.layout)
    if options.localhost_node_ports:
        items |= listener_items(plan)
    return items


def _guarded(
    plan: ServicePlan, guard: Guard, items: Fragment, layout: FamilyLayout
) -> dict[Item, Value]:
    found = guard_items(plan, guard, items, layout)
    if found:
        specs = admitted_set_specs(layout)
        found |= {SetItem(name): spec for name, spec in specs.items()}
    return found


class _Slots:
    """Pools packed once for all frontends of a service port that use them."""

    def __init__(self, algorithm: Algorithm | None) -> None:
        self._algorithm = algorithm
        self._packed: dict[int, Pool] = {}

    def pool(self, pool: plans.Pool) -> Pool:
        known = self._packed.get(id(pool))
        if known is None:
            endpoints = pool.endpoints
            if self._algorithm is not None or pool.weights:
                endpoints = tuple(endpoints[i] for i in slots_of(pool, self._algorithm))
            known = self._packed[id(pool)] = Pool(names.pack_slots(endpoints))
        return known


def _is_in_turn(plan: ServicePlan) -> bool:
    """Has it a counter, and therefore chains, of its own?"""
    return DRAWS[plan.algorithm] is Draw.TURN


def _add_frontend(
    items: dict[Item, Value],
    plan: ServicePlan,
    frontend: Frontend,
    context: ClassContext,
    slots: _Slots,
) -> None:
    is_node_port = frontend.kind is FrontendKind.NODE_PORT
    protocol = plan.id.protocol.number
    if is_node_port:
        key = names.node_port_key(protocol, frontend.port)
    else:
        key = names.service_key(frontend.address, protocol, frontend.port)
    if frontend.accepts_anyone:
        dispatch = names.SERVICE_NODE_PORTS if is_node_port else names.SERVICE_IPS
        chain = _entry(items, plan, frontend, context)
        verdict = _goto(chain)
        items[ElementItem(dispatch, key)] = Element(verdict, names.comment_of(plan.id))
        if not plan.affinity_seconds:
            for map_name, pool in _pools(plan, frontend):
                items[PoolItem(map_name, key)] = slots.pool(pool)
    if frontend.verdict is not Verdict.FORWARD:
        refused = names.NO_ENDPOINT_NODE_PORTS if is_node_port else names.NO_ENDPOINT_SERVICES
        refusing = Element(_REFUSING[frontend.verdict], names.comment_of(plan.id))
        items[ElementItem(refused, key)] = refusing
    if frontend.source_ranges:
        items |= _firewall_items(plan, frontend, context, key)


def _entry(
    items: dict[Item, Value], plan: ServicePlan, frontend: Frontend, context: ClassContext
) -> str:
    """The chain the frontend's traffic goes to. A class chain is wanted by each of its users."""
    if not plan.affinity_seconds and not _is_in_turn(plan):
        found = _class_of(plan, frontend, context)
        items.update(found.chains)
        return found.entry
    # With affinity, a node port's endpoints are looked up by neither address nor port.
    by_node_port = frontend.kind is FrontendKind.NODE_PORT and not plan.affinity_seconds
    if frontend.kind.is_external:
        return external_chain(plan.id, by_node_port=by_node_port)
    return pool_chain(plan.id, frontend.pool, by_node_port=by_node_port)


def _class_of(plan: ServicePlan, frontend: Frontend, context: ClassContext) -> ServiceClass:
    by_node_port = frontend.kind is FrontendKind.NODE_PORT
    algorithm, draw = plan.algorithm, DRAWS[plan.algorithm]
    if frontend.has_short_circuit:
        local = slot_count(plan.local, algorithm) if frontend.verdict is Verdict.FORWARD else 0
        count = slot_count(plan.cluster, algorithm)
        return local_class(context, count, local, by_node_port=by_node_port, draw=draw)
    count = slot_count(plan.pool(frontend.pool), algorithm)
    if frontend.kind.is_external:
        return masqueraded_class(context, count, by_node_port=by_node_port, draw=draw)
    return pick_class(context, count, draw=draw)


def _pools(plan: ServicePlan, frontend: Frontend) -> Iterator[tuple[str, plans.Pool]]:
    """The maps this frontend's key is in, and the pool there."""
    is_node_port = frontend.kind is FrontendKind.NODE_PORT
    main = names.NODE_PORT_POOLS if is_node_port else names.SERVICE_POOLS
    local = names.NODE_PORT_LOCAL_POOLS if is_node_port else names.LOCAL_POOLS
    if not frontend.has_short_circuit:
        own_map = local if _is_in_turn(plan) and frontend.pool is PoolName.LOCAL else main
        yield own_map, plan.pool(frontend.pool)
        return
    yield main, plan.cluster
    if frontend.verdict is Verdict.FORWARD:
        yield local, plan.local


@lru_cache(maxsize=256)
def _goto(chain: str) -> nft.Verdict:
    """Few class chains serve nearly all services: keep one copy of each verdict."""
    return nft.Verdict(nft.NFT_GOTO, chain)


def _firewall_items(
    plan: ServicePlan, frontend: Frontend, context: ClassContext, key: bytes
) -> dict[Item, Value]:
    """Who may connect: the ranges, and the VIPs themselves where the plan allows them."""
    chain = names.FIREWALL_CHAIN_PREFIX + names.base_name(names.service_port_name(plan.id))
    layout = context.layout
    listed = [
        rule(rules.in_network(layout, layout.source_offset, cidr), rules.verdict(nft.RETURN))
        for cidr in merge_cidrs((*frontend.source_ranges, *frontend.vip_sources), layout.family)
    ]
    listed.append(rule(rules.verdict(nft.DROP)))
    verdict = nft.Verdict(nft.NFT_GOTO, chain)
    return {
        ChainItem(chain): Chain(ChainKind.SERVICE_ENTRY, tuple(listed)),
        ElementItem(names.FIREWALL_IPS, key): Element(verdict, names.comment_of(plan.id)),
    }


def listener_items(plan: ServicePlan) -> dict[Item, Value]:
    """The listeners on localhost one service port wants.

    The node's own clients use all endpoints whatever the traffic policy is, as they do on every
    other address of the node.
    """
    if plan.id.protocol not in _RELAYED:
        return {}
    items: dict[Item, Value] = {}
    for frontend in plan.frontends_of(FrontendKind.NODE_PORT):
        if frontend.accepts_anyone and _admits_localhost(plan):
            pool = plan.cluster if frontend.has_short_circuit else plan.pool(frontend.pool)
            items[ListenerItem(plan.id.protocol, frontend.port)] = _target(plan, pool)
    return items


def _admits_localhost(plan: ServicePlan) -> bool:
    """May the node itself connect? The listener's clients have no other address than loopback."""
    loopback = "::1" if ":" in plan.cluster_ip else "127.0.0.1"
    return plan.guard is None or plan.guard.admits(loopback)


def _target(plan: ServicePlan, pool: plans.Pool) -> Target:
    """All clients there have one address. So a hash of it is always the same slot."""
    slots = slots_of(pool, plan.algorithm)
    draw = DRAWS[plan.algorithm]
    chosen = [pool.endpoints[index] for index in (slots[:1] if draw is Draw.HASH else slots)]
    endpoints = tuple((e.address, e.port) for e in chosen)
    return Target(endpoints, plan.affinity_seconds, is_in_turn=draw is Draw.TURN)
