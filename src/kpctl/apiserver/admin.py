"""Objects of an API server read and changed by path, as tests and benchmarks need it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from kubeproxy.api.auth.access import Access
from kubeproxy.api.client import Client, ClientSettings, connect
from kubeproxy.api.problems import Refused
from kubeproxy.api.transport import Request
from kubeproxy.status.api_client import MetricObserver
from kubeproxy.status.metrics import Metrics

Json = dict[str, object]

SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
NODES = "/api/v1/nodes"
SERVICE_CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"


class ApiAdmin:
    """Reads and changes objects with a client that has all permissions."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def get(self, path: str) -> Json:
        return await self._send(Request("GET", path))

    async def read(self, path: str) -> bytes:
        """What a path shows, which need not be an object."""
        return await self.client.read(Request("GET", path))

    async def create(self, path: str, item: Json) -> Json:
        return await self._send(Request("POST", path, body=json.dumps(item).encode()))

    async def patch(self, path: str, patch: Json) -> Json:
        """Apply a JSON merge patch (RFC 7386)."""
        body = json.dumps(patch).encode()
        kind = "application/merge-patch+json"
        return await self._send(Request("PATCH", path, body=body, content_type=kind))

    async def delete(self, path: str) -> None:
        """Delete an object. It is no error if there is none."""
        try:
            await self._send(Request("DELETE", path))
        except Refused as refused:
            if refused.code != 404:
                raise

    async def _send(self, request: Request) -> Json:
        return cast(Json, json.loads(await self.client.read(request)))


@asynccontextmanager
async def admin_of(access: Access) -> AsyncIterator[ApiAdmin]:
    """Yield an admin without a rate limit for as long as the context is open."""
    # The client always counts its requests. The figures of this one are not shown.
    observer = MetricObserver(Metrics("nftables"))
    client = connect(access, observer=observer, settings=ClientSettings(qps=-1), environment={})
    try:
        yield ApiAdmin(client)
    finally:
        await client.close()


def service(name: str, *, labels: dict[str, str] | None = None, **spec: object) -> Json:
    """Return a Service with one port, as an operator would write it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"ports": [{"name": "web", "port": 80, "protocol": "TCP"}], **spec},
    }


def endpoint_slice(name: str, of_service: str, *addresses: str) -> Json:
    """Return an IPv4 EndpointSlice of a Service with all endpoints ready."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": of_service}},
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": True}} for address in addresses
        ],
    }
