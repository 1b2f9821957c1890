"""The facts and plans of every node of a flow's cluster, without any kernel.

Pure: objects go through the same decoding and planning as in the daemon. Tracers build on it, one
over the plans themselves and one per mode over rendered items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kpctl.flows.flow import ServiceText
from kpctl.flows.objects import World, service_cidr_manifest, typed_objects
from kpctl.lab.topology import POD_CIDR, Node
from kubeproxy.api import objects
from kubeproxy.api.decode import decode_service, decode_service_cidrs, decode_slice
from kubeproxy.config.flags import EXTENSION_FLAGS, Extensions
from kubeproxy.facts.address import canonical_cidrs, family_of
from kubeproxy.facts.endpoint import Endpoint, PortKey
from kubeproxy.facts.ids import Family
from kubeproxy.facts.limits import Limits
from kubeproxy.facts.node import DetectorKind, LocalDetector, NodeFacts, node_port_cidrs_of
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.facts.store import Store
from kubeproxy.modes.registry import load_mode
from kubeproxy.plan.health import checked_endpoints
from kubeproxy.plan.service import plan_service
from kubeproxy.plan.types import ServicePlan
from kubeproxy.run.startup import limits_of

_PRIMARY_BY_DEFAULT = frozenset({"nftables"})
"""Modes that by default serve node ports on the node's primary addresses only."""


def node_plans(
    services: Iterable[ServiceText], world: World, facts: NodeFacts
) -> tuple[ServicePlan, ...]:
    """The plans of one node for one family."""
    store = Store()
    for text in services:
        found, slices = typed_objects(text, world)
        for each in slices:
            decoded = decode_slice(each, facts.name)
            if decoded.family is facts.family:
                store.set_slice(decoded.facts)
        for service in found:
            known = decode_service(service, facts.family).facts
            if known is not None:
                store.set_service(known)
                failing = _failing(text, known, store.endpoints(known.name), world, facts)
                store.set_failing(known.name, failing)
    return tuple(
        plan
        for name in sorted(store.service_names())
        if (service_facts := store.service(name)) is not None
        for plan in plan_service(service_facts, store.endpoints(name), facts, store.rotation(name))
    )


def _failing(
    text: ServiceText,
    facts: ServiceFacts,
    endpoints: Mapping[PortKey, tuple[Endpoint, ...]],
    world: World,
    node: NodeFacts,
) -> dict[str, str]:
    """What checks find: endpoints on hosts that have hung up refuse."""
    silent = {world.address(host, f) for host in text.hung_up for f in world.families}
    found = checked_endpoints(facts, endpoints, node)
    return {e: "connection refused" for e, (address, _) in found.items() if address in silent}


def node_facts(
    node: Node, world: World, family: Family, *, mode: str, flags: Mapping[str, str]
) -> NodeFacts:
    """The node's facts in a proxy that was started with these flags."""
    cidrs = decode_service_cidrs(
        msgspec.convert(service_cidr_manifest(), objects.ServiceCIDR)
    ).cidrs
    addresses = (node.addresses.of(family), node.gateway.of(family), family.loopback)
    return NodeFacts(
        name=node.name,
        family=family,
        ip=node.addresses.of(family),
        zone=node.zone,
        detector=_detector(node, family, flags),
        node_port_cidrs=_node_port_cidrs(node, world, family, mode=mode, flags=flags),
        addresses=tuple(sorted(addresses)),
        service_cidrs=tuple(cidr for cidr in cidrs if family_of(cidr) is family),
        masquerade_all=flags.get("masquerade-all") == "true",
        mode=mode,
        algorithms=load_mode(mode).algorithms,
        allows_external_ips="AllowServiceExternalIPs=false" not in flags.get("feature-gates", ""),
        limits=_limits(world, flags),
    )


def _limits(world: World, flags: Mapping[str, str]) -> Limits:
    rows = {flag.name: flag for flag in EXTENSION_FLAGS}
    given = {name: expand_networks(text, world) for name, text in flags.items() if name in rows}
    return limits_of(
        Extensions({name: rows[name].kind.parse(text, None) for name, text in given.items()})
    )


def _detector(node: Node, family: Family, flags: Mapping[str, str]) -> LocalDetector:
    match flags.get("detect-local-mode", "ClusterCIDR"):
        case "BridgeInterface":
            return LocalDetector(DetectorKind.BRIDGE, flags["pod-bridge-interface"])
        case "InterfaceNamePrefix":
            prefix = flags["pod-interface-name-prefix"]
            return LocalDetector(DetectorKind.INTERFACE_PREFIX, prefix)
        case "NodeCIDR":
            return LocalDetector(DetectorKind.CIDR, node.pod_cidr(family))
    if flags.get("cluster-cidr") == "":
        return LocalDetector()
    return LocalDetector(DetectorKind.CIDR, POD_CIDR[family])


def _node_port_cidrs(
    node: Node, world: World, family: Family, *, mode: str, flags: Mapping[str, str]
) -> tuple[str, ...]:
    default = "primary" if mode in _PRIMARY_BY_DEFAULT else ""
    texts = expand_networks(flags.get("nodeport-addresses", default), world).split(",")
    if texts == ["primary"]:
        texts = [f"{node.addresses.of(f)}/{f.bits}" for f in Family]
    return node_port_cidrs_of(family, canonical_cidrs(texts))


def expand_networks(value: str, world: World) -> str:
    """A flag's value with `<nodes>`, `<pods>` written out as networks of both families."""
    for name in ("nodes", "pods"):
        value = value.replace(f"<{name}>", ",".join(world.cidr(name, f) for f in Family))
    return value
