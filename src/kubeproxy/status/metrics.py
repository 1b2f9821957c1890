"""Counting: the metric table turned into live metrics, one registry per `Metrics` object.

Nothing is global, so tests and several proxies in one process do not share counts. A metric that
the table does not give to this mode is ignored, as upstream does not register it, so callers need
not know the mode. Which metrics exist is in `metric_table`. Printing is left to `exposition`,
serving to `metrics_server`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from kubeproxy.facts.ids import Family
from kubeproxy.status.check_counters import CheckCounters
from kubeproxy.status.collectors import OnlyStartTime, PacketCount, PacketCounters
from kubeproxy.status.exposition import encode, negotiate
from kubeproxy.status.families import (
    Counter,
    CounterValue,
    Gauge,
    GaugeValue,
    Histogram,
    HistogramValue,
    Metric,
    Registry,
)
from kubeproxy.status.metric_table import SLIS, TABLE, MetricSpec
from kubeproxy.status.process import ProcessCollector
from kubeproxy.status.service_counters import ServiceCounters
from kubeproxy.sync.checks import HealthChecks
from kubeproxy.sync.report import FlowReport, RoundReport

Live: TypeAlias = Counter | Gauge | Histogram

_PROBE_COUNTERS = {
    "/healthz": "kubeproxy_proxy_healthz_total",
    "/livez": "kubeproxy_proxy_livez_total",
}


class Metrics:
    """All metrics of one proxy running in `mode`."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.process = ProcessCollector()
        self._registry = Registry()
        self._live = {s.name: _build(s, self._registry) for s in TABLE if mode in s.modes}
        self._registry.register(self.process)
        self.slis = Slis(self.process)
        self._count_registered()

    # -- the three verbs; they ignore a metric that this mode does not have --

    def add(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add `amount` to the counter called `name`."""
        metric = self._find(name, labels)
        if isinstance(metric, CounterValue):
            metric.inc(amount)

    def set(self, name: str, value: float, /, **labels: str) -> None:
        """Set the gauge called `name`."""
        metric = self._find(name, labels)
        if isinstance(metric, GaugeValue):
            metric.set(value)

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        """Add one observation to the histogram called `name`."""
        self.observe_all(name, (value,), **labels)

    def observe_all(self, name: str, values: Iterable[float], /, **labels: str) -> None:
        """Add many observations of one series. Without any, the series is not created."""
        values = tuple(values)
        metric = self._find(name, labels) if values else None
        if isinstance(metric, HistogramValue):
            for value in values:
                metric.observe(value)

    def _find(
        self, name: str, labels: Mapping[str, str]
    ) -> CounterValue | GaugeValue | HistogramValue | None:
        metric = self._live.get(name)
        if metric is None:
            _require_known(name)
            return None
        return metric.labels(**labels)

    # -- events of the program --

    def build_info(self, **labels: str) -> None:
        """Publish which build runs. The labels are those of `kubernetes_build_info`."""
        self.set("kubernetes_build_info", 1, **labels)

    def feature_gates(self, gates: Iterable[tuple[str, str, bool]]) -> None:
        """Publish every known gate as (name, stage, enabled). A GA gate's stage is empty."""
        for name, stage, enabled in gates:
            self.set("kubernetes_feature_enabled", int(enabled), name=name, stage=stage)

    def sync_queued(self, family: Family, unix_seconds: float) -> None:
        """Record that a sync was requested, or that the sync loop started."""
        name = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
        self.set(name, unix_seconds, ip_family=family.value)

    def service_event(self, pending: int) -> None:
        """Count one Service event of one family. `pending` Services now wait for a sync."""
        self.add("kubeproxy_sync_proxy_rules_service_changes_total")
        self.set("kubeproxy_sync_proxy_rules_service_changes_pending", pending)

    def slice_event(self, pending: int) -> None:
        """Count one accepted EndpointSlice event. `pending` changes now wait for a sync."""
        self.add("kubeproxy_sync_proxy_rules_endpoint_changes_total")
        self.set("kubeproxy_sync_proxy_rules_endpoint_changes_pending", pending)

    def object_rejected(self, kind: str) -> None:
        """Count an API object that was left out because it cannot be used."""
        self.add("kubeproxy_rejected_objects_total", kind=kind)

    def health_answered(self, path: str, code: int) -> None:
        """Count a response of the health server on `/healthz` or `/livez`."""
        self.add(_PROBE_COUNTERS[path], code=str(code))

    # -- one round of the engine --

    def observe_round(self, report: RoundReport) -> None:
        """Record the outcome of a round."""
        family = report.family.value
        self._observe_durations(report, family)
        # The round took all waiting changes, whether or not the kernel accepted them.
        self.set("kubeproxy_sync_proxy_rules_endpoint_changes_pending", 0)
        self.set("kubeproxy_sync_proxy_rules_service_changes_pending", 0)
        if report.is_done:
            self._observe_done(report, family)
        if not report.is_success:
            self._observe_failure(report, family)
        self.set("kubeproxy_refused_service_ports", report.held_back, ip_family=family)
        self.add("kubeproxy_drift_repairs_total", report.drifted_items, ip_family=family)
        for measure in report.measures:
            labels = {**dict(measure.labels), "ip_family": family}
            self._measure(measure.metric, measure.value, labels)

    def _observe_durations(self, report: RoundReport, family: str) -> None:
        seconds = report.duration_seconds
        self.observe("kubeproxy_sync_proxy_rules_duration_seconds", seconds, ip_family=family)
        by_extent = (
            "kubeproxy_sync_full_proxy_rules_duration_seconds"
            if report.is_full
            else "kubeproxy_sync_partial_proxy_rules_duration_seconds"
        )
        self.observe(by_extent, seconds, ip_family=family)
        # Here, too, where nothing is deleted: a counter that begins at 0 shows its first rise.
        self.add("kubeproxy_conntrack_reconciler_deleted_entries_total", 0, ip_family=family)

    def observe_flows(self, report: FlowReport) -> None:
        """Record the outcome of a search for stale flows."""
        family = report.family.value
        if not report.error:
            name = "kubeproxy_conntrack_reconciler_sync_duration_seconds"
            self.observe(name, report.seconds, ip_family=family)
        self.add(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            report.deleted,
            ip_family=family,
        )
        self.add("kubeproxy_reset_flows_total", report.reset, ip_family=family)
        self.add("kubeproxy_reset_closed_sockets_total", report.closed, ip_family=family)
        self.set("kubeproxy_conntrack_owed_service_ports", report.owed, ip_family=family)

    def _observe_done(self, report: RoundReport, family: str) -> None:
        self.set(
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            report.finished_at,
            ip_family=family,
        )
        for policy, count in (
            ("internal", report.no_local_internal),
            ("external", report.no_local_external),
        ):
            name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
            self.set(name, count, traffic_policy=policy, ip_family=family)
        self.observe_all(
            "kubeproxy_network_programming_duration_seconds",
            report.programming_latencies,
            ip_family=family,
        )

    def _observe_failure(self, report: RoundReport, family: str) -> None:
        """Count a failed round once in upstream's counters, and each of its failures in ours."""
        self.add("kubeproxy_sync_proxy_rules_iptables_restore_failures_total", ip_family=family)
        self.add("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", ip_family=family)
        if not report.is_full:
            name = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total"
            self.add(name, ip_family=family)
        failures = len(report.refused) + bool(report.error)
        self.add("kubeproxy_sync_batch_failures_total", failures, ip_family=family)

    def _measure(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        record = {"counter": self.add, "gauge": self.set, "histogram": self.observe}
        record[_KINDS[name]](name, value, **labels)

    # -- serving --

    def serve_packet_counts(self, read: PacketCount) -> None:
        """Show the kernel's packet counters, read at each scrape. Only iptables mode has them."""
        if self.mode == "iptables":
            self._registry.register(PacketCounters(read))

    def serve_service_counters(self, counters: ServiceCounters) -> None:
        """Show counters per Service as well."""
        self._registry.register(counters)

    def serve_health_checks(self, checks: HealthChecks) -> None:
        """Show what health checks of endpoints have found, if there are any."""
        self._registry.register(CheckCounters(checks))

    def families(self) -> Iterator[Metric]:
        """Return everything /metrics shows, as of now."""
        return iter(self._registry.collect())

    def scrape(self, accept: str = "") -> tuple[str, bytes]:
        """Return content type and body for a client with this Accept header."""
        content_type = negotiate(accept)
        return content_type, encode(self.families(), content_type)

    def _count_registered(self) -> None:
        for spec in (s for s in TABLE + SLIS if self.mode in s.modes):
            self.add(
                "registered_metrics_total", stability_level=spec.stability, deprecated_version=""
            )


class Slis:
    """Results of the metrics server's own health checks, for /metrics/slis. They can be reset."""

    def __init__(self, process: ProcessCollector) -> None:
        self._process = process
        self.reset()

    def reset(self) -> None:
        self._registry = Registry()
        self._result, self._results = (_build(s, self._registry) for s in SLIS)
        self._registry.register(OnlyStartTime(self._process))

    def observe(self, name: str, kind: str, *, passed: bool) -> None:
        """Record that the check `name` ran as part of `kind` (healthz, livez, readyz)."""
        gauge, counter = self._result, self._results
        if isinstance(gauge, Gauge) and isinstance(counter, Counter):
            gauge.labels(name=name, type=kind).set(int(passed))
            status = "success" if passed else "error"
            counter.labels(name=name, type=kind, status=status).inc()

    def scrape(self, accept: str = "") -> tuple[str, bytes]:
        content_type = negotiate(accept)
        return content_type, encode(self._registry.collect(), content_type)


def _build(spec: MetricSpec, registry: Registry) -> Live:
    built: Live
    if spec.kind == "histogram":
        built = Histogram(spec.name, spec.help_text, spec.labels, spec.buckets)
    else:
        kind = Counter if spec.kind == "counter" else Gauge
        built = kind(spec.name, spec.help_text, spec.labels)
    registry.register(built)
    return built


_KINDS = {spec.name: spec.kind for spec in TABLE}


def _require_known(name: str) -> None:
    """Raise KeyError for a name without a row: a misspelling, not a metric of another mode."""
    if name not in _KINDS:
        raise KeyError(f"no metric is called {name}; see metric_table")
