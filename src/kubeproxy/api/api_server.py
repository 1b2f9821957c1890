"""The API server as a source of objects: one client for the Node, four collections and events.

Each collection is kept by a reflector of its own. They share the client and with it the rate limit
and the connections. Services and slices are not ordered among each other: the receiver waits for
both `Synced` before it acts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import msgspec

from kubeproxy.api.auth.credentials import find_access
from kubeproxy.api.client import ApiClient, ClientSettings, connect
from kubeproxy.api.events import EventRequest
from kubeproxy.api.limits import DEFAULT_BURST, DEFAULT_QPS
from kubeproxy.api.node import NodeFinder
from kubeproxy.api.objects import Node
from kubeproxy.api.observer import Observer
from kubeproxy.api.problems import Refused
from kubeproxy.api.reflector import DEFAULTS, Reflector, ReflectorSettings
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import CollectionState, Inbox, Kind
from kubeproxy.api.transport import Request
from kubeproxy.errors import Expired, Forbidden
from kubeproxy.logs import get_logger

logger = get_logger(__name__)

EVENT_TIMEOUT_SECONDS = 30.0
_EVENT_CONTENT_TYPES = {
    "POST": "application/json",
    "PATCH": "application/strategic-merge-patch+json",
}
_EXPECTED_CONTENT_TYPES = ("application/json", "", "application/vnd.kubernetes.protobuf")
"""JSON, and upstream's default, which no operator chose."""


class ApiServerOptions(msgspec.Struct, frozen=True, gc=False):
    """How to find the API server and how fast to send requests, by flags and configuration."""

    kubeconfig: str = ""
    master: str = ""
    content_type: str = ""
    qps: float = DEFAULT_QPS
    burst: int = DEFAULT_BURST
    streams: bool = False
    """Gate WatchListClient, if it was switched on by name: try streaming lists before pages."""


class ApiServerSource:
    """A `Source` fed by an API server. It uses one client for everything, as upstream does."""

    def __init__(
        self,
        client: ApiClient,
        *,
        settings: ReflectorSettings = DEFAULTS,
        place: str = "",
        files: Sequence[str] = (),
    ) -> None:
        self.place = place
        self.files = tuple(files)
        self._client = client
        self._settings = settings
        self._poster = ApiEventPoster(client)
        self._reflectors: list[Reflector] = []

    @classmethod
    def open(cls, options: ApiServerOptions, observer: Observer) -> ApiServerSource:
        """Find the credentials the options describe. Raises `ConfigError` if they are wrong."""
        if not options.kubeconfig and not options.master:
            logger.info(
                "Neither kubeconfig file nor master URL was specified, falling back to in-cluster"
                " config"
            )
        found = find_access(kubeconfig=options.kubeconfig, master=options.master)
        for warning in found.warnings:
            logger.info(warning)
        if options.content_type not in _EXPECTED_CONTENT_TYPES:
            logger.info("This client speaks JSON only", contentType=options.content_type)
        limits = ClientSettings(qps=options.qps, burst=options.burst)
        client = connect(found.access, observer=observer, settings=limits)
        settings = ReflectorSettings(streams=options.streams)
        files = found.access.files
        if found.access.plugin is not None and (home := os.environ.get("HOME")):
            files += (home,)  # where plugins keep tokens
        return cls(client, settings=settings, place=found.access.server, files=files)

    @property
    def needs_node(self) -> bool:
        return True

    @property
    def poster(self) -> ApiEventPoster:
        return self._poster

    def collections(self) -> list[CollectionState]:
        return [reflector.state() for reflector in self._reflectors]

    async def find_node(self, name: str, *, needs_pod_cidrs: bool) -> Node | None:
        return await NodeFinder(self._client).find(name, needs_pod_cidrs=needs_pod_cidrs)

    async def run(self, inbox: Inbox, node_name: str) -> None:
        """Deliver until cancelled. A failure of one kind does not hold up the others."""
        async with asyncio.TaskGroup() as group:
            for kind in Kind:
                resource = resource_for(kind, node_name)
                reflector = Reflector(self._client, resource, inbox, settings=self._settings)
                self._reflectors.append(reflector)
                group.create_task(reflector.run(), name=f"watch {kind.value}")

    async def close(self) -> None:
        await self._client.close()


class ApiEventPoster:
    """An `EventPoster` that uses the client of everything else."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def post_event(self, request: EventRequest) -> int:
        """Return the HTTP status. Raises `Unavailable` if there is none or it means "later"."""
        path = f"/apis/events.k8s.io/v1/namespaces/{request.namespace}/events"
        if request.method == "PATCH":
            path = f"{path}/{request.name}"
        try:
            reply = await self._client.send(
                Request(
                    request.method,
                    path,
                    body=request.body,
                    content_type=_EVENT_CONTENT_TYPES[request.method],
                    timeout_seconds=EVENT_TIMEOUT_SECONDS,
                )
            )
            return reply.status
        except Refused as refused:
            return refused.code
        except Forbidden:
            return 403
        except Expired:
            return 410
