"""An observer of the API client that remembers, for tests to look at."""

from __future__ import annotations


class RecordedRequests:
    """Every call, as (what, labels and values)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, object]]] = []

    def of(self, what: str) -> list[dict[str, object]]:
        return [values for name, values in self.calls if name == what]

    def requested(self, *, code: str, method: str, host: str) -> None:
        self.calls.append(("requested", {"code": code, "method": method, "host": host}))

    def answered(self, *, method: str, host: str, seconds: float, sent: int) -> None:
        self.calls.append(("answered", {"method": method, "host": host, "sent": sent}))

    def received(self, *, method: str, host: str, size: int) -> None:
        self.calls.append(("received", {"method": method, "host": host, "size": size}))

    def rate_limited(self, *, method: str, host: str, seconds: float) -> None:
        self.calls.append(("rate_limited", {"method": method, "host": host, "seconds": seconds}))

    def retried(self, *, code: str, method: str, host: str) -> None:
        self.calls.append(("retried", {"code": code, "method": method, "host": host}))

    def resolved(self, *, host: str, seconds: float) -> None:
        self.calls.append(("resolved", {"host": host}))

    def plugin_called(self, *, code: int, status: str) -> None:
        self.calls.append(("plugin_called", {"code": code, "status": status}))
