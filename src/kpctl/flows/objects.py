"""From a flow's names to API objects and addresses, for the families of a variant.

Pure. A name of a host stands for that host's address, `vip-3` for the third virtual address, a
Service for its cluster IP, `node-a-bridge` for a node's address towards its pods. Every flow of a
corpus gets cluster IPs of its own (`block`), so that connections tracked for one flow do not affect
the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from kpctl.flows.flow import ServiceText
from kpctl.flows.text import EndpointText, Packet, PortText
from kpctl.lab.topology import (
    NODE_CIDR,
    POD_CIDR,
    SERVICE_CIDR,
    VIRTUAL_CIDR,
    Node,
    Topology,
    nth_address,
)
from kubeproxy.api.annotations import format_sources, format_weights
from kubeproxy.api.objects import (
    ALGORITHM_ANNOTATION,
    ALLOW_SOURCES_ANNOTATION,
    DENY_SOURCES_ANNOTATION,
    HEALTH_CHECK_ANNOTATION,
    WEIGHTS_ANNOTATION,
    EndpointSlice,
    Service,
)
from kubeproxy.api.short_form import ShortProblem, parse_services
from kubeproxy.api.short_objects import service_objects
from kubeproxy.errors import ConfigError
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Family, Protocol

LOCALHOST = "localhost"
NOWHERE = "unallocated"
_NETWORKS = {"nodes": NODE_CIDR, "pods": POD_CIDR}
_BRIDGE_SUFFIX = "-bridge"
ANY_PORT = "any"
_BLOCK = 256
_FIRST = 10

Manifest: TypeAlias = Mapping[str, object]


class Destination(msgspec.Struct, frozen=True):
    """Where a packet of one family really goes."""

    address: str
    port: int
    protocol: Protocol


class World:
    """Names of one flow and their addresses. Services get their numbers in the order of use."""

    def __init__(
        self, topology: Topology, *, block: int, families: Sequence[Family], namespace: str = ""
    ) -> None:
        self.topology = topology
        self.namespace = namespace or f"flow-{block}"
        self.families = tuple(families)
        self._block = block
        self._numbers: dict[str, int] = {}

    def cluster_ip(self, service: str, family: Family) -> str:
        number = self._numbers.setdefault(service, _FIRST + len(self._numbers))
        return nth_address(SERVICE_CIDR, self._block * _BLOCK + number).of(family)

    def address(self, name: str, family: Family) -> str:
        """The address a host's or virtual address' name stands for."""
        if name.startswith("vip-") and name[4:].isdigit():
            return nth_address(VIRTUAL_CIDR, int(name[4:])).of(family)
        if name == LOCALHOST:
            return family.loopback
        if name == NOWHERE:
            return nth_address(SERVICE_CIDR, self._block * _BLOCK + 5).of(family)
        if name.endswith(_BRIDGE_SUFFIX):
            return self.topology.node(name.removesuffix(_BRIDGE_SUFFIX)).gateway.of(family)
        return self.topology.host(name).addresses.of(family)

    def cidr(self, name: str, family: Family) -> str:
        """A network: `nodes`, `pods`, or one host alone."""
        if name in _NETWORKS:
            return _NETWORKS[name][family]
        return f"{self.address(name, family)}/{family.bits}"

    def destinations(
        self, packet: Packet, services: Mapping[str, ServiceText], family: Family
    ) -> tuple[Destination, ...]:
        """Where this packet goes, given the current Services. Several places for port `any`."""
        service = services.get(packet.place)
        if service is None:
            protocol = packet.protocol or Protocol.TCP
            address = self.address(packet.place, family)
            return (Destination(address, _number(packet), protocol),)
        address = self.cluster_ip(service.name, family)
        if packet.port == ANY_PORT:
            return tuple(Destination(address, p.port, p.protocol) for p in service.ports)
        port = next((p for p in service.ports if p.name == packet.port), None)
        if port is not None:
            return (Destination(address, port.port, packet.protocol or port.protocol),)
        return (Destination(address, _number(packet), packet.protocol or Protocol.TCP),)


def _number(packet: Packet) -> int:
    if not packet.port.isdigit():
        raise ConfigError(f"{packet.text!r}: {packet.place!r} has no port named {packet.port!r}")
    return int(packet.port)


def service_manifest(service: ServiceText, world: World) -> Manifest:
    """The Service object."""
    families = world.families
    cluster_ips = [world.cluster_ip(service.name, family) for family in families]
    spec: dict[str, object] = {
        "type": service.type,
        "clusterIP": cluster_ips[0],
        "clusterIPs": cluster_ips,
        "ipFamilies": [family.value for family in families],
        "ipFamilyPolicy": "RequireDualStack" if len(families) > 1 else "SingleStack",
        "ports": [_service_port(port) for port in service.ports],
        "externalIPs": [world.address(n, f) for n in service.external_ips for f in families],
        "loadBalancerSourceRanges": [
            world.cidr(n, f) for n in service.source_ranges for f in families
        ],
    }
    spec |= _policies(service)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": world.namespace,
            "name": service.name,
            **_annotations(_asked(service, world)),
        },
        "spec": {key: value for key, value in spec.items() if value != []},
        "status": {"loadBalancer": {"ingress": list(_ingress(service, world))}},
    }


def short_document(services: Iterable[ServiceText], world: World) -> Manifest:
    """These Services in the short form: they listen on their external IPs."""
    return {"services": {service.name: _short(service, world) for service in services}}


def _short(service: ServiceText, world: World) -> Manifest:
    check = service.annotations.get(HEALTH_CHECK_ANNOTATION, "")
    options = {"algorithm": service.algorithm, "check": check}
    return {
        "listen": [
            f"{join_host_port(world.address(name, f), port.port)}/{port.protocol.value.lower()}"
            for port in service.ports
            for name in service.external_ips
            for f in world.families
        ],
        "to": [
            f"{join_host_port(world.address(e.host, f), target)} weight {e.weight}"
            for target in dict.fromkeys(port.target for port in service.ports)
            for e in service.endpoints
            for f in world.families
        ],
    } | {key: value for key, value in options.items() if value}


def typed_objects(
    service: ServiceText, world: World
) -> tuple[tuple[Service, ...], tuple[EndpointSlice, ...]]:
    """What a proxy gets of a Service, whichever form it is written in. Raises ConfigError."""
    if not service.is_short:
        found = msgspec.convert(service_manifest(service, world), Service)
        return (found,), tuple(
            msgspec.convert(each, EndpointSlice) for each in slice_manifests(service, world)
        )
    (parsed,) = parse_services(short_document([service], world))
    if isinstance(parsed, ShortProblem):
        raise ConfigError(f"service {service.name!r}: {parsed}")
    expanded = service_objects(parsed, {}).values()
    return (
        tuple(each for each in expanded if isinstance(each, Service)),
        tuple(each for each in expanded if isinstance(each, EndpointSlice)),
    )


def _service_port(port: PortText) -> Manifest:
    entry: dict[str, object] = {"port": port.port, "protocol": port.protocol.value}
    entry |= {"name": port.name} if port.name else {}
    entry |= {"nodePort": port.node_port} if port.node_port else {}
    return {**entry, "targetPort": port.target}


def _policies(service: ServiceText) -> dict[str, object]:
    fields: dict[str, object] = {}
    if service.external_policy:
        fields["externalTrafficPolicy"] = service.external_policy
    if service.internal_policy:
        fields["internalTrafficPolicy"] = service.internal_policy
    if service.health_check_node_port:
        fields["healthCheckNodePort"] = service.health_check_node_port
    if service.affinity_seconds:
        fields["sessionAffinity"] = "ClientIP"
        timeout = {"timeoutSeconds": service.affinity_seconds}
        fields["sessionAffinityConfig"] = {"clientIP": timeout}
    return fields


def _ingress(service: ServiceText, world: World) -> Iterator[Manifest]:
    for names, mode in ((service.load_balancer, "VIP"), (service.proxied_load_balancer, "Proxy")):
        for name in names:
            for family in world.families:
                yield {"ip": world.address(name, family), "ipMode": mode}


def slice_manifests(service: ServiceText, world: World) -> Iterator[Manifest]:
    """The EndpointSlices: one for each family and each set of target ports."""
    groups: dict[tuple[tuple[str, int], ...], list[EndpointText]] = {}
    for endpoint in service.endpoints:
        groups.setdefault(endpoint.targets, []).append(endpoint)
    for family in world.families:
        for number, (targets, endpoints) in enumerate(groups.items()):
            yield {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": world.namespace,
                    "name": f"{service.name}-{family.value.lower()}-{number}",
                    "labels": {"kubernetes.io/service-name": service.name},
                    **_annotations({WEIGHTS_ANNOTATION: _weights(endpoints, world, family)}),
                },
                "addressType": family.value,
                "ports": [_slice_port(port, dict(targets)) for port in service.ports],
                "endpoints": [_endpoint(e, world, family) for e in endpoints],
            }


def _weights(endpoints: Sequence[EndpointText], world: World, family: Family) -> str:
    weights = {world.address(e.host, family): e.weight for e in endpoints if e.weight != 1}
    return format_weights(weights)


def _asked(service: ServiceText, world: World) -> Manifest:
    """What the Service's annotations ask for; an empty one asks for nothing."""
    return {
        **service.annotations,
        ALGORITHM_ANNOTATION: service.algorithm,
        ALLOW_SOURCES_ANNOTATION: _sources(service.allow_sources, world),
        DENY_SOURCES_ANNOTATION: _sources(service.deny_sources, world),
    }


