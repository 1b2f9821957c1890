"""The client's observations as `rest_client_*` metrics, by upstream's names."""

from __future__ import annotations

import math
from typing import Protocol

from kubeproxy.api.observer import Observer, SilentObserver


class MetricTable(Protocol):
    """Counters and histograms by name."""

    def add(self, name: str, amount: float = 1, /, **labels: str) -> None: ...

    def set(self, name: str, value: float, /, **labels: str) -> None: ...

    def observe(self, name: str, value: float, /, **labels: str) -> None: ...


class MetricObserver:
    """Writes what it hears into a table of metrics."""

    def __init__(self, table: MetricTable) -> None:
        self._table = table
        # There is one pool of connections, and it was made once; nobody told us of a certificate
        # that a plugin will have to renew.
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


class LateObserver:
    """Stands in until the real observer is known: metrics are made after the first requests."""

    def __init__(self) -> None:
        self.target: Observer = SilentObserver()

    def requested(self, *, code: str, method: str, host: str) -> None:
        self.target.requested(code=code, method=method, host=host)

    def answered(self, *, method: str, host: str, seconds: float, sent: int) -> None:
        self.target.answered(method=method, host=host, seconds=seconds, sent=sent)

    def received(self, *, method: str, host: str, size: int) -> None:
        self.target.received(method=method, host=host, size=size)

    def rate_limited(self, *, method: str, host: str, seconds: float) -> None:
        self.target.rate_limited(method=method, host=host, seconds=seconds)

    def retried(self, *, code: str, method: str, host: str) -> None:
        self.target.retried(code=code, method=method, host=host)

    def resolved(self, *, host: str, seconds: float) -> None:
        self.target.resolved(host=host, seconds=seconds)

    def plugin_called(self, *, code: int, status: str) -> None:
        self.target.plugin_called(code=code, status=status)
