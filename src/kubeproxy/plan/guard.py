"""Who may connect to a Service, where its annotations restrict that. Pure.

The lists hold for every frontend, beside loadBalancerSourceRanges: a client must be admitted by
both. They are about new connections; open ones go on.
"""

from __future__ import annotations

from kubeproxy.facts.address import contained_in_any
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.plan.types import Guard


def guard_of(service: ServiceFacts, node: NodeFacts) -> Guard | None:
    """What the Service asks for; None if everyone may connect."""
    policy = service.policy
    if policy is None or (policy.allow_sources is None and not policy.deny_sources):
        return None
    allow, deny = policy.allow_sources, policy.deny_sources
    if contained_in_any(node.ip, deny):
        return Guard(allow, deny, node_denied=_own_sources(service, node))
    if allow is not None and contained_in_any(node.ip, allow):
        return Guard(allow, deny, node_allowed=_own_sources(service, node))
    return Guard(allow, deny)


def _own_sources(service: ServiceFacts, node: NodeFacts) -> tuple[str, ...]:
    """What the node's own connections to this Service may have as source, besides its address."""
    addresses = (service.cluster_ip, *service.external_ips, *service.load_balancer_ips)
    own = dict.fromkeys(f"{address}/{node.family.bits}" for address in addresses)
    return (node.family.loopback_cidr, *own)


def guard_notes(service: ServiceFacts, node: NodeFacts) -> tuple[str, ...]:
    """That no client is left, which is easily overlooked in one of two families."""
    if service.policy is None or service.policy.allow_sources != ():
        return ()
    return (f"the lists of sources leave no {node.family.value} client that may connect",)


def guard_text(guard: Guard) -> str:
    """Who may connect, in words."""
    allowed = (
        [f"only from {', '.join(guard.allow) or 'nowhere'}"] if guard.allow is not None else []
    )
    denied = [f"not from {', '.join(guard.deny)}"] if guard.deny else []
    return ", ".join((*allowed, *denied))


def refusal(guard: Guard | None, source: str) -> str:
    """Why a client may not connect; empty if it may."""
    if guard is None or guard.admits(source):
        return ""
    if contained_in_any(source, guard.denied):
        return f"{source} is denied by the annotation kubeproxy/deny-sources"
    return f"{source} is not allowed by the annotation kubeproxy/allow-sources"
