"""One service port as chains and rules, the way upstream writes them. Pure.

Everything was decided by the plan; here it becomes text. Items come in upstream's order: EXT, FW,
SVC, SVL, then one SEP chain per endpoint; `layout` relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import ServicePortId
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts
from kubeproxy.modes.base import Item, Value
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.options import Settings
from kubeproxy.modes.netfilter.items import ChainGroup, GroupRules, Section, SortKey, rules
from kubeproxy.plan.types import Frontend, FrontendKind, Masquerade, ServicePlan


class _Context(Struct, frozen=True, gc=False):
    """What every rule of one service port needs at hand."""

    plan: ServicePlan
    node: NodeFacts
    settings: Settings
    label: str
    protocol: str
    """`-m tcp -p tcp`, in upstream's order."""
    chains: names.ServiceChains
    has_firewall: bool

    @property
    def load_balancer_chain(self) -> str:
        return self.chains.firewall if self.has_firewall else self.chains.external

    @property
    def internal_chain(self) -> str:
        is_local = self.plan.is_internal_policy_local
        return self.chains.local if is_local else self.chains.cluster


def render_items(plan: ServicePlan, node: NodeFacts, settings: Settings) -> dict[Item, Value]:
    """The items one service port wants."""
    protocol = plan.id.protocol.lower_name
    context = _Context(
        plan=plan,
        node=node,
        settings=settings,
        label=plan.id.label,
        protocol=f"-m {protocol} -p {protocol}",
        chains=names.service_chains(plan.id),
        has_firewall=plan.has_endpoints and any(f.source_ranges for f in plan.frontends),
    )
    items: dict[Item, Value] = {}
    _add_sections(items, context)
    _add_chains(items, context)
    return items


def section_key(port: ServicePortId) -> SortKey:
    return (port.namespace, port.name, port.port, port.protocol.value)


def _health_key(port: ServicePortId) -> SortKey:
    """The health check is TCP whatever the port is, and its rule says nothing else."""
    return (port.namespace, port.name, port.port, "TCP")


def _add_sections(items: dict[Item, Value], context: _Context) -> None:
    """The service port's rules in chains it shares with all others."""
    plan = context.plan
    key = section_key(plan.id)

    def add(table: str, chain: str, specs: Iterator[str], order: SortKey = key) -> None:
        some = rules(chain, specs)
        if some.text:
            items[Section(table, chain, order)] = some

    if not plan.has_internal:
        add("filter", names.SERVICES, _internal_refusals(context))
    if not plan.has_external:
        add("filter", names.EXTERNAL_SERVICES, _external_refusals(context))
    if context.has_firewall:
        add("filter", names.PROXY_FIREWALL, _firewall_drops(context))
    if plan.health_check_node_port:
        add("filter", names.NODE_PORTS, _health_check(context), _health_key(plan.id))
    if plan.has_endpoints:
        add("nat", names.SERVICES, _dispatch(context))
    if plan.has_endpoints and plan.node_port:
        add("nat", names.NODE_PORTS, _node_port_dispatch(context))


def _to(context: _Context, frontend: Frontend) -> str:
    return f"{context.protocol} -d {frontend.address} --dport {frontend.port}"


def _refusal(context: _Context) -> tuple[str, str]:
    """Comment and target for traffic nobody serves: no endpoints at all, or none here."""
    if not context.plan.has_endpoints:
        return f'"{context.label} has no endpoints"', "REJECT"
    return f'"{context.label} has no local endpoints"', "DROP"


def _internal_refusals(context: _Context) -> Iterator[str]:
    comment, target = _refusal(context)
    for frontend in context.plan.frontends_of(FrontendKind.CLUSTER_IP):
        yield f"-m comment --comment {comment} {_to(context, frontend)} -j {target}"


def _external_refusals(context: _Context) -> Iterator[str]:
    comment, target = _refusal(context)
    for frontend in context.plan.frontends:
        if frontend.kind is FrontendKind.NODE_PORT:
            yield (
                f"-m comment --comment {comment} -m addrtype --dst-type LOCAL "
                f"{context.protocol} --dport {frontend.port} -j {target}"
            )
        elif frontend.kind.is_external:
            yield f"-m comment --comment {comment} {_to(context, frontend)} -j {target}"


def _firewall_drops(context: _Context) -> Iterator[str]:
    comment = f'"{context.label} traffic not accepted by {context.chains.firewall}"'
    for frontend in context.plan.frontends_of(FrontendKind.LOAD_BALANCER):
        yield f"-m comment --comment {comment} {_to(context, frontend)} -j DROP"


def _health_check(context: _Context) -> Iterator[str]:
    """Once per port of the Service, although one rule would do: upstream's quirk, kept."""
    port = context.plan.health_check_node_port
    comment = f'"{context.label} health check node port"'
    yield f"-m comment --comment {comment} -m tcp -p tcp --dport {port} -j ACCEPT"


def _dispatch(context: _Context) -> Iterator[str]:
    plan = context.plan
    for frontend in plan.frontends:
        if frontend.kind is FrontendKind.CLUSTER_IP and plan.has_internal:
            yield _dispatch_rule(context, frontend, "cluster IP", context.internal_chain)
        elif frontend.kind is FrontendKind.EXTERNAL_IP:
            yield _dispatch_rule(context, frontend, "external IP", context.chains.external)
        elif frontend.kind is FrontendKind.LOAD_BALANCER:
            yield _dispatch_rule(context, frontend, "loadbalancer IP", context.load_balancer_chain)


