"""Kubernetes events on their way to the API server: the request, and the seam that carries it.

`status.events` decides which events are written and when to retry. The poster in `api_server` sends
them with the client. This module lets each do its part without the other.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec


class EventRequest(msgspec.Struct, frozen=True, gc=False):
    """One request to `/apis/events.k8s.io/v1/namespaces/<namespace>/events[/<name>]`.

    A PATCH is a strategic merge patch and names the event. A POST carries the whole event.
    """

    method: Literal["POST", "PATCH"]
    namespace: str
    name: str
    body: bytes


class EventPoster(Protocol):
    """Carries event requests to the API server."""

    async def post_event(self, request: EventRequest) -> int:
        """Return the HTTP status of the response.

        Raises ApiError, OSError or TimeoutError if there was no response. The caller may then
        retry.
        """
