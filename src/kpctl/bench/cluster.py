"""The objects that both programs get: services and slices whose content follows from a number.

Service i has cluster IP 10.96.1.0 + i, and its endpoints are in a block of 128 addresses of its
own, of which the upper half is for changes. Loading goes through the API server, many requests at a
time, and only what a bigger size adds is sent. The number of services only grows; the number of
endpoints may change either way.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from kpctl.apiserver.admin import NODES, SERVICES, SLICES, Json
from kpctl.bench.records import Size

NODE = "bench-node"
SERVICE_CIDR = "10.96.0.0/12"
CLUSTER_CIDR = "10.128.0.0/9"
ENDPOINT_CIDR = "10.128.0.0/10"
SERVICE_PORT = 80
POD_PORT = 8080
PARALLEL = 64

_FIRST_SERVICE = int(ipaddress.ip_address("10.96.1.0"))
_FIRST_ENDPOINT = int(ipaddress.ip_address("10.128.0.0"))
_BLOCK = 128
SPARE = 64
"""Slots from here on are for changes."""

SPARE_SERVICES = 4
"""Slices that wait for their Service."""

Job = Callable[[], Awaitable[None]]


def service_name(index: int) -> str:
    return f"svc-{index:05d}"


def slice_name(index: int) -> str:
    return f"{service_name(index)}-a"


def cluster_ip(index: int) -> str:
    return str(ipaddress.ip_address(_FIRST_SERVICE + index))


def pod_ip(index: int, slot: int) -> str:
    """The address of an endpoint of service `index`."""
    return str(ipaddress.ip_address(_FIRST_ENDPOINT + index * _BLOCK + slot))


def service_json(index: int, protocol: str = "TCP") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service_name(index), "namespace": "default"},
        "spec": {
            "clusterIP": cluster_ip(index),
            "ports": [
                {"name": "web", "port": SERVICE_PORT, "targetPort": POD_PORT, "protocol": protocol}
            ],
        },
    }


def slice_json(index: int, slots: Iterable[int], protocol: str = "TCP") -> Json:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name(index),
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service_name(index)},
        },
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": POD_PORT, "protocol": protocol}],
        "endpoints": endpoints_json(index, slots),
    }


def endpoints_json(index: int, slots: Iterable[int]) -> list[Json]:
    return [
        {
            "addresses": [pod_ip(index, slot)],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": "another-node",
        }
        for slot in slots
    ]


def node_json(address: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }


Progress = Callable[[int, int], None]
"""Called with the number of jobs done and the number of all."""


def _ignore_progress(done: int, total: int) -> None: ...


class Admin(Protocol):
    """Changes objects by path."""

    async def create(self, path: str, item: Json) -> Json: ...

    async def patch(self, path: str, patch: Json) -> Json: ...

    async def delete(self, path: str) -> None: ...


class Cluster:
    """The objects in an API server, and changes to them.

    A few slices wait for Services that do not exist yet: adding one of these is one change.
    """

    def __init__(self, admin: Admin, protocol: str = "TCP") -> None:
        self._admin = admin
        self._protocol = protocol
        self.size = Size(0)
        self.slots: dict[int, tuple[int, ...]] = {}
        """The endpoints that the slice of each service has."""

    async def start(self, node_address: str) -> None:
        await self._admin.create(NODES, node_json(node_address))

    async def become(self, size: Size, progress: Progress = _ignore_progress) -> None:
        """Bring the API server to this size."""
        if size.services < self.size.services:
            raise ValueError(f"the cluster has {self.size} already and can only grow")
        jobs = [
            partial(self._make, index, size)
            for index in range(size.services + SPARE_SERVICES)
            if index not in range(self.size.services) or len(self.slots[index]) != size.endpoints
        ]
        await in_parallel(jobs, progress)
        self.size = size

    async def _make(self, index: int, size: Size) -> None:
        """Make the slice first, so that a Service never is without endpoints."""
        slots = range(size.endpoints)
        if index not in self.slots:
            self.slots[index] = tuple(slots)
            await self._admin.create(SLICES, slice_json(index, slots, self._protocol))
        elif len(self.slots[index]) != size.endpoints:
            await self.set_slots(index, slots)
        if self.size.services <= index < size.services:
            await self.add_service(index)

    async def restore(self) -> None:
        """Bring all objects back to what the size demands, after an interrupted measure."""
        await self.reset(range(self.size.services))
        spare = range(self.size.services, self.size.services + SPARE_SERVICES)
        await in_parallel([partial(self.remove_service, index) for index in spare])

    async def reset(self, services: Iterable[int]) -> None:
        """Give these services the endpoints they had at first."""
        slots = range(self.size.endpoints)
        await in_parallel([partial(self.set_slots, index, slots) for index in services])

    async def add_service(self, index: int) -> None:
        """Create the Service of a slice that exists already."""
        await self._admin.create(SERVICES, service_json(index, self._protocol))

    async def remove_service(self, index: int) -> None:
        """Delete the Service and keep its slice."""
        await self._admin.delete(f"{SERVICES}/{service_name(index)}")

    async def set_slots(self, index: int, slots: Iterable[int]) -> None:
        """Give a service these endpoints. Returns when the API server has answered."""
        self.slots[index] = tuple(slots)
        patch: Json = {"endpoints": endpoints_json(index, self.slots[index])}
        await self._admin.patch(f"{SLICES}/{slice_name(index)}", patch)


async def in_parallel(jobs: Sequence[Job], progress: Progress = _ignore_progress) -> None:
    """Do all jobs, many at a time."""
    waiting = iter(jobs)
    done = 0

    async def worker() -> None:
        nonlocal done
        for job in waiting:
            await job()
            done += 1
            if done % 100 == 0 or done == len(jobs):
                progress(done, len(jobs))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(PARALLEL, len(jobs))):
            group.create_task(worker())