def _sources(names: Iterable[str], world: World) -> str:
    return format_sources([world.cidr(name, f) for name in names for f in world.families])


def _annotations(asked: Manifest) -> Manifest:
    found = {name: value for name, value in asked.items() if value}
    return {"annotations": found} if found else {}


def _slice_port(port: PortText, targets: Mapping[str, int]) -> Manifest:
    number = targets.get(port.name, port.target)
    return {"name": port.name, "port": number, "protocol": port.protocol.value}


def _endpoint(endpoint: EndpointText, world: World, family: Family) -> Manifest:
    entry: dict[str, object] = {
        "addresses": [world.address(endpoint.host, family)],
        "nodeName": world.topology.entry_node(endpoint.host).name,
        "conditions": {
            "ready": endpoint.is_ready,
            "serving": endpoint.is_serving,
            "terminating": endpoint.is_terminating,
        },
    }
    hints = {
        key: [{"name": name} for name in names]
        for key, names in (("forZones", endpoint.zones), ("forNodes", endpoint.nodes))
        if names
    }
    return {**entry, **({"hints": hints} if hints else {})}


def node_manifest(node: Node) -> Manifest:
    """The Node object of a node of the lab."""
    labels = {"topology.kubernetes.io/zone": node.zone} if node.zone else {}
    addresses = (node.addresses.ipv4, node.addresses.ipv6)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {
            "podCIDR": node.pod_cidr(Family.IPV4),
            "podCIDRs": [node.pod_cidr(family) for family in Family],
        },
        "status": {"addresses": [{"type": "InternalIP", "address": a} for a in addresses]},
    }


def service_cidr_manifest() -> Manifest:
    """The ServiceCIDR object: which addresses are for Services, allocated or not."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": [SERVICE_CIDR[family] for family in Family]},
    }


def generation_manifest(number: int) -> Manifest:
    """A Service that differs with every number, in both families.

    It is written with every change, so that every proxy has something to sync in every family, and
    one that has synced afterwards has the change.
    """
    cluster_ips = [nth_address(SERVICE_CIDR, 2).of(family) for family in Family]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "lab", "name": "generation"},
        "spec": {
            "clusterIP": cluster_ips[0],
            "clusterIPs": cluster_ips,
            "ipFamilies": [family.value for family in Family],
            "ports": [{"port": 1 + number % 65535, "protocol": "TCP"}],
        },
    }
