"""Objects of an API server, changed by path: what tests and benchmarks need of kubectl."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from kubeproxy.api.auth.access import Access
from kubeproxy.api.client import Client, ClientSettings, connect
from kubeproxy.api.problems import Refused
from kubeproxy.api.transport import Request

Json = dict[str, object]

SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
NODES = "/api/v1/nodes"
SERVICE_CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"


class ApiAdmin:
    """Somebody who may do everything."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def get(self, path: str) -> Json:
        return await self._send(Request("GET", path))

    async def create(self, path: str, item: Json) -> Json:
        return await self._send(Request("POST", path, body=json.dumps(item).encode()))

    async def patch(self, path: str, patch: Json) -> Json:
        """RFC 7386."""
        body = json.dumps(patch).encode()
        kind = "application/merge-patch+json"
        return await self._send(Request("PATCH", path, body=body, content_type=kind))

    async def delete(self, path: str) -> None:
        """Gone afterwards, whether it existed or not."""
        try:
            await self._send(Request("DELETE", path))
        except Refused as refused:
            if refused.code != 404:
                raise

    async def _send(self, request: Request) -> Json:
        return cast(Json, json.loads(await self.client.read(request)))


@asynccontextmanager
async def admin_of(access: Access) -> AsyncIterator[ApiAdmin]:
    client = connect(access, settings=ClientSettings(qps=-1), environment={})
    try:
        yield ApiAdmin(client)
    finally:
        await client.close()


def service(name: str, *, labels: dict[str, str] | None = None, **spec: object) -> Json:
    """A Service with one port, as one would write it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"ports": [{"name": "web", "port": 80, "protocol": "TCP"}], **spec},
    }


def endpoint_slice(name: str, of_service: str, *addresses: str) -> Json:
    """An IPv4 EndpointSlice of a Service, everything ready."""
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
