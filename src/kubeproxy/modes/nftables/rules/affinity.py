"""Services with ClientIP affinity: chains and sets of their own, named as upstream names them.

An endpoint has a set of the clients it served lately and a chain that refreshes the set and
rewrites the destination. The service's chain first looks the client up in every set, then chooses
as the plan's algorithm demands. Names, set types and timeouts are upstream's, so affinity survives
a restart and a change of proxy. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.endpoint import Endpoint
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
from kubeproxy.modes.nftables.rules.classes import DRAWS, ClassContext
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.rules.own import (
    external_chain,
    external_rules,
    pool_chain,
    used_pools,
)
from kubeproxy.modes.nftables.rules.pieces import Draw, rule
from kubeproxy.plan.balance import slots_of
from kubeproxy.plan.types import Pool, ServicePlan


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
    for pool in used_pools(plan, plan.frontends):
        chosen = tuple(_choose(plan, plan.pool(pool), context))
        items[ChainItem(pool_chain(plan.id, pool))] = Chain(ChainKind.SERVICE_POOL, chosen)
    if any(f.kind.is_external and f.accepts_anyone for f in plan.frontends):
        external = Chain(ChainKind.SERVICE_ENTRY, tuple(external_rules(plan, context)))
        items[ChainItem(external_chain(plan.id))] = external
    return items


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


def _choose(plan: ServicePlan, pool: Pool, context: ClassContext) -> Iterator[Rule]:
    """First the endpoint that served this client lately, then the algorithm's choice."""
    bases = [names.base_name(names.endpoint_name(plan.id, e)) for e in pool.endpoints]
    for base in bases:
        is_known = rules.source(context.layout) + rules.in_set(names.AFFINITY_SET_PREFIX + base)
        yield rule(is_known, rules.goto(names.ENDPOINT_CHAIN_PREFIX + base))
    # One rule for each slot rather than upstream's anonymous map: every anonymous set makes the
    # next one dearer for the kernel. Nor a map with a name: while its elements lead to endpoint
    # chains, upstream, which does not know the map, could not remove these chains after a swap.
    slots = slots_of(pool, plan.algorithm, few=True)
    draw = DRAWS[plan.algorithm]
    for number, slot in enumerate(slots):
        is_last = number + 1 == len(slots)
        is_drawn = () if is_last else _draws(context.layout, draw, number, len(slots))
        yield rule(is_drawn, rules.goto(names.ENDPOINT_CHAIN_PREFIX + bases[slot]))


def _draws(layout: FamilyLayout, draw: Draw, number: int, count: int) -> rules.Piece:
    """Does the choice among `count` slots fall on this one, and on none before it?

    Each rule draws again, with a falling modulus. A hash is the same for all rules.
    """
    if draw is Draw.HASH:
        return rules.drawn_is(layout, draw, count, number)
    return rules.drawn_is(layout, draw, count - number)
