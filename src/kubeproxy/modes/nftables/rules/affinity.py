"""Services with ClientIP affinity: chains and sets of their own, named as upstream names them.

An endpoint has a set of the clients it served lately and a chain that refreshes the set and
rewrites the destination. The service's chain first asks every set, then picks at random. Names,
set types and timeouts are upstream's, so affinity survives a restart and a change of proxy.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import ServicePortId
from kubeproxy.modes.base import Item, Value
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import Chain, ChainItem, Rule, SetItem, SetSpec
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.classes import ClassContext, short_circuit
from kubeproxy.modes.nftables.rules.pieces import rule
from kubeproxy.plan.types import PoolName, ServicePlan, Verdict

_TIMEOUT, _DYNAMIC = 0x10, 0x20
_PREFIXES = {PoolName.CLUSTER: "service-", PoolName.LOCAL: "local-"}


def pool_chain(port: ServicePortId, pool: PoolName) -> str:
    """The chain that picks among a pool's endpoints."""
    return _PREFIXES[pool] + names.base_name(names.service_port_name(port))


def external_chain(port: ServicePortId) -> str:
    """The chain for traffic from outside."""
    return "external-" + names.base_name(names.service_port_name(port))


def affinity_items(plan: ServicePlan, context: ClassContext) -> dict[Item, Value]:
    """Sets and chains of a service port with affinity."""
    items: dict[Item, Value] = {}
    for endpoint in plan.reachable:
        items |= _endpoint_items(plan, endpoint, context)
    for pool in _used_pools(plan):
        chain = Chain(tuple(_choose(plan, plan.pool(pool).endpoints, context)))
        items[ChainItem(pool_chain(plan.id, pool))] = chain
    if any(f.kind.is_external and f.accepts_anybody for f in plan.frontends):
        items[ChainItem(external_chain(plan.id))] = Chain(tuple(_external(plan, context)))
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
    layout = context.layout
    spec = SetSpec(
        layout.address_type,
        layout.address_length,
        flags=_TIMEOUT | _DYNAMIC,
        timeout_ms=plan.affinity_seconds * 1000,
    )
    rewrite = rules.dnat_to(
        layout, plan.id.protocol.number, names.pack_address(endpoint.address), endpoint.port
    )
    remember = rules.remember_source(layout, names.AFFINITY_PREFIX + base)
    return {
        SetItem(names.AFFINITY_PREFIX + base): spec,
        ChainItem("endpoint-" + base): Chain((rule(remember), rule(rewrite))),
    }


def _choose(
    plan: ServicePlan, endpoints: Iterable[Endpoint], context: ClassContext
) -> Iterator[Rule]:
    """First whoever served this client lately; then one at random, each equally likely."""
    bases = [names.base_name(names.endpoint_name(plan.id, e)) for e in endpoints]
    for base in bases:
        known = (rules.source(context.layout), rules.in_set(names.AFFINITY_PREFIX + base))
        yield rule(known, rules.goes("endpoint-" + base))
    # One rule each with falling modulus rather than upstream's anonymous map: every anonymous
    # set makes the next one dearer for the kernel.
    for left, base in zip(range(len(bases), 0, -1), bases, strict=True):
        lot = rules.random_is_zero(left) if left > 1 else ()
        yield rule(lot, rules.goes("endpoint-" + base))


def _external(plan: ServicePlan, context: ClassContext) -> Iterator[Rule]:
    if plan.is_external_policy_local:
        yield from short_circuit(context, pool_chain(plan.id, PoolName.CLUSTER))
        pool = PoolName.LOCAL
    else:
        yield rule(rules.mark_or(context.mark), comment="masquerade")
        pool = PoolName.CLUSTER
    if plan.has_external:
        yield rule(rules.goes(pool_chain(plan.id, pool)))
