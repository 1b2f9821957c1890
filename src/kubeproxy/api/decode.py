"""API objects → facts: the one place where spelling is settled and a Service is split by family.

Pure. An object that cannot be used at all raises `ObjectError`. A part that cannot be used is
left out and named in the list of problems that is returned with the facts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache

from msgspec import UNSET, Struct

from kubeproxy.api import objects
from kubeproxy.api.policy import decode_policy, decode_weights
from kubeproxy.errors import ObjectError
from kubeproxy.facts.address import family_of, is_zero_cidr, parse_cidr, parse_ip
from kubeproxy.facts.endpoint import NO_HINTS, Endpoint, PortKey, SliceFacts
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.service import DEFAULT_AFFINITY_SECONDS, PortFacts, ServiceFacts
from kubeproxy.go.quoting import quote

LONGEST_NAME = 253
"""The API's limit for a name. Labels and chain comments are made from names."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""A little more than any API server accepts as the name of a Service, a namespace or a slice. Names
end up in rule comments, in names of sets, in labels and in logs, and are read back from some: one
with a colon would be taken for another one with a port."""

_UNSPECIFIED = frozenset(family.wildcard for family in Family)
_PROTOCOLS = {protocol.value: protocol for protocol in Protocol}
_MOST_SHARED_PORTS = 4
_EXTERNALLY_ACCESSIBLE_TYPES = frozenset({"LoadBalancer", "NodePort"})


class DecodedService(Struct, frozen=True):
    """A Service in one family. `facts` is None if it has nothing for the family."""

    facts: ServiceFacts | None
    problems: tuple[str, ...] = ()


class DecodedSlice(Struct, frozen=True):
    """A slice, its family, and the time of the change that its controller noted."""

    family: Family
    facts: SliceFacts
    trigger_time: float | None = None
    problems: tuple[str, ...] = ()


class DecodedNetworks(Struct, frozen=True):
    """The networks of a ServiceCIDR in both families."""

    cidrs: tuple[str, ...]
    problems: tuple[str, ...] = ()


def is_selected_service(service: objects.Service) -> bool:
    """Would the API server's selectors pass it: not headless, not another proxy's?"""
    labels = service.metadata.labels
    foreign = labels is not None and labels.proxy_name is not UNSET
    return not foreign and service.spec.cluster_ip != "None"


def is_selected_slice(endpoint_slice: objects.EndpointSlice) -> bool:
    """Would the API server's selectors pass it: not of a headless Service?"""
    labels = endpoint_slice.metadata.labels
    return labels is None or labels.headless is UNSET


def service_name(service: objects.Service) -> ServiceName:
    """Return the Service's name. Raises `ObjectError` if it is not a valid name."""
    return ServiceName(
        _namespace(service.metadata.namespace),
        _checked_name("metadata.name", service.metadata.name),
    )


def _checked_name(path: str, text: str) -> str:
    if not text:
        raise ObjectError(f"{path} is empty")
    if len(text) > LONGEST_NAME:
        raise ObjectError(f"{path} has {len(text)} characters, the limit is {LONGEST_NAME}")
    if not _NAME.fullmatch(text):
        raise ObjectError(f"{path} {text!r} is not a valid object name")
    return text


def _namespace(text: str) -> str:
    """Namespaces repeat for every object in them: keep one copy."""
    return sys.intern(_checked_name("metadata.namespace", text))


def _short(text: str | None) -> str:
    """Quote for a message, cut short: an object may hold megabytes, a log line should not."""
    return repr(text[:80] if text else text)


def decode_service(
    service: objects.Service, family: Family, name: ServiceName | None = None
) -> DecodedService:
    """Decode a Service for one family. Raises `ObjectError` if it cannot be used at all.

    `name` is its `service_name`, if that is known.
    """
    name = name or service_name(service)
    spec = service.spec
    cluster_ip = _cluster_ip(spec, family) if _has_cluster_ip(spec) else None
    if cluster_ip is None and spec.type != objects.LISTEN_TYPE:
        return DecodedService(None)
    problems: list[str] = []
    ignored: list[str] = []
    wrong: list[str] = []
    is_external_local = spec.external_traffic_policy == "Local" and _is_accessible_by_type(spec)
    facts = ServiceFacts(
        name=name,
        cluster_ip=cluster_ip or "",
        ports=_shared_ports(tuple(_service_ports(spec.ports or (), problems))),
        external_ips=tuple(_addresses("spec.externalIPs", spec.external_ips, family, problems)),
        load_balancer_ips=tuple(_load_balancer_ips(service.status, family, problems, ignored)),
        source_ranges=_source_ranges(spec.load_balancer_source_ranges, family, problems),
        affinity_seconds=_affinity_seconds(spec, problems),
        is_external_policy_local=is_external_local,
        is_internal_policy_local=spec.internal_traffic_policy == "Local",
        health_check_node_port=_health_check_port(spec, is_external_local, problems),
        policy=decode_policy(service.metadata.annotations, family, wrong),
        ignored=(*ignored, *wrong),
    )
    if not (facts.cluster_ip or facts.external_ips):
        return DecodedService(None)  # of the short form, and all its addresses are of the other
    return DecodedService(facts, (*problems, *wrong))


