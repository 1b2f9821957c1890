"""The chains that belong to one service port alone. Pure.

    KUBE-EXT   traffic from outside the cluster: whether it is masqueraded, and the pool it may use
    KUBE-FW    source ranges of a load balancer; lists of sources have chains of this name, too
    KUBE-SVC   all endpoints; KUBE-SVL only those of this node
    KUBE-SEP   one endpoint

They come in this order, which is upstream's; `describe` relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from kubeproxy.facts.address import merge_cidrs
from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.rules.context import PortContext
from kubeproxy.modes.netfilter.items import ChainGroup, GroupRules, rules
from kubeproxy.modes.netfilter.rules.matches import from_local_pods
from kubeproxy.plan.balance import slots_of
from kubeproxy.plan.types import FrontendKind, Guard, Masquerade, Pool, ServicePlan


def chains(context: PortContext) -> dict[ChainGroup, GroupRules]:
    """The service port's chains as one group, or nothing if it needs none."""
    plan, names_of = context.plan, context.chains
    texts: dict[str, str] = {}
    if plan.has_endpoints and plan.is_externally_accessible:
        texts[names_of.external] = rules(names_of.external, _external(context)).text
    if context.has_firewall:
        texts[names_of.firewall] = rules(names_of.firewall, _firewall(context)).text
    if plan.guard is not None and plan.has_endpoints:
        for target, chain in context.guard_targets.items():
            texts[chain] = rules(chain, _guard(context, plan.guard, target)).text
    chosen = names.endpoint_chains(plan.id, [endpoint.text for endpoint in plan.reachable])
    for chain, pool, is_used in (
        (names_of.cluster, plan.cluster, plan.uses_cluster_pool),
        (names_of.local, plan.local, plan.uses_local_pool),
    ):
        if is_used and pool:
            texts[chain] = rules(chain, _pool(context, chain, pool, chosen)).text
    for endpoint, (text, chain) in zip(plan.reachable, chosen.items(), strict=True):
        texts[chain] = _endpoint(context, chain, endpoint.address, text)
    return {ChainGroup("nat", names_of.common): GroupRules(texts)} if texts else {}


def _external(context: PortContext) -> Iterator[str]:
    """The EXT chain. It exists even if no frontend leads to it: upstream's quirk, kept."""
    plan, label = context.plan, context.label
    target = context.chains.cluster
    if plan.is_external_policy_local:
        yield from _short_circuit(context)
        target = context.chains.local
    else:
        yield (
            f'-m comment --comment "masquerade traffic for {label} external destinations" '
            f"-j {names.MARK_MASQ}"
        )
    if plan.has_external:
        yield f"-j {target}"


def _short_circuit(context: PortContext) -> Iterator[str]:
    """Pods of this node and the node itself reach all endpoints, whatever the policy."""
    label, chain = context.label, context.chains.cluster
    detector = context.node.detector
    if detector.is_implemented:
        yield (
            f'-m comment --comment "pod traffic for {label} external destinations" '
            f"{from_local_pods(detector)} -j {chain}"
        )
    for verb, target in (("masquerade", names.MARK_MASQ), ("route", chain)):
        yield (
            f'-m comment --comment "{verb} LOCAL traffic for {label} external destinations" '
            f"-m addrtype --src-type LOCAL -j {target}"
        )


def _firewall(context: PortContext) -> Iterator[str]:
    label = context.label
    balancers = context.plan.frontends_of(FrontendKind.LOAD_BALANCER)
    for source in (*balancers[0].source_ranges, *balancers[0].vip_sources):
        yield (
            f'-m comment --comment "{label} loadbalancer IP" -s {source} '
            f"-j {context.chains.external}"
        )
    yield (
        f'-m comment --comment "other traffic to {label} will be dropped by {names.PROXY_FIREWALL}"'
    )


def _guard(context: PortContext, guard: Guard, target: str) -> Iterator[str]:
    """Lead those who may connect to the chain; what returns is dropped in the filter table."""
    comment = f'-m comment --comment "{context.label} {{}}" '
    family = context.node.family
    for source in merge_cidrs(guard.denied, family):
        yield f"{comment.format('denied sources')}-s {source} -j RETURN"
    allowed = guard.allowed
    if allowed is None:
        yield f"{comment.format('sources that are not denied')}-j {target}"
        return
    for source in merge_cidrs(allowed, family):
        yield f"{comment.format('allowed sources')}-s {source} -j {target}"


def _pool(context: PortContext, chain: str, pool: Pool, chosen: dict[str, str]) -> Iterator[str]:
    """A SVC or SVL chain: masquerading of cluster IP traffic, affinity, then the choice."""
    if chain == context.internal_chain:
        yield from _cluster_ip_masquerade(context)
    affinity = context.plan.affinity_seconds
    texts = [endpoint.text for endpoint in pool.endpoints]
    heads = [(_endpoint_comment(context, text), chosen[text]) for text in texts]
    if affinity:
        for comment, target in heads:
            yield (
                f"{comment}-m recent --name {target} --rcheck --seconds {affinity} --reap "
                f"-j {target}"
            )
    for number, share in _shares(context.plan, pool):
        comment, target = heads[number]
        yield f"{comment}{share}-j {target}"


def _shares(plan: ServicePlan, pool: Pool) -> Iterator[tuple[int, str]]:
    """Endpoints by number, and the match for the share of each.

    Rules are tried in turn, so the share is of what the rules before have left over. With a counter
    for each rule, of n packets the first takes one, the second one of those left, and so on: all
    slots in turn.
    """
    if plan.algorithm is Algorithm.ROUND_ROBIN:
        slots = slots_of(pool, plan.algorithm, few=True)
        for left, number in zip(range(len(slots), 0, -1), slots, strict=True):
            nth = f"-m statistic --mode nth --every {left} --packet 0 "
            yield number, nth if left > 1 else ""
        return
    left = sum(pool.weights) or len(pool.endpoints)
    for number, weight in enumerate(pool.weights or repeat(1, left)):
        share = f"-m statistic --mode random --probability {weight / left:.10f} "
        yield number, share if weight < left else ""
        left -= weight


def _endpoint_comment(context: PortContext, endpoint: str) -> str:
    if context.node.is_large_cluster:
        return ""
    return f'-m comment --comment "{context.label} -> {endpoint}" '


def _cluster_ip_masquerade(context: PortContext) -> Iterator[str]:
    frontend = next(iter(context.plan.frontends_of(FrontendKind.CLUSTER_IP)), None)
    if frontend is None or not context.plan.has_internal:
        return
    if frontend.masquerade is Masquerade.NEVER:
        return
    unless = ""
    if frontend.masquerade is Masquerade.NOT_LOCAL_PODS:
        unless = f"! {from_local_pods(context.node.detector)} "
    yield (
        f'-m comment --comment "{context.label} cluster IP" {context.destination(frontend)} '
        f"{unless}-j {names.MARK_MASQ}"
    )


def _endpoint(context: PortContext, chain: str, address: str, text: str) -> str:
    """A SEP chain: masquerade an endpoint that talks to itself, then translate."""
    comment = "" if context.node.is_large_cluster else f"-m comment --comment {context.label} "
    recent = f"-m recent --name {chain} --set " if context.plan.affinity_seconds else ""
    return (
        f"-A {chain} {comment}-s {address} -j {names.MARK_MASQ}\n"
        f"-A {chain} {comment}{recent}{context.protocol} "
        f"-j DNAT --to-destination {text}\n"
    )
