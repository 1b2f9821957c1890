"""What the API client tells about its work, for metrics and logs.

The client calls an `Observer`; the program connects it to its metrics. The names of the arguments
are the labels of upstream's `rest_client_*` families.
"""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Receives what happened; must not wait or raise."""

    def requested(self, *, code: str, method: str, host: str) -> None:
        """An answer began (`code` is its status) or none came (`<error>`)."""

    def answered(self, *, method: str, host: str, seconds: float, sent: int) -> None:
        """How long the beginning of an answer took; not told of watches."""

    def received(self, *, method: str, host: str, size: int) -> None:
        """A whole answer was read; not told of watches."""

    def rate_limited(self, *, method: str, host: str, seconds: float) -> None:
        """A request waited for the client's own limit."""

    def retried(self, *, code: str, method: str, host: str) -> None:
        """A request is sent again because the server asked for it."""

    def resolved(self, *, host: str, seconds: float) -> None:
        """A host name was looked up."""

    def plugin_called(self, *, code: int, status: str) -> None:
        """The credential plugin ran; `status` is upstream's `call_status`."""


class SilentObserver:
    """An observer for callers that measure nothing."""

    def requested(self, *, code: str, method: str, host: str) -> None:
        pass

    def answered(self, *, method: str, host: str, seconds: float, sent: int) -> None:
        pass

    def received(self, *, method: str, host: str, size: int) -> None:
        pass

    def rate_limited(self, *, method: str, host: str, seconds: float) -> None:
        pass

    def retried(self, *, code: str, method: str, host: str) -> None:
        pass

    def resolved(self, *, host: str, seconds: float) -> None:
        pass

    def plugin_called(self, *, code: int, status: str) -> None:
        pass
