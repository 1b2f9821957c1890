"""The API client's requests as `rest_client_*` metrics, by upstream's names."""

from __future__ import annotations

import math
from typing import Protocol


class MetricTable(Protocol):
    """Counters, gauges and histograms by name; implemented by `Metrics`."""

    def add(self, name: str, amount: float = 1, /, **labels: str) -> None: ...

    def set(self, name: str, value: float, /, **labels: str) -> None: ...

    def observe(self, name: str, value: float, /, **labels: str) -> None: ...


class MetricObserver:
    """The `Observer` that counts. One is made per client."""

    def __init__(self, table: MetricTable) -> None:
        self._table = table
        # The client has one pool of connections, which was made once. No certificate is known
        # that a plugin would have to renew.
        table.set("rest_client_transport_cache_entries", 1)
        table.add("rest_client_transport_create_calls_total", 1, result="miss")
        table.set("rest_client_exec_plugin_ttl_seconds", math.inf)

    def requested(self, *, code: str, method: str, host: str) -> None:
        self._table.add("rest_client_requests_total", 1, code=code, method=method, host=host)

    def answered(self, *, method: str, host: str, seconds: float, sent: int) -> None:
        table = self._table
        table.observe("rest_client_request_duration_seconds", seconds, verb=method, host=host)
        table.observe("rest_client_request_size_bytes", sent, verb=method, host=host)

    def received(self, *, method: str, host: str, size: int) -> None:
        self._table.observe("rest_client_response_size_bytes", size, verb=method, host=host)

    def rate_limited(self, *, method: str, host: str, seconds: float) -> None:
        name = "rest_client_rate_limiter_duration_seconds"
        self._table.observe(name, seconds, verb=method, host=host)

    def retried(self, *, code: str, method: str, host: str) -> None:
        name = "rest_client_request_retries_total"
        self._table.add(name, 1, code=code, verb=method, host=host)

    def resolved(self, *, host: str, seconds: float) -> None:
        self._table.observe("rest_client_dns_resolution_duration_seconds", seconds, host=host)

    def plugin_called(self, *, code: int, status: str) -> None:
        name = "rest_client_exec_plugin_call_total"
        self._table.add(name, 1, code=str(code), call_status=status)
