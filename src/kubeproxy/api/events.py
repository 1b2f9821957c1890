"""Carries Kubernetes events to the API server; making them is the recorder's part."""

from __future__ import annotations

from typing import Protocol

from kubeproxy.api.client import Reply
from kubeproxy.api.problems import Refused
from kubeproxy.api.transport import Request
from kubeproxy.errors import Expired, Forbidden

_TYPES = {"POST": "application/json", "PATCH": "application/strategic-merge-patch+json"}
TIMEOUT_SECONDS = 30.0


class EventRequest(Protocol):
    """A request as the recorder describes it."""

    @property
    def method(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def body(self) -> bytes: ...


class Sender(Protocol):
    """The part of the client that is used here."""

    async def send(self, request: Request) -> Reply: ...


class ApiEventPoster:
    """Posts events with the client that does everything else."""

    def __init__(self, client: Sender) -> None:
        self._client = client

    async def post_event(self, request: EventRequest) -> int:
        """The HTTP status of the answer; raises `Unavailable` where there is none worth having."""
        path = f"/apis/events.k8s.io/v1/namespaces/{request.namespace}/events"
        if request.method == "PATCH":
            path = f"{path}/{request.name}"
        try:
            reply = await self._client.send(
                Request(
                    request.method,
                    path,
                    body=request.body,
                    content_type=_TYPES[request.method],
                    timeout_seconds=TIMEOUT_SECONDS,
                )
            )
            return reply.status
        except Refused as refused:
            return refused.code
        except Forbidden:
            return 403
        except Expired:
            return 410
