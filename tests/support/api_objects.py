"""Short ways to write API objects in tests, in the API's own spelling.

Extra keyword arguments are fields of `spec` (of the slice itself for slices), as in a manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from kubeproxy.api import objects

Json: TypeAlias = Mapping[str, object]


def meta(name: str, **fields: object) -> dict[str, object]:
    """Metadata from `namespace/name` or `name`."""
    namespace, _, short = name.rpartition("/")
    return {"name": short, **({"namespace": namespace} if namespace else {}), **fields}


def service_object(
    name: str = "default/web",
    *,
    labels: Mapping[str, str] | None = None,
    ingress: Sequence[Json] = (),
    **spec: object,
) -> objects.Service:
    """A Service with one port; `clusterIP`, `ports` and all else may be given."""
    fields: dict[str, object] = {
        "clusterIP": "10.96.0.10",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    }
    item = {
        "metadata": meta(name, labels=labels),
        "spec": fields | spec,
        "status": {"loadBalancer": {"ingress": list(ingress)}},
    }
    return msgspec.convert(item, objects.Service)


def slice_object(
    name: str = "default/web-1",
    addresses: Sequence[str] = (),
    *,
    service: str | None = "web",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **fields: object,
) -> objects.EndpointSlice:
    """A slice of ready endpoints at these addresses; `endpoints`, `ports`, `addressType` too."""
    own = {objects.SERVICE_NAME_LABEL: service} if service is not None else {}
    item: dict[str, object] = {
        "metadata": meta(name, labels={**own, **(labels or {})}, annotations=annotations),
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]} for address in addresses],
    }
    return msgspec.convert(item | fields, objects.EndpointSlice)


def node_object(
    name: str = "worker-a",
    *,
    zone: str | None = None,
    addresses: Sequence[tuple[str, str]] = (),
    **spec: object,
) -> objects.Node:
    """A Node; `addresses` are pairs of type and address."""
    labels = {objects.ZONE_LABEL: zone} if zone is not None else None
    item = {
        "metadata": meta(name, labels=labels),
        "spec": spec,
        "status": {"addresses": [{"type": t, "address": a} for t, a in addresses]},
    }
    return msgspec.convert(item, objects.Node)


def service_cidr_object(name: str, *cidrs: str) -> objects.ServiceCIDR:
    return msgspec.convert(
        {"metadata": meta(name), "spec": {"cidrs": list(cidrs)}}, objects.ServiceCIDR
    )
