"""The ClusterRole under deploy/base against the requests that are really made, with RBAC on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.support.kubectl import Kubectl
from tests.support.recorded import RecordedRequests
from tests.support.waiting import until

from kpctl.apiserver.admin import NODES, ApiAdmin, admin_of
from kpctl.apiserver.real import RealApiServer
from kubeproxy.api.api_server import ApiEventPoster, ApiServerSource
from kubeproxy.api.auth.access import Access
from kubeproxy.api.client import Client, ClientSettings, Reply, connect
from kubeproxy.api.events import EventRequest
from kubeproxy.api.node import NodeFinder
from kubeproxy.api.reflector import ReflectorSettings
from kubeproxy.api.source import Event, Kind, Synced
from kubeproxy.api.transport import Request, Response

BASE = Path(__file__).parents[3] / "deploy/base"
TOKEN = "/api/v1/namespaces/kube-system/serviceaccounts/kube-proxy/token"
Grant = tuple[str, str, str]


class Rule(msgspec.Struct, rename="camel"):
    api_groups: list[str]
    resources: list[str]
    verbs: list[str]


def granted() -> set[Grant]:
    """(verb, group, resource) of the ClusterRole."""
    objects = yaml.safe_load_all((BASE / "rbac.yaml").read_text())
    (role,) = (item for item in objects if item["kind"] == "ClusterRole")
    rules = msgspec.convert(role["rules"], list[Rule])
    return {
        (verb, group, resource)
        for rule in rules
        for group in rule.api_groups
        for resource in rule.resources
        for verb in rule.verbs
    }


class RecordingClient:
    """A client that remembers which permissions its requests needed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.used: set[Grant] = set()

    def open(self, request: Request) -> AbstractAsyncContextManager[Response]:
        self.used.add(needed(request))
        return self._client.open(request)

    async def read(self, request: Request) -> bytes:
        return (await self.send(request)).body

    async def send(self, request: Request) -> Reply:
        self.used.add(needed(request))
        return await self._client.send(request)

    async def close(self) -> None:
        await self._client.close()


def needed(request: Request) -> Grant:
    parts = request.path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    resource = rest[2] if rest[0] == "namespaces" else rest[0]
    if request.method == "GET":
        return ("watch" if ("watch", "true") in request.query else "list"), group, resource
    return {"POST": "create", "PATCH": "patch"}[request.method], group, resource


class Inbox:
    def __init__(self) -> None:
        self.synced: set[Kind] = set()

    def send(self, event: Event) -> None:
        if isinstance(event, Synced):
            self.synced.add(event.kind)


@pytest.fixture
async def applied(real: RealApiServer, kubectl: Kubectl) -> AsyncIterator[ApiAdmin]:
    """Everything under deploy/base exists, and is removed again."""
    kubectl("apply", "-k", str(BASE))
    async with admin_of(real.access()) as admin:
        yield admin
    kubectl("delete", "-k", str(BASE))


async def token_of(admin: ApiAdmin) -> str:
    status = (await admin.create(TOKEN, {"spec": {}}))["status"]
    assert isinstance(status, dict)
    return str(status["token"])


@pytest.mark.api
@pytest.mark.timeout(1800)
async def test_the_role_is_enough_and_nothing_in_it_is_unused(
    real: RealApiServer, applied: ApiAdmin
) -> None:
    await applied.create(NODES, {"metadata": {"name": "deployed"}})
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}]
    await applied.patch(f"{NODES}/deployed/status", {"status": {"addresses": addresses}})
    access = Access(server=real.url, tls=real.access().tls, token=await token_of(applied))
    client = connect(
        access, observer=RecordedRequests(), settings=ClientSettings(qps=-1), environment={}
    )
    recording, inbox = RecordingClient(client), Inbox()
    assert await NodeFinder(recording).find("deployed", needs_pod_cidrs=False)
    for streams in (True, False):
        inbox.synced.clear()
        settings = ReflectorSettings(streams=streams)
        source = ApiServerSource(recording, settings=settings)
        task = asyncio.create_task(source.run(inbox, "deployed"))
        await until(lambda: inbox.synced == set(Kind))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    poster = ApiEventPoster(recording)
    for request in event_requests():
        assert await poster.post_event(request) in (200, 201)
    await client.close()
    await applied.delete(f"{NODES}/deployed")
    assert recording.used == granted()


def event_requests() -> Iterator[EventRequest]:
    event = {
        "metadata": {"name": "deployed.1", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "kube-proxy",
        "reportingInstance": "kube-proxy-x",
        "action": "StartKubeProxy",
        "reason": "Starting",
        "type": "Normal",
        "regarding": {"kind": "Node", "name": "deployed", "apiVersion": "v1"},
    }
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    yield EventRequest("POST", "default", "deployed.1", msgspec.json.encode(event))
    yield EventRequest("PATCH", "default", "deployed.1", msgspec.json.encode(series))
