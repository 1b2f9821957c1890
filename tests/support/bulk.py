"""Clusters of any size, as events: for scale tests and benchmarks.

Every Service has one port, one cluster IP of its own and one slice.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.api_objects import service_object, slice_object

from kubeproxy.api import objects
from kubeproxy.api.source import Inbox, Kind, Synced, Upsert


def _ipv4(first: int, number: int) -> str:
    """The `number`th address of `first`.0.0.0/8."""
    return f"{first}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def service_of(number: int) -> objects.Service:
    return service_object(f"bench/svc-{number}", clusterIP=_ipv4(11, number + 1))


def service_addresses(number: int, count: int) -> list[str]:
    """The endpoint addresses of one Service."""
    return [_ipv4(10, number * count + offset + 1) for offset in range(count)]


def slice_of(number: int, addresses: Sequence[str]) -> objects.EndpointSlice:
    """The slice of one Service; its endpoints are spread over a hundred nodes."""
    endpoints = [
        {"addresses": [address], "nodeName": f"node-{(number + offset) % 100}"}
        for offset, address in enumerate(addresses)
    ]
    return slice_object(f"bench/svc-{number}-abcde", service=f"svc-{number}", endpoints=endpoints)


def fill(inbox: Inbox, *, services: int, endpoints: int) -> None:
    """Send a whole cluster and say that it is complete."""
    for number in range(services):
        inbox.send(Upsert(Kind.SERVICE, service_of(number)))
        found = slice_of(number, service_addresses(number, endpoints))
        inbox.send(Upsert(Kind.ENDPOINT_SLICE, found))
    for kind in Kind:
        inbox.send(Synced(kind))