def _has_cluster_ip(spec: objects.ServiceSpec) -> bool:
    is_without = spec.type in ("ExternalName", objects.LISTEN_TYPE)
    return bool(spec.cluster_ip) and spec.cluster_ip != "None" and not is_without


def _cluster_ip(spec: objects.ServiceSpec, family: Family) -> str | None:
    """Return the cluster IP of this family. Objects of old API servers only have `clusterIP`."""
    if not spec.ip_families:
        return _address_of_family("spec.clusterIP", spec.cluster_ip or "", family)
    for index, (name, text) in enumerate(
        zip(spec.ip_families, spec.cluster_ips or (), strict=False)
    ):
        if name == family.value:
            address = _address_of_family(f"spec.clusterIPs[{index}]", text, family)
            if address is None:
                raise ObjectError(f"spec.clusterIPs[{index}] {text!r} is not an {name} address")
            return address
    return None


def _address_of_family(path: str, text: str, family: Family) -> str | None:
    parsed = parse_ip(text)
    if parsed is None:
        raise ObjectError(f"{path} {_short(text)} is not an IP address")
    if parsed[1] in _UNSPECIFIED:
        raise ObjectError(f"{path} {text!r} is the unspecified address")
    return parsed[1] if parsed[0] is family else None


def _is_accessible_by_type(spec: objects.ServiceSpec) -> bool:
    """Is it reachable from outside, as upstream understands the traffic policy?

    The type and the unparsed external IPs of any family decide.
    """
    kind = spec.type or "ClusterIP"
    return kind in _EXTERNALLY_ACCESSIBLE_TYPES or (kind == "ClusterIP" and bool(spec.external_ips))


def _service_ports(
    ports: Iterable[objects.ServicePort], problems: list[str]
) -> Iterator[PortFacts]:
    seen: set[PortKey] = set()
    for index, port in enumerate(ports):
        problem = _port_problem(port, seen)
        if problem:
            problems.append(f"spec.ports[{index}] is left out: {problem}")
            continue
        protocol = _PROTOCOLS[port.protocol or "TCP"]
        seen.add(PortKey(port.name or "", protocol))
        yield PortFacts(port.name or "", protocol, port.port, port.node_port or 0)


def _shared_ports(ports: tuple[PortFacts, ...]) -> tuple[PortFacts, ...]:
    """Few ports have many Services: keep one copy of each."""
    # A Service may have thousands. The cache outlives it, so it takes none of these.
    return _one_copy(ports) if len(ports) <= _MOST_SHARED_PORTS else ports


@lru_cache(maxsize=1024)
def _one_copy(ports: tuple[PortFacts, ...]) -> tuple[PortFacts, ...]:
    return ports


def _port_problem(port: objects.ServicePort, seen: set[PortKey]) -> str | None:
    protocol = _PROTOCOLS.get(port.protocol or "TCP")
    if protocol is None:
        return f"protocol {_short(port.protocol)} is not TCP, UDP or SCTP"
    if not 0 < port.port < 65536:
        return f"port {port.port} is not within 1 to 65535"
    if not 0 <= (port.node_port or 0) < 65536:
        return f"nodePort {port.node_port} is not within 1 to 65535"
    if problem := _port_name_problem(port.name or ""):
        return problem
    if PortKey(port.name or "", protocol) in seen:
        return f"another port has the name {port.name or ''!r} and protocol {protocol.value}"
    return None


def _port_name_problem(name: str) -> str | None:
    if len(name) > LONGEST_NAME:
        return f"the name has {len(name)} characters"
    if name and not (name.isascii() and name.replace("-", "").isalnum()):
        return f"name {name!r} is not a valid port name"
    return None


def _addresses(
    path: str, texts: Iterable[str] | None, family: Family, problems: list[str]
) -> Iterator[str]:
    """Yield the addresses of this family, in order, each once."""
    seen: set[str] = set()
    for text in texts or ():
        parsed = parse_ip(text)
        if parsed is None or parsed[1] in _UNSPECIFIED:
            if text.strip():
                problems.append(f"{path}: {_short(text)} is not a usable IP address")
        elif parsed[0] is family and parsed[1] not in seen:
            seen.add(parsed[1])
            yield parsed[1]


