"""Counting: the metric table turned into live metrics, one registry per `Metrics` object.

Nothing is global, so tests and several proxies in one process do not meet. A metric that the
table does not give to this mode is silently not kept, as upstream does not register it; callers
need not know the mode. Printing is left to `exposition`, serving to `metrics_server`.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from kubeproxy.facts.ids import Family
from kubeproxy.status.exposition import encode, negotiate
from kubeproxy.status.metric_table import (
    NFACCT_OBJECTS,
    PACKET_COUNTERS,
    SLIS,
    TABLE,
    MetricSpec,
)
from kubeproxy.status.process import ProcessCollector

Live: TypeAlias = Counter | Gauge | Histogram
PacketCount: TypeAlias = Callable[[str], int | None]
"""Reads one accounting object of the kernel by name; nothing if there is none."""


class Metrics:
    """All metrics of one proxy running in `mode`."""

    def __init__(self, mode: str, *, packet_count: PacketCount | None = None) -> None:
        self.mode = mode
        self.process = ProcessCollector()
        self._registry = CollectorRegistry()
        self._live = {s.name: _build(s, self._registry) for s in TABLE if mode in s.modes}
        self._registry.register(self.process)
        if packet_count is not None and mode == "iptables":
            self._registry.register(PacketCounters(packet_count))
        self.slis = Slis(self.process)
        self._count_registered()

    # -- the three verbs; a metric this mode does not have takes no notice --

    def add(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Count `amount` more on the counter called `name`."""
        metric = self._find(name, labels)
        if isinstance(metric, Counter):
            metric.inc(amount)

    def set(self, name: str, value: float, /, **labels: str) -> None:
        """Set the gauge called `name`."""
        metric = self._find(name, labels)
        if isinstance(metric, Gauge):
            metric.set(value)

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        """Add one observation to the histogram called `name`."""
        metric = self._find(name, labels)
        if isinstance(metric, Histogram):
            metric.observe(value)

    def _find(self, name: str, labels: Mapping[str, str]) -> Live | None:
        metric = self._live.get(name)
        if metric is None:
            _require_known(name)
            return None
        return metric.labels(**labels) if labels else metric

    # -- what happened, in the words of the program --

    def build_info(self, **labels: str) -> None:
        """Say which build runs; the labels are those of `kubernetes_build_info`."""
        self.set("kubernetes_build_info", 1, **labels)

    def feature_gates(self, gates: Iterable[tuple[str, str, bool]]) -> None:
        """Publish every known gate as (name, stage, enabled); a GA gate's stage is empty."""
        for name, stage, enabled in gates:
            self.set("kubernetes_feature_enabled", int(enabled), name=name, stage=stage)

    def sync_queued(self, family: Family, unix_seconds: float) -> None:
        """A sync was asked for, or the sync loop started."""
        name = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
        self.set(name, unix_seconds, ip_family=family.value)

    def service_event(self, pending: int) -> None:
        """One family saw one Service event; `pending` Services now wait for a sync."""
        self.add("kubeproxy_sync_proxy_rules_service_changes_total")
        self.set("kubeproxy_sync_proxy_rules_service_changes_pending", pending)

    def slice_event(self, pending: int) -> None:
        """One EndpointSlice event was accepted; `pending` changes now wait for a sync."""
        self.add("kubeproxy_sync_proxy_rules_endpoint_changes_total")
        self.set("kubeproxy_sync_proxy_rules_endpoint_changes_pending", pending)

    def object_rejected(self, kind: str) -> None:
        """An API object was left out because it cannot be used."""
        self.add("kubeproxy_rejected_objects_total", kind=kind)

    def health_answered(self, path: str, code: int) -> None:
        """`/healthz` or `/livez` of the health server answered with `code`."""
        self.add(f"kubeproxy_proxy_{path.strip('/')}_total", code=str(code))

    # -- serving --

    def families(self) -> Iterator[Metric]:
        """Everything /metrics shows, as of now."""
        return iter(self._registry.collect())

    def scrape(self, accept: str = "") -> tuple[str, bytes]:
        """Content type and body for a client with this Accept header."""
        content_type = negotiate(accept)
        return content_type, encode(self.families(), content_type)

    def _count_registered(self) -> None:
        for spec in (s for s in TABLE + SLIS if self.mode in s.modes):
            self.add(
                "registered_metrics_total", stability_level=spec.stability, deprecated_version=""
            )


class Slis:
    """Results of the metrics server's own health checks, for /metrics/slis; can be reset."""

    def __init__(self, process: ProcessCollector) -> None:
        self._process = process
        self.reset()

    def reset(self) -> None:
        self._registry = CollectorRegistry()
        self._result, self._results = (_build(s, self._registry) for s in SLIS)
        self._registry.register(_OnlyStartTime(self._process))

    def observe(self, name: str, kind: str, *, passed: bool) -> None:
        """The check `name` ran as part of `kind` (healthz, livez, readyz)."""
        gauge, counter = self._result, self._results
        if isinstance(gauge, Gauge) and isinstance(counter, Counter):
            gauge.labels(name=name, type=kind).set(int(passed))
            status = "success" if passed else "error"
            counter.labels(name=name, type=kind, status=status).inc()

    def scrape(self, accept: str = "") -> tuple[str, bytes]:
        content_type = negotiate(accept)
        return content_type, encode(self._registry.collect(), content_type)


class PacketCounters(Collector):
    """Packets counted by iptables rules, read from the kernel's accounting objects."""

    def __init__(self, packet_count: PacketCount) -> None:
        self._packet_count = packet_count

    def collect(self) -> Iterator[Metric]:
        for spec in PACKET_COUNTERS:
            packets = self._packet_count(NFACCT_OBJECTS[spec.name])
            if packets is not None:
                name = spec.name.removesuffix("_total")
                yield CounterMetricFamily(name, spec.help_text, value=packets)

    def describe(self) -> Iterator[Metric]:
        return iter(())


class _OnlyStartTime(Collector):
    def __init__(self, process: ProcessCollector) -> None:
        self._process = process

    def collect(self) -> Iterator[Metric]:
        return (f for f in self._process.collect() if f.name == "process_start_time_seconds")


def _build(spec: MetricSpec, registry: CollectorRegistry) -> Live:
    if spec.kind == "histogram":
        return Histogram(
            spec.name, spec.help_text, spec.labels, registry=registry, buckets=spec.buckets
        )
    kind = Counter if spec.kind == "counter" else Gauge
    return kind(spec.name, spec.help_text, spec.labels, registry=registry)


_KNOWN = frozenset(spec.name for spec in TABLE)


def _require_known(name: str) -> None:
    """A misspelt name must not look like a metric of another mode."""
    if name not in _KNOWN:
        raise KeyError(f"no metric is called {name}; see metric_table")


def compress(body: bytes) -> bytes:
    """The body as gzip; level 1, as a scrape is read once."""
    return gzip.compress(body, compresslevel=1, mtime=0)
