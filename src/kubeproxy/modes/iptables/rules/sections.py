"""A service port's rules in the chains that it shares with all others. Pure.

Rules and their order are upstream's. Each has a comment that begins with the name of the service
port, which is how the rule is recognised after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.base import REFUSED_BY_ANNOTATION
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.rules.context import PortContext
from kubeproxy.modes.netfilter.items import Rules, Section, SortKey, rules
from kubeproxy.plan.types import Frontend, FrontendKind

_Place: TypeAlias = tuple[str, str, SortKey, Iterable[str]]
"""Table, chain, key of the section, and what stands behind `-A CHAIN `."""


def sections(context: PortContext) -> dict[Section, Rules]:
    """The service port's sections; it has none in a chain where it has no rule."""
    found: dict[Section, Rules] = {}
    for table, chain, key, specs in _places(context):
        some = rules(chain, specs)
        if some.text:
            found[Section(table, chain, key)] = some
    return found


def _places(context: PortContext) -> Iterator[_Place]:
    plan = context.plan
    key = _key(plan.id, plan.id.protocol)
    if not plan.has_internal:
        yield "filter", names.SERVICES, key, _internal_refusals(context)
    if not plan.has_external:
        yield "filter", names.EXTERNAL_SERVICES, key, _external_refusals(context)
    if context.has_firewall or plan.guard is not None:
        yield "filter", names.PROXY_FIREWALL, key, _source_drops(context)
    if plan.health_check_node_port:
        # The health check is TCP whatever the port is, and its rule names no other protocol.
        health_key = _key(plan.id, Protocol.TCP)
        yield "filter", names.NODE_PORTS, health_key, _health_check(context)
    if plan.has_endpoints:
        yield "nat", names.SERVICES, key, _dispatch(context)
    if plan.has_endpoints and plan.node_port:
        yield "nat", names.NODE_PORTS, key, _node_port_dispatch(context)


def _key(port: ServicePortId, protocol: Protocol) -> SortKey:
    return (port.namespace, port.name, port.port, protocol.value)


def _refusal(context: PortContext) -> tuple[str, str]:
    """Comment and target for traffic that is not served: no endpoints at all, or none here."""
    if not context.plan.has_endpoints:
        return f'"{context.label} has no endpoints"', "REJECT"
    return f'"{context.label} has no local endpoints"', "DROP"


def _internal_refusals(context: PortContext) -> Iterator[str]:
    comment, target = _refusal(context)
    for frontend in context.plan.frontends_of(FrontendKind.CLUSTER_IP):
        yield f"-m comment --comment {comment} {context.destination(frontend)} -j {target}"


def _external_refusals(context: PortContext) -> Iterator[str]:
    comment, target = _refusal(context)
    for frontend in context.plan.frontends:
        if frontend.kind is FrontendKind.NODE_PORT:
            yield (
                f"-m comment --comment {comment} -m addrtype --dst-type LOCAL "
                f"{context.protocol} --dport {frontend.port} -j {target}"
            )
        elif frontend.kind.is_external:
            yield f"-m comment --comment {comment} {context.destination(frontend)} -j {target}"


def _source_drops(context: PortContext) -> Iterator[str]:
    if context.has_firewall:
        yield from _firewall_drops(context)
    if context.plan.guard is not None and context.plan.has_endpoints:
        yield from _guard_drops(context)


def _firewall_drops(context: PortContext) -> Iterator[str]:
    comment = f'"{context.label} traffic not accepted by {context.chains.firewall}"'
    for frontend in context.plan.frontends_of(FrontendKind.LOAD_BALANCER):
        yield f"-m comment --comment {comment} {context.destination(frontend)} -j DROP"


def _guard_drops(context: PortContext) -> Iterator[str]:
    """Drop what no list of sources let through to a translation.

    A translated packet may have the same destination, where an endpoint on the host network has the
    address and port of a frontend.
    """
    comment = f'-m comment --comment "{context.label} {REFUSED_BY_ANNOTATION}"'
    untranslated = "-m conntrack ! --ctstate DNAT"
    for frontend in context.plan.frontends:
        if frontend.kind is not FrontendKind.NODE_PORT:
            if frontend.accepts_anyone:
                yield f"{comment} {context.destination(frontend)} {untranslated} -j DROP"
            continue
        head = f"{comment} {context.protocol} --dport {frontend.port}"
        if context.node.node_ports_match_all:
            yield f"{head} -m addrtype --dst-type LOCAL {untranslated} -j DROP"
        else:
            for address in context.node.node_port_addresses:
                yield f"{head} -d {address} {untranslated} -j DROP"


def _health_check(context: PortContext) -> Iterator[str]:
    """Once per port of the Service, although one rule would do: upstream's quirk, kept."""
    port = context.plan.health_check_node_port
    comment = f'"{context.label} health check node port"'
    yield f"-m comment --comment {comment} -m tcp -p tcp --dport {port} -j ACCEPT"


def _dispatch(context: PortContext) -> Iterator[str]:
    plan = context.plan
    for frontend in plan.frontends:
        if frontend.kind is FrontendKind.CLUSTER_IP and plan.has_internal:
            yield _dispatch_rule(context, frontend, "cluster IP", context.internal_chain)
        elif frontend.kind is FrontendKind.EXTERNAL_IP:
            yield _dispatch_rule(context, frontend, "external IP", context.chains.external)
        elif frontend.kind is FrontendKind.LOAD_BALANCER:
            yield _dispatch_rule(context, frontend, "loadbalancer IP", context.load_balancer_chain)


def _dispatch_rule(context: PortContext, frontend: Frontend, what: str, chain: str) -> str:
    comment = f'"{context.label} {what}"'
    chain = context.guarded(chain)
    return f"-m comment --comment {comment} {context.destination(frontend)} -j {chain}"


def _node_port_dispatch(context: PortContext) -> Iterator[str]:
    options = context.options
    counted = options.features.has_localhost_counter and options.serves_localhost(context.node)
    head = f"-m comment --comment {context.label} {context.protocol}"
    target = context.guarded(context.chains.external)
    for frontend in context.plan.frontends_of(FrontendKind.NODE_PORT):
        if counted:
            yield (
                f"{head} -d {context.node.family.loopback_cidr} --dport {frontend.port} "
                f"-m nfacct --nfacct-name {names.LOCALHOST_COUNTER} -j {target}"
            )
        yield f"{head} --dport {frontend.port} -j {target}"
