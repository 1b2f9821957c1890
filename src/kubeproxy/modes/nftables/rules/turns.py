"""Services that are served in turn: a counter, and so a chain, of their own. Pure.

The kernel keeps a counter with each rule that counts. In a class chain all services of the class
would share it, and two that are used alternately would each meet every second endpoint only. So
each pool of such a service port has a chain of one rule; endpoints stay in the shared maps.

    service-…    dnat to (daddr, proto, port, next number below 3) of service-pools
    local-…      the same for the endpoints on this node, of service-local-pools
    external-…   masquerades or short-circuits first
    nodeport-…   the same by node port instead of address, with counters of their own
"""

from __future__ import annotations

from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import Chain, ChainItem, ChainKind, Item, Value
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.classes import ClassContext
from kubeproxy.modes.nftables.rules.own import (
    external_chain,
    external_rules,
    pool_chain,
    used_pools,
)
from kubeproxy.modes.nftables.rules.pieces import Draw, rule
from kubeproxy.plan.balance import slot_count
from kubeproxy.plan.types import FrontendKind, PoolName, ServicePlan

POOL_MAPS = {
    (PoolName.CLUSTER, False): names.SERVICE_POOLS,
    (PoolName.LOCAL, False): names.LOCAL_POOLS,
    (PoolName.CLUSTER, True): names.NODE_PORT_POOLS,
    (PoolName.LOCAL, True): names.NODE_PORT_LOCAL_POOLS,
}
"""The map of each pool, by address and by node port.

Unlike in classes, a pool is in the same map whichever frontend leads to it: the chain is the same.
"""


def turn_items(plan: ServicePlan, context: ClassContext) -> dict[Item, Value]:
    """The chains of a service port that is served in turn."""
    items: dict[Item, Value] = {}
    for by_node_port in (False, True):
        frontends = [
            f for f in plan.frontends if (f.kind is FrontendKind.NODE_PORT) == by_node_port
        ]
        for pool in used_pools(plan, frontends):
            count = slot_count(plan.pool(pool), plan.algorithm)
            picking = rules.pick(
                context.layout,
                count,
                POOL_MAPS[pool, by_node_port],
                by_node_port=by_node_port,
                draw=Draw.TURN,
            )
            name = pool_chain(plan.id, pool, by_node_port=by_node_port)
            items[ChainItem(name)] = Chain(ChainKind.SERVICE_POOL, (rule(picking),))
        if any(f.kind.is_external and f.accepts_anyone for f in frontends):
            listed = tuple(external_rules(plan, context, by_node_port=by_node_port))
            name = external_chain(plan.id, by_node_port=by_node_port)
            items[ChainItem(name)] = Chain(ChainKind.SERVICE_ENTRY, listed)
    return items
