"""Clusters of any size as API objects and events, for scale tests and benchmarks.

Every Service has one port, a cluster IP of its own and one slice, all derived from its number.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kubeproxy.api import objects
from kubeproxy.api.source import Inbox, Kind, Synced, Upsert

_NAMESPACE = "bench"


def _ipv4(first: int, number: int) -> str:
    """The `number`th address of `first`.0.0.0/8."""
    return f"{first}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def service_of(number: int) -> objects.Service:
    item = {
        "metadata": {"name": f"svc-{number}", "namespace": _NAMESPACE},
        "spec": {
            "clusterIP": _ipv4(11, number + 1),
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        },
    }
    return msgspec.convert(item, objects.Service)


def service_addresses(number: int, count: int) -> list[str]:
    """The endpoint addresses of one Service."""
    return [_ipv4(10, number * count + offset + 1) for offset in range(count)]


def slice_of(number: int, addresses: Sequence[str]) -> objects.EndpointSlice:
    """The slice of one Service; its endpoints are spread over a hundred nodes."""
    item = {
        "metadata": {
            "name": f"svc-{number}-abcde",
            "namespace": _NAMESPACE,
            "labels": {objects.SERVICE_NAME_LABEL: f"svc-{number}"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [address], "nodeName": f"node-{(number + offset) % 100}"}
            for offset, address in enumerate(addresses)
        ],
    }
    return msgspec.convert(item, objects.EndpointSlice)


def fill(inbox: Inbox, *, services: int, endpoints: int) -> None:
    """Send a whole cluster, then the events that the lists are complete."""
    for number in range(services):
        inbox.send(Upsert(Kind.SERVICE, service_of(number)))
        found = slice_of(number, service_addresses(number, endpoints))
        inbox.send(Upsert(Kind.ENDPOINT_SLICE, found))
    for kind in Kind:
        inbox.send(Synced(kind))
