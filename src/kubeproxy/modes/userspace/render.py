"""One service port as items: its listeners, its claimed ports, and the rules that divert to them.

Pure. A first rendering asks for sockets only, because the rules need what binding them teaches: the
proxy port of each listener, and that the claims are held. The next rendering is complete.

There is one listener for each pool the plan uses, so that each frontend (and each kind of client,
where a Local policy treats them differently) is diverted to the endpoints it may use.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, convert

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.netfilter.items import Rules, Section, rules
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.items import (
    Claim,
    Fragment,
    Item,
    Learned,
    Listener,
    Uncarried,
    Value,
)
from kubeproxy.modes.userspace.options import Options
from kubeproxy.modes.userspace.rules.portals import Portals
from kubeproxy.plan.types import Frontend, FrontendKind, PoolName, ServicePlan

SCTP_UNSUPPORTED = "SCTP is not supported for user space proxy"


def render(plan: ServicePlan, node: NodeFacts, options: Options, learned: Learned) -> Fragment:
    """The items this service port wants, as far as they can be known before binding."""
    if plan.id.protocol is Protocol.SCTP:
        return {Uncarried(plan.id): SCTP_UNSUPPORTED}
    items: dict[Item, Value] = {}
    for pool in used_pools(plan):
        items[Listener(plan.id, pool)] = balance_of(plan, pool)
    for frontend in plan.frontends:
        if (claim := claim_of(frontend, plan, node)) is not None:
            items[claim] = plan.id
    return items | _portal_rules(plan, node, options, learned)


def used_pools(plan: ServicePlan) -> Iterator[PoolName]:
    """The pools that have a listener, also while they are empty.

    So a proxy port, and with it the rules, stays the same when endpoints come and go.
    """
    if plan.uses_cluster_pool:
        yield PoolName.CLUSTER
    if plan.uses_local_pool:
        yield PoolName.LOCAL


def balance_of(plan: ServicePlan, pool: PoolName) -> Balance:
    chosen = plan.pool(pool)
    return Balance(
        targets=tuple(map(_target, chosen.endpoints)),
        keep=tuple(map(_target, plan.serving)),
        affinity_seconds=plan.affinity_seconds,
        algorithm=plan.algorithm,
        weights=chosen.weights,
        drain_seconds=plan.drain_seconds,
    )


def _target(endpoint: Endpoint) -> Target:
    return Target(endpoint.address, endpoint.port)


def claim_of(frontend: Frontend, plan: ServicePlan, node: NodeFacts) -> Claim | None:
    """The port of this node that the frontend occupies, or None if it is not on this node."""
    if frontend.kind is FrontendKind.NODE_PORT:
        return Claim("", frontend.port, plan.id.protocol)
    if frontend.address in node.addresses:
        return Claim(frontend.address, frontend.port, plan.id.protocol)
    return None


def assume_bound(plan: ServicePlan, node: NodeFacts) -> Learned:
    """What binding would teach, for showing what would be installed; port 0 stands for any."""
    claims = (claim_of(frontend, plan, node) for frontend in plan.frontends)
    return Learned(
        {Listener(plan.id, pool): 0 for pool in used_pools(plan)},
        {claim: plan.id for claim in claims if claim is not None},
    )


def learned_of(plan: ServicePlan, node: NodeFacts, learned: Learned) -> dict[str, object]:
    """The part of what was learned that rendering this plan depends on, as plain data."""
    ports = {pool: learned.ports.get(Listener(plan.id, pool)) for pool in used_pools(plan)}
    claims = (claim_of(frontend, plan, node) for frontend in plan.frontends)
    return {
        "ports": {pool.value: port for pool, port in ports.items() if port is not None},
        "claims": [
            list(claim) for claim in claims if claim and learned.claims.get(claim) == plan.id
        ],
    }


class _LearnedData(Struct):
    ports: dict[PoolName, int] = {}
    claims: list[Claim] = []


def assume_learned(plan: ServicePlan, node: NodeFacts, data: object) -> Learned:
    """The reverse of `learned_of`. Without data: what binding would teach."""
    if data is None:
        return assume_bound(plan, node)
    found = convert(data, type=_LearnedData)
    return Learned(
        {Listener(plan.id, pool): port for pool, port in found.ports.items()},
        dict.fromkeys(found.claims, plan.id),
    )


def _portal_rules(
    plan: ServicePlan, node: NodeFacts, options: Options, learned: Learned
) -> dict[Section, Rules]:
    """The sections of all frontends whose listeners are bound and whose claims are held."""
    ports = {
        pool: port
        for pool in used_pools(plan)
        if (port := learned.ports.get(Listener(plan.id, pool))) is not None
    }
    portals = Portals(plan, node, ports, options)
    specs: dict[tuple[str, str], list[str]] = {}
    for frontend in plan.frontends:
        claim = claim_of(frontend, plan, node)
        if claim is None or learned.claims.get(claim) == plan.id:
            for table, chain, spec in portals.rules_of(frontend):
                specs.setdefault((table, chain), []).append(spec)
    owner = plan.id
    key = (owner.namespace, owner.name, owner.port, owner.protocol.value)
    # Two frontends may be accepted by the same rule: `fromkeys` keeps the first of equal ones.
    return {
        Section(table, chain, key): rules(chain, dict.fromkeys(lines))
        for (table, chain), lines in specs.items()
    }
