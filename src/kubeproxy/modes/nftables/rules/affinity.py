"""Services with ClientIP affinity: chains and sets of their own, named as upstream names them.

An endpoint has a set of the clients it served lately and a chain that refreshes the set and
rewrites the destination. The service's chain first looks the client up in every set, then picks at
random. Names, set types and timeouts are upstream's, so affinity survives a restart and a change
of proxy. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import ServicePortId
from kubeproxy.kernel.nftables.wire import NFT_SET_EVAL, NFT_SET_TIMEOUT
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    ChainKind,
    Item,
    SetItem,
    SetSpec,
    Value,
)
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.classes import ClassContext, short_circuit
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.rules.pieces import rule
from kubeproxy.plan.types import PoolName, ServicePlan, Verdict

_POOL_PREFIXES = {
    PoolName.CLUSTER: names.SERVICE_CHAIN_PREFIX,
    PoolName.LOCAL: names.LOCAL_CHAIN_PREFIX,
}


def pool_chain(port: ServicePortId, pool: PoolName) -> str:
    """The chain that picks among a pool's endpoints."""
    return _POOL_PREFIXES[pool] + names.base_name(names.service_port_name(port))


def external_chain(port: ServicePortId) -> str:
    """The chain for traffic from outside."""
    return names.EXTERNAL_CHAIN_PREFIX + names.base_name(names.service_port_name(port))


def affinity_set_spec(layout: FamilyLayout, timeout_seconds: int = 0) -> SetSpec:
    """The declaration of a set of clients."""
    return SetSpec(
        layout.address_type,
        layout.address_length,
        flags=NFT_SET_TIMEOUT | NFT_SET_EVAL,
        timeout_ms=timeout_seconds * 1000,
    )


def affinity_items(plan: ServicePlan, context: ClassContext) -> dict[Item, Value]:
    """Sets and chains of a service port with affinity."""
    items: dict[Item, Value] = {}
    for endpoint in plan.reachable:
        items |= _endpoint_items(plan, endpoint, context)
    for pool in _used_pools(plan):
        chosen = tuple(_choose(plan, plan.pool(pool).endpoints, context))
        items[ChainItem(pool_chain(plan.id, pool))] = Chain(ChainKind.SERVICE_POOL, chosen)
    if any(f.kind.is_external and f.accepts_anyone for f in plan.frontends):
        external = Chain(ChainKind.SERVICE_ENTRY, tuple(_external(plan, context)))
        items[ChainItem(external_chain(plan.id))] = external
    return items


def _used_pools(plan: ServicePlan) -> list[PoolName]:
    """Pools some frontend sends traffic to."""
    used = {f.pool for f in plan.frontends if f.verdict is Verdict.FORWARD}
    if any(f.has_short_circuit for f in plan.frontends):
        used.add(PoolName.CLUSTER)
    return [name for name in PoolName if name in used and plan.pool(name)]


def _endpoint_items(
    plan: ServicePlan, endpoint: Endpoint, context: ClassContext
) -> dict[Item, Value]:
    base = names.base_name(names.endpoint_name(plan.id, endpoint))
    clients = names.AFFINITY_SET_PREFIX + base
    packed = pack_address(endpoint.address)
    rewrite = rules.dnat_to(context.layout, plan.id.protocol.number, packed, endpoint.port)
    remember = rules.remember_source(context.layout, clients)
    return {
        SetItem(clients): affinity_set_spec(context.layout, plan.affinity_seconds),
        ChainItem(names.ENDPOINT_CHAIN_PREFIX + base): Chain(
            ChainKind.ENDPOINT, (rule(remember), rule(rewrite))
        ),
    }


def _choose(
    plan: ServicePlan, endpoints: Iterable[Endpoint], context: ClassContext
) -> Iterator[Rule]:
    """First the endpoint that served this client lately, then one at random, all equally likely."""
    bases = [names.base_name(names.endpoint_name(plan.id, e)) for e in endpoints]
    for base in bases:
        is_known = rules.source(context.layout) + rules.in_set(names.AFFINITY_SET_PREFIX + base)
        yield rule(is_known, rules.goto(names.ENDPOINT_CHAIN_PREFIX + base))
    # One rule each with falling modulus rather than upstream's anonymous map: every anonymous
    # set makes the next one dearer for the kernel.
    for left, base in zip(range(len(bases), 0, -1), bases, strict=True):
        is_drawn = rules.random_is_zero(left) if left > 1 else ()
        yield rule(is_drawn, rules.goto(names.ENDPOINT_CHAIN_PREFIX + base))


def _external(plan: ServicePlan, context: ClassContext) -> Iterator[Rule]:
    if plan.is_external_policy_local:
        yield from short_circuit(context, pool_chain(plan.id, PoolName.CLUSTER))
        pool = PoolName.LOCAL
    else:
        yield rule(rules.mark_or(context.mark), comment="masquerade")
        pool = PoolName.CLUSTER
    if plan.has_external:
        yield rule(rules.goto(pool_chain(plan.id, pool)))
