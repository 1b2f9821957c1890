"""What a Service of the short form becomes: the objects that a cluster would have for it. Pure.

Listening addresses become external IPs. Addresses that have the same ports share a Service; there
is a second one, named web-2, where they have not: a Service has all its ports at all its addresses.
Backends become EndpointSlices, one for each of their ports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeproxy.api.annotations import format_weights
from kubeproxy.api.objects import (
    LISTEN_TYPE,
    EndpointSlice,
    Service,
    ServiceMeta,
    ServicePort,
    ServiceSpec,
    SliceAnnotations,
    SliceEndpoint,
    SliceLabels,
    SliceMeta,
    SlicePort,
)
from kubeproxy.api.short_form import NAMESPACE, Backend, Listen, ShortService
from kubeproxy.api.source import Kind, Object
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family, Protocol

Key = tuple[Kind, str, str]
Resolved = Mapping[str, tuple[str, ...]]
"""The addresses of host names, as far as they are known."""

_Port = tuple[int, Protocol]


def service_objects(service: ShortService, resolved: Resolved) -> dict[Key, Object]:
    """The Services and EndpointSlices of one Service."""
    found: dict[Key, Object] = {}
    for number, (ports, addresses) in enumerate(_groups(service), start=1):
        name = service.name if number == 1 else f"{service.name}-{number}"
        found[Kind.SERVICE, NAMESPACE, name] = _service(service, name, ports, addresses)
        families = {family_of(address) for address in addresses}
        for each in _slices(service, name, ports, families, resolved):
            found[Kind.ENDPOINT_SLICE, NAMESPACE, each.metadata.name] = each
    return found


def _groups(service: ShortService) -> Iterator[tuple[tuple[_Port, ...], list[str]]]:
    """Yield ports, and the addresses that have exactly these."""
    ports: dict[str, list[Listen]] = {}
    for listen in service.listen:
        ports.setdefault(listen.address, []).append(listen)
    groups: dict[tuple[_Port, ...], list[str]] = {}
    for address, listens in ports.items():
        key = tuple(sorted((each.port, each.protocol) for each in listens))
        groups.setdefault(key, []).append(address)
    yield from groups.items()


def _service(
    service: ShortService, name: str, ports: tuple[_Port, ...], addresses: list[str]
) -> Service:
    return Service(
        metadata=ServiceMeta(name=name, namespace=NAMESPACE, annotations=service.annotations),
        spec=ServiceSpec(
            type=LISTEN_TYPE,
            external_ips=addresses,
            ports=[
                ServicePort(port=port, name=_port_name(port, ports), protocol=protocol.value)
                for port, protocol in ports
            ],
        ),
    )


def _port_name(port: int, ports: tuple[_Port, ...]) -> str:
    """A single port needs no name."""
    return str(port) if len(ports) > 1 else ""


def _slices(
    service: ShortService,
    name: str,
    ports: tuple[_Port, ...],
    families: set[Family],
    resolved: Resolved,
) -> Iterator[EndpointSlice]:
    targets: dict[tuple[Family, int], dict[str, int]] = {}
    for backend in service.to:
        for address in _addresses(backend, resolved):
            if (family := family_of(address)) in families:
                weights = targets.setdefault((family, backend.port), {})
                weights.setdefault(address, backend.weight)
    for (family, target), weights in targets.items():
        yield EndpointSlice(
            metadata=SliceMeta(
                name=f"{name}-{family.value.lower()}-{target}",
                namespace=NAMESPACE,
                labels=SliceLabels(service_name=name),
                annotations=_weights(weights),
            ),
            address_type=family.value,
            endpoints=[SliceEndpoint(addresses=[address]) for address in weights],
            ports=[
                SlicePort(name=_port_name(port, ports), protocol=protocol.value, port=target)
                for port, protocol in ports
            ],
        )


def _addresses(backend: Backend, resolved: Resolved) -> tuple[str, ...]:
    return resolved.get(backend.host, ()) if backend.is_name else (backend.host,)


def _weights(weights: Mapping[str, int]) -> SliceAnnotations | None:
    differing = {address: weight for address, weight in weights.items() if weight != 1}
    return SliceAnnotations(weights=format_weights(differing)) if differing else None
