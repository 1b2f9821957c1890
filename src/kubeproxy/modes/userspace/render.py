"""One service port as items: its listeners, its claimed ports, and the rules that divert to them.

Pure. A first rendering wants sockets only, because the rules need what binding them teaches: the
proxy port of each listener, and that the claims are held. The next rendering has it all.

There is one listener for each pool the plan uses, so that each frontend (and each kind of client,
where a Local policy treats them differently) is diverted to the endpoints it may use.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import Item, Value
from kubeproxy.modes.netfilter.items import Rules, Section, rules
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.items import Claim, Learned, Listener, PortalOptions
from kubeproxy.modes.userspace.rules.portals import Portals, host_address
from kubeproxy.plan.types import Frontend, FrontendKind, PoolName, ServicePlan


def render_items(
    plan: ServicePlan, node: NodeFacts, learned: Learned, options: PortalOptions
) -> dict[Item, Value]:
    """What this service port wants, as far as it can be said yet. SCTP cannot be carried."""
    if plan.id.protocol is Protocol.SCTP:
        return {}
    items: dict[Item, Value] = {}
    for pool in used_pools(plan):
        items[Listener(plan.id, pool)] = balance_of(plan, pool)
    for frontend in plan.frontends:
        if (claim := claim_of(frontend, plan, node)) is not None:
            items[claim] = plan.id
    return items | _portal_items(plan, node, learned, options)


def used_pools(plan: ServicePlan) -> Iterator[PoolName]:
    """Also while a pool is empty: so a proxy port stays the same when endpoints come and go."""
    if plan.uses_cluster_pool:
        yield PoolName.CLUSTER
    if plan.uses_local_pool:
        yield PoolName.LOCAL


def balance_of(plan: ServicePlan, pool: PoolName) -> Balance:
    return Balance(
        targets=tuple(map(_target, plan.pool(pool).endpoints)),
        keep=tuple(map(_target, plan.serving)),
        affinity_seconds=plan.affinity_seconds,
    )


def _target(endpoint: Endpoint) -> Target:
    return Target(endpoint.address, endpoint.port)


def claim_of(frontend: Frontend, plan: ServicePlan, node: NodeFacts) -> Claim | None:
    """The port of this node that the frontend occupies, if it is one of this node's."""
    if frontend.kind is FrontendKind.NODE_PORT:
        return Claim("", frontend.port, plan.id.protocol)
    if frontend.address in node.addresses:
        return Claim(frontend.address, frontend.port, plan.id.protocol)
    return None


def _portal_items(
    plan: ServicePlan, node: NodeFacts, learned: Learned, options: PortalOptions
) -> dict[Item, Value]:
    ports = {
        pool: port
        for pool in used_pools(plan)
        if (port := learned.ports.get(Listener(plan.id, pool))) is not None
    }
    portals = Portals(plan, node, ports, options, host_address(node))
    specs: dict[tuple[str, str], list[str]] = {}
    for frontend in plan.frontends:
        claim = claim_of(frontend, plan, node)
        if claim is None or learned.claims.get(claim) == plan.id:
            for table, chain, spec in portals.rules_of(frontend):
                specs.setdefault((table, chain), []).append(spec)
    return {
        Section(table, chain, _section_key(plan)): _without_repeats(chain, lines)
        for (table, chain), lines in specs.items()
    }


def _section_key(plan: ServicePlan) -> tuple[str, ...]:
    namespace, name, port, protocol = plan.id
    return (namespace, name, port, protocol.value)


def _without_repeats(chain: str, specs: list[str]) -> Rules:
    """Two frontends may be let through by the same rule; once is enough."""
    return rules(chain, dict.fromkeys(specs))
