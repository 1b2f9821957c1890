"""Chains that one service port has for itself, named as upstream names them. Pure.

Most services need none: class chains serve them. One with affinity has its own because of its
clients, one that is served in turn because of its counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubeproxy.facts.ids import ServicePortId
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.rules import pieces as rules
from kubeproxy.modes.nftables.rules.classes import ClassContext, short_circuit
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.rules.pieces import rule
from kubeproxy.plan.types import Frontend, PoolName, ServicePlan, Verdict

_POOL_PREFIXES = {
    PoolName.CLUSTER: names.SERVICE_CHAIN_PREFIX,
    PoolName.LOCAL: names.LOCAL_CHAIN_PREFIX,
}


def pool_chain(port: ServicePortId, pool: PoolName, *, by_node_port: bool = False) -> str:
    """The chain that picks among a pool's endpoints."""
    return _own(_POOL_PREFIXES[pool], port, by_node_port)


def external_chain(port: ServicePortId, *, by_node_port: bool = False) -> str:
    """The chain for traffic from outside."""
    return _own(names.EXTERNAL_CHAIN_PREFIX, port, by_node_port)


def _own(prefix: str, port: ServicePortId, by_node_port: bool) -> str:
    place = names.NODE_PORT_PREFIX if by_node_port else ""
    return place + prefix + names.base_name(names.service_port_name(port))


def used_pools(plan: ServicePlan, frontends: Iterable[Frontend]) -> list[PoolName]:
    """Pools to which some of these frontends send traffic."""
    used: set[PoolName] = set()
    for frontend in frontends:
        if frontend.verdict is Verdict.FORWARD:
            used.add(frontend.pool)
        if frontend.has_short_circuit:
            used.add(PoolName.CLUSTER)
    return [name for name in PoolName if name in used and plan.pool(name)]


def external_rules(
    plan: ServicePlan, context: ClassContext, *, by_node_port: bool = False
) -> Iterator[Rule]:
    """What the chain for traffic from outside does before it goes to a pool's chain."""
    if plan.is_external_policy_local:
        yield from short_circuit(
            context, pool_chain(plan.id, PoolName.CLUSTER, by_node_port=by_node_port)
        )
        pool = PoolName.LOCAL
    else:
        yield rule(rules.mark_or(context.mark), comment="masquerade")
        pool = PoolName.CLUSTER
    if plan.has_external:
        yield rule(rules.goto(pool_chain(plan.id, pool, by_node_port=by_node_port)))