def _load_balancer_ips(
    status: objects.ServiceStatus | None,
    family: Family,
    problems: list[str],
    ignored: list[str],
) -> Iterator[str]:
    ingress = (status and status.load_balancer and status.load_balancer.ingress) or ()
    usable: list[str] = []
    for entry in ingress:
        if entry.ip and entry.ip_mode not in (None, "VIP"):
            ignored.append(
                f"load balancer IP {_spelled(entry.ip)} is not used:"
                f" its ipMode is {_spelled(entry.ip_mode or '')}"
            )
        elif entry.ip:
            usable.append(entry.ip)
    return _addresses("status.loadBalancer.ingress", usable, family, problems)


def _source_ranges(
    texts: Iterable[str] | None, family: Family, problems: list[str]
) -> tuple[str, ...]:
    """Return the ranges of this family, or none if one of them contains every address."""
    ranges: list[str] = []
    for text in texts or ():
        parsed = parse_cidr(text.strip())
        if parsed is None:
            if text.strip():
                problems.append(f"spec.loadBalancerSourceRanges: {_short(text)} is not a CIDR")
        elif parsed[0] is family:
            ranges.append(parsed[1])
    return () if any(is_zero_cidr(cidr) for cidr in ranges) else tuple(ranges)


def _affinity_seconds(spec: objects.ServiceSpec, problems: list[str]) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    config = spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config and config.client_ip else None
    if seconds is not None and not 0 < seconds <= 86400:
        problems.append(f"sessionAffinity timeoutSeconds {seconds} is not within 1 to 86400")
        return DEFAULT_AFFINITY_SECONDS
    return seconds or DEFAULT_AFFINITY_SECONDS


def _health_check_port(
    spec: objects.ServiceSpec, is_external_local: bool, problems: list[str]
) -> int:
    if spec.type != "LoadBalancer" or not is_external_local:
        return 0
    port = spec.health_check_node_port or 0
    if not 0 < port < 65536:
        problems.append("Service has no healthcheck nodeport")
        return 0
    return port


def decode_slice(endpoint_slice: objects.EndpointSlice, node_name: str) -> DecodedSlice:
    """Decode a slice as this node sees it, with its endpoints spread over its ports.

    Raises `ObjectError` if it cannot be used at all.
    """
    meta = endpoint_slice.metadata
    name = _checked_name("metadata.name", meta.name)
    service = (meta.labels and meta.labels.service_name) or ""
    if not service:
        raise ObjectError(f"label {objects.SERVICE_NAME_LABEL} is missing: no Service to serve")
    owner = ServiceName(
        _namespace(meta.namespace),
        _checked_name(f"label {objects.SERVICE_NAME_LABEL}", service),
    )
    family = _slice_family(endpoint_slice.address_type)
    problems: list[str] = []
    wrong: list[str] = []
    ports = tuple(_slice_ports(endpoint_slice.ports or (), problems))
    found = sorted(
        _with_address(endpoint_slice.endpoints or (), family, problems), key=_ORDERS[family]
    )
    spread = tuple(
        (key, tuple([_endpoint(e, address, port, node_name) for e, address in found]))
        for key, port in ports
    )
    return DecodedSlice(
        family=family,
        facts=SliceFacts(
            service=owner,
            name=name,
            endpoints=spread,
            weights=decode_weights(meta.annotations, found, wrong),
            ignored=tuple(f"EndpointSlice {name}: {problem}" for problem in wrong),
        ),
        trigger_time=_trigger_time(meta.annotations, problems),
        problems=(*problems, *wrong),
    )


def _slice_family(address_type: str) -> Family:
    try:
        return Family(address_type)
    except ValueError:
        raise ObjectError(f"addressType {_short(address_type)} is not supported") from None


def _slice_ports(
    ports: Iterable[objects.SlicePort], problems: list[str]
) -> Iterator[tuple[PortKey, int]]:
    for index, port in enumerate(ports):
        protocol = _PROTOCOLS.get(port.protocol or "TCP")
        if port.name is None or protocol is None or not 0 < (port.port or 0) < 65536:
            problems.append(
                f"ports[{index}] is left out: it needs a name, a number within 1 to 65535 and a"
                f" known protocol, has {_short(port.name)}, {port.port}, {_short(port.protocol)}"
            )
        else:
            yield _slice_port(port.name, protocol, port.port or 0)


@lru_cache(maxsize=1024)
def _slice_port(name: str, protocol: Protocol, number: int) -> tuple[PortKey, int]:
    """Few ports have many slices: keep one copy of each."""
    return PortKey(name, protocol), number


