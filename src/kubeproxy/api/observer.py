"""The API client's report of its own work, as a seam to the metrics.

The client calls an `Observer`; `status.api_client` has the one that counts. Names of arguments
are the labels of upstream's `rest_client_*` families.
"""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Is notified of requests. Must neither wait nor raise."""

    def requested(self, *, code: str, method: str, host: str) -> None:
        """A response began (`code` is its status), or there was none (`<error>`)."""

    def answered(self, *, method: str, host: str, seconds: float, sent: int) -> None:
        """The beginning of a response took so long. Not called for watches."""

    def received(self, *, method: str, host: str, size: int) -> None:
        """A whole response was read. Not called for watches."""

    def rate_limited(self, *, method: str, host: str, seconds: float) -> None:
        """A request waited for the client's own rate limit."""

    def retried(self, *, code: str, method: str, host: str) -> None:
        """A request is sent again because the server asked for it."""

    def resolved(self, *, host: str, seconds: float) -> None:
        """A host name was looked up."""

    def plugin_called(self, *, code: int, status: str) -> None:
        """The credential plugin ran. `status` is upstream's `call_status`."""