def _dispatch_rule(context: _Context, frontend: Frontend, what: str, chain: str) -> str:
    return f'-m comment --comment "{context.label} {what}" {_to(context, frontend)} -j {chain}'


def _node_port_dispatch(context: _Context) -> Iterator[str]:
    settings = context.settings
    counted = settings.features.has_localhost_counter and settings.serves_localhost(context.node)
    head = f"-m comment --comment {context.label} {context.protocol}"
    for frontend in context.plan.frontends_of(FrontendKind.NODE_PORT):
        if counted:
            yield (
                f"{head} -d 127.0.0.0/8 --dport {frontend.port} "
                f"-m nfacct --nfacct-name {names.LOCALHOST_COUNTER} -j {context.chains.external}"
            )
        yield f"{head} --dport {frontend.port} -j {context.chains.external}"


def _add_chains(items: dict[Item, Value], context: _Context) -> None:
    """The chains that belong to the service port alone, as one group."""
    plan, names_of = context.plan, context.chains
    texts: dict[str, str] = {}
    if plan.has_endpoints and plan.is_externally_accessible:
        texts[names_of.external] = rules(names_of.external, _external(context)).text
    if context.has_firewall:
        texts[names_of.firewall] = rules(names_of.firewall, _firewall(context)).text
    chosen = names.endpoint_chains(plan.id, [endpoint.text for endpoint in plan.reachable])
    for chain, endpoints, is_used in (
        (names_of.cluster, plan.cluster.endpoints, plan.uses_cluster_pool),
        (names_of.local, plan.local.endpoints, plan.uses_local_pool),
    ):
        if is_used and endpoints:
            texts[chain] = rules(chain, _pool(context, chain, endpoints, chosen)).text
    for endpoint, (text, chain) in zip(plan.reachable, chosen.items(), strict=True):
        texts[chain] = _endpoint(context, chain, endpoint.address, text)
    if texts:
        items[ChainGroup("nat", names_of.common)] = GroupRules(texts)


def _external(context: _Context) -> Iterator[str]:
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


def _short_circuit(context: _Context) -> Iterator[str]:
    """Pods of this node and the node itself reach all endpoints, whatever the policy."""
    label, chain = context.label, context.chains.cluster
    detector = context.node.detector
    if detector.is_implemented:
        yield (
            f'-m comment --comment "pod traffic for {label} external destinations" '
            f"{_from_local(detector)} -j {chain}"
        )
    for verb, target in (("masquerade", names.MARK_MASQ), ("route", chain)):
        yield (
            f'-m comment --comment "{verb} LOCAL traffic for {label} external destinations" '
            f"-m addrtype --src-type LOCAL -j {target}"
        )


def _from_local(detector: LocalDetector) -> str:
    if detector.kind is DetectorKind.CIDR:
        return f"-s {detector.value}"
    plus = "+" if detector.kind is DetectorKind.INTERFACE_PREFIX else ""
    return f"-i {detector.value}{plus}"


def _firewall(context: _Context) -> Iterator[str]:
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


def _pool(
    context: _Context, chain: str, endpoints: Sequence[Endpoint], chosen: dict[str, str]
) -> Iterator[str]:
    """A SVC or SVL chain: masquerading of cluster IP traffic, affinity, then an even choice."""
    if chain == context.internal_chain:
        yield from _cluster_ip_masquerade(context)
    affinity = context.plan.affinity_seconds
    texts = [endpoint.text for endpoint in endpoints]
    heads = [(_endpoint_comment(context, text), chosen[text]) for text in texts]
    if affinity:
        for comment, target in heads:
            yield (
                f"{comment}-m recent --name {target} --rcheck --seconds {affinity} --reap "
                f"-j {target}"
            )
    count = len(heads)
    for number, (comment, target) in enumerate(heads):
        left = count - number
        share = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
        yield f"{comment}{share}-j {target}"


def _endpoint_comment(context: _Context, endpoint: str) -> str:
    if context.node.is_large_cluster:
        return ""
    return f'-m comment --comment "{context.label} -> {endpoint}" '


def _cluster_ip_masquerade(context: _Context) -> Iterator[str]:
    frontend = context.plan.frontends_of(FrontendKind.CLUSTER_IP)[0]
    if frontend.masquerade is Masquerade.NEVER or not context.plan.has_internal:
        return
    unless = ""
    if frontend.masquerade is Masquerade.NOT_LOCAL_PODS:
        unless = f"! {_from_local(context.node.detector)} "
    yield (
        f'-m comment --comment "{context.label} cluster IP" {_to(context, frontend)} '
        f"{unless}-j {names.MARK_MASQ}"
    )


def _endpoint(context: _Context, chain: str, address: str, text: str) -> str:
    comment = "" if context.node.is_large_cluster else f"-m comment --comment {context.label} "
    recent = f"-m recent --name {chain} --set " if context.plan.affinity_seconds else ""
    return (
        f"-A {chain} {comment}-s {address} -j {names.MARK_MASQ}\n"
        f"-A {chain} {comment}{recent}{context.protocol} "
        f"-j DNAT --to-destination {text}\n"
    )