# As `merge_slices` sorts, whatever the port: it can then keep the very tuple.
_ORDERS: Mapping[Family, Callable[[tuple[objects.SliceEndpoint, str]], str]] = {
    Family.IPV4: lambda found: f"{found[1]}:",
    Family.IPV6: lambda found: f"{found[1]}]:",
}


def _with_address(
    endpoints: Iterable[objects.SliceEndpoint], family: Family, problems: list[str]
) -> Iterator[tuple[objects.SliceEndpoint, str]]:
    """Yield the endpoints whose first address can be used, with its canonical text."""
    for index, endpoint in enumerate(endpoints):
        address = endpoint.addresses[0] if endpoint.addresses else ""
        parsed = parse_ip(address)
        if parsed is None or parsed[0] is not family or parsed[1] in _UNSPECIFIED:
            problems.append(
                f"endpoints[{index}] is left out: {_short(address)} is no {family.value} address"
            )
        else:
            yield endpoint, parsed[1]


_NO_CONDITIONS = objects.EndpointConditions()


def _endpoint(endpoint: objects.SliceEndpoint, address: str, port: int, node_name: str) -> Endpoint:
    conditions = endpoint.conditions or _NO_CONDITIONS
    hints = endpoint.hints
    # Node names repeat for every endpoint of a node: keep one copy.
    where = _spelled(endpoint.node_name) if endpoint.node_name else ""
    return Endpoint(
        address=address,
        port=port,
        is_local=bool(where) and where == node_name,
        is_ready=conditions.ready is not False,
        is_serving=conditions.serving is not False,
        is_terminating=conditions.terminating is True,
        node_name=where,
        zone_hints=_hint_set(hints.for_zones) if hints else NO_HINTS,
        node_hints=_hint_set(hints.for_nodes) if hints else NO_HINTS,
    )


def _hint_set(hints: Iterable[objects.Hint] | None) -> frozenset[str]:
    return _shared_set(tuple(hint.name for hint in hints)) if hints else NO_HINTS


@lru_cache(maxsize=1024)
def _shared_set(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(_spelled, names))


@lru_cache(maxsize=16384)
def _spelled(text: str) -> str:
    """Return a name that is only compared and shown, as one line for people.

    The API server allows nothing else. Such a name equals no name that exists, so its spelling
    changes no decision.
    """
    if text.isprintable() and len(text) <= LONGEST_NAME:
        return sys.intern(text)
    return quote(text[:80])


def _trigger_time(
    annotations: objects.SliceAnnotations | None, problems: list[str]
) -> float | None:
    text = annotations.trigger_time if annotations else None
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        problems.append(f"annotation {objects.TRIGGER_TIME_ANNOTATION} is no time: {_short(text)}")
        return None
    return moment.timestamp()


def decode_service_cidrs(service_cidr: objects.ServiceCIDR) -> DecodedNetworks:
    """Return the canonical networks of a ServiceCIDR object in both families."""
    texts = (service_cidr.spec and service_cidr.spec.cidrs) or ()
    parsed = [(text, parse_cidr(text)) for text in texts]
    return DecodedNetworks(
        cidrs=tuple(found[1] for _, found in parsed if found),
        problems=tuple(f"spec.cidrs: {_short(text)} is not a CIDR" for text, f in parsed if not f),
    )


def decode_node_ips(node: objects.Node) -> tuple[str, ...]:
    """Return the node's first address, and the first of the other family if there is one.

    Internal addresses come before external ones.
    """
    listed = (node.status and node.status.addresses) or ()
    found: list[str] = []
    for wanted in ("InternalIP", "ExternalIP"):
        for entry in listed:
            parsed = parse_ip(entry.address) if entry.type == wanted else None
            if parsed is not None:
                found.append(parsed[1])
    second = next((a for a in found if family_of(a) is not family_of(found[0])), None)
    return tuple(found[:1]) + ((second,) if second else ())


def decode_pod_cidrs(node: objects.Node) -> tuple[str, ...]:
    """Return the node's pod networks, as written."""
    return tuple((node.spec and node.spec.pod_cidrs) or ())


def decode_zone(node: objects.Node) -> str:
    """Return the zone that the Node is in, or an empty text."""
    zone = (node.metadata.labels and node.metadata.labels.zone) or ""
    return _spelled(zone) if zone else ""


def is_eligible_node(node: objects.Node | None) -> bool:
    """May a load balancer send traffic to this node?"""
    if node is None or node.metadata.deletion_timestamp is not None:
        return False
    taints = (node.spec and node.spec.taints) or ()
    return all(taint.key != "ToBeDeletedByClusterAutoscaler" for taint in taints)
