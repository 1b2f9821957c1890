"""The metrics we publish, as a table to hold against the specification line by line.

Names, types, labels and buckets are upstream's to the letter: dashboards and alerts are written
against them. A metric exists only in the modes that its row lists. HELP wording is ours, and the
stability prefix in front of it (`[ALPHA]` …) is upstream's. Counting is left to `metrics`.

To add a metric, write a row here (in `EXTENSIONS` if upstream does not have it) and set it in one
place, under its whole name so that a search finds both: by `add`, `set` or `observe` of `Metrics`,
or, for a figure that belongs to one mode, as a `Measure` of that mode's backend. A name without a
row raises KeyError. In a mode that the row leaves out, setting the metric does nothing. A test
compares this table with the specification and looks for the place that sets each row.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MetricKind = Literal["counter", "gauge", "histogram"]
Stability = Literal["", "ALPHA", "BETA", "STABLE"]

MODES = ("iptables", "ipvs", "nftables", "userspace")


class MetricSpec(msgspec.Struct, frozen=True, gc=False):
    """One metric family: its name and form, and the modes in which it exists."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    modes: tuple[str, ...] = MODES
    buckets: tuple[float, ...] = ()
    stability: Stability = "ALPHA"

    @property
    def help_text(self) -> str:
        """The HELP line, with the stability level in front as component-base writes it."""
        return f"[{self.stability}] {self.help}" if self.stability else self.help


SYNC_BUCKETS = tuple(0.001 * 2**k for k in range(15))
"""1 ms to 16.384 s, doubling."""

# The first bucket is a mistake of upstream that dashboards have come to see: joining its bucket
# lists leaves a zero in front.
PROGRAMMING_BUCKETS = (
    *(0.0, 0.25, 0.5),
    *(float(seconds) for seconds in range(1, 60)),
    *(float(seconds) for seconds in range(60, 120, 5)),
    *(float(seconds) for seconds in range(120, 301, 30)),
)

LATENCY_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
SIZE_BUCKETS = tuple(
    float(n) for n in (64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
)
ROTATION_BUCKETS = tuple(
    float(hours * 3600)
    for hours in (1 / 6, 1 / 2, 1, 4, 24, 24 * 7, 24 * 30, 24 * 90, 24 * 180, 24 * 360, 24 * 1440)
)

_FAMILY = ("ip_family",)
_TABLE = ("table", "ip_family")
_INCREMENTAL = ("iptables", "nftables")
_CONNTRACK = ("iptables", "ipvs", "nftables")
_RESTORING = ("iptables", "ipvs", "userspace")

UPSTREAM = (
    MetricSpec(
        "kubeproxy_sync_proxy_rules_duration_seconds",
        "histogram",
        "Duration of one sync of the proxy rules in seconds",
        _FAMILY,
        buckets=SYNC_BUCKETS,
    ),
    MetricSpec(
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        "histogram",
        "Duration of one full sync of the proxy rules in seconds",
        _FAMILY,
        _INCREMENTAL,
        SYNC_BUCKETS,
    ),
    MetricSpec(
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        "histogram",
        "Duration of one partial sync of the proxy rules in seconds",
        _FAMILY,
        _INCREMENTAL,
        SYNC_BUCKETS,
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "gauge",
        "Unix time of the last successful sync of the proxy rules",
        _FAMILY,
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "gauge",
        "Unix time at which a sync of the proxy rules was last requested",
        _FAMILY,
    ),
    MetricSpec(
        "kubeproxy_network_programming_duration_seconds",
        "histogram",
        "Time from an endpoint's change to the rules that reflect it, in seconds",
        _FAMILY,
        buckets=PROGRAMMING_BUCKETS,
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        "gauge",
        "Endpoint changes not yet in the proxy rules",
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        "counter",
        "Endpoint changes seen",
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_service_changes_pending",
        "gauge",
        "Service changes not yet in the proxy rules",
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_service_changes_total",
        "counter",
        "Service changes seen, once per IP family",
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "gauge",
        "Services with a Local traffic policy that have endpoints, but none on this node",
        ("traffic_policy", "ip_family"),
    ),
    MetricSpec(
        "kubeproxy_proxy_healthz_total", "counter", "Answers of /healthz by status", ("code",)
    ),
    MetricSpec("kubeproxy_proxy_livez_total", "counter", "Answers of /livez by status", ("code",)),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        "counter",
        "Failed runs of iptables-restore",
        _FAMILY,
        _RESTORING,
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        "counter",
        "Failed partial syncs, each followed by a full one",
        _FAMILY,
        ("iptables",),
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_iptables_total",
        "gauge",
        "iptables rules we own",
        _TABLE,
        ("iptables",),
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_iptables_last",
        "gauge",
        "iptables rules written by the last sync",
        _TABLE,
        ("iptables",),
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        "counter",
        "Failed nftables transactions",
        _FAMILY,
        ("nftables",),
    ),
    MetricSpec(
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        "counter",
        "Failed removals of stale nftables objects",
        _FAMILY,
        ("nftables",),
    ),
    MetricSpec(
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        "histogram",
        "Duration of one removal of stale connection tracking entries in seconds",
        _FAMILY,
        _CONNTRACK,
        SYNC_BUCKETS,
    ),
    MetricSpec(
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        "counter",
        "Connection tracking entries deleted",
        _FAMILY,
        _CONNTRACK,
    ),
)

PACKET_COUNTERS = (
    MetricSpec(
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        "counter",
        "Packets dropped because connection tracking found them invalid",
        modes=("iptables",),
    ),
    MetricSpec(
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        "counter",
        "Packets accepted on node ports of the loopback interface",
        modes=("iptables",),
    ),
)
"""Read from the kernel when scraped. They are absent where the kernel has no such counter."""

NFACCT_OBJECTS = {
    "kubeproxy_iptables_ct_state_invalid_dropped_packets_total": "ct_state_invalid_dropped_pkts",
    "kubeproxy_iptables_localhost_nodeports_accepted_packets_total": "localhost_nps_accepted_pkts",
}
"""The kernel's accounting object behind each packet counter."""

_SERVICE = ("namespace", "name")

SERVICE_COUNTERS = (
    MetricSpec(
        "kubeproxy_service_connections_total",
        "counter",
        "New connections to the Service that this node has sent to an endpoint",
        _SERVICE,
    ),
    MetricSpec(
        "kubeproxy_service_bytes_total",
        "counter",
        "Bytes of ended connections, sent to and received from the Service's endpoints",
        (*_SERVICE, "direction"),
    ),
    MetricSpec(
        "kubeproxy_service_refused_packets_total",
        "counter",
        "Packets to the Service that this node rejected or dropped, and why",
        (*_SERVICE, "action", "reason"),
    ),
    MetricSpec(
        "kubeproxy_service_metrics_overruns_total",
        "counter",
        "Times the kernel dropped events because they came too fast; counts above are then too low",
    ),
)
"""Only with --service-metrics. They are collected: see `service_counters`."""

HEALTH_CHECKS = (
    MetricSpec(
        "kubeproxy_health_checks_total",
        "counter",
        "Health checks of endpoints that have ended, by kind of check and result",
        ("kind", "result"),
    ),
    MetricSpec(
        "kubeproxy_health_check_endpoints",
        "gauge",
        "Addresses and ports whose health is checked, each once per distinct check",
        ("state",),
    ),
    MetricSpec(
        "kubeproxy_health_checks_waiting",
        "gauge",
        "Health checks that are due and wait, because too many are under way",
    ),
)
"""Only while a Service asks for checks. They are collected: see `check_counters`."""

_VERB_HOST = ("verb", "host")

CLIENT = (
    MetricSpec(
        "rest_client_requests_total",
        "counter",
        "Requests to the API server by status, method and host",
        ("code", "method", "host"),
    ),
    MetricSpec(
        "rest_client_request_duration_seconds",
        "histogram",
        "Duration of requests to the API server in seconds",
        _VERB_HOST,
        buckets=LATENCY_BUCKETS,
    ),
    MetricSpec(
        "rest_client_rate_limiter_duration_seconds",
        "histogram",
        "Time requests waited for the client's rate limit in seconds",
        _VERB_HOST,
        buckets=LATENCY_BUCKETS,
    ),
    MetricSpec(
        "rest_client_request_size_bytes",
        "histogram",
        "Size of requests to the API server in bytes",
        _VERB_HOST,
        buckets=SIZE_BUCKETS,
    ),
    MetricSpec(
        "rest_client_response_size_bytes",
        "histogram",
        "Size of answers of the API server in bytes",
        _VERB_HOST,
        buckets=SIZE_BUCKETS,
    ),
    MetricSpec(
        "rest_client_request_retries_total",
        "counter",
        "Repeated requests to the API server by status, verb and host",
        ("code", "verb", "host"),
    ),
    MetricSpec(
        "rest_client_dns_resolution_duration_seconds",
        "histogram",
        "Duration of name resolution in seconds",
        ("host",),
        buckets=LATENCY_BUCKETS[:-1],
    ),
    MetricSpec(
        "rest_client_exec_plugin_call_total",
        "counter",
        "Runs of the credential plugin by exit code and outcome",
        ("code", "call_status"),
    ),
    MetricSpec(
        "rest_client_exec_plugin_ttl_seconds",
        "gauge",
        "Seconds until the credential plugin's shortest-lived certificate expires; +Inf if none",
    ),
    MetricSpec(
        "rest_client_exec_plugin_certificate_rotation_age",
        "histogram",
        "Age of the credential plugin's last certificate when it was replaced, in seconds",
        buckets=ROTATION_BUCKETS,
    ),
    MetricSpec(
        "rest_client_transport_cache_entries", "gauge", "Connections pools kept to API servers"
    ),
    MetricSpec(
        "rest_client_transport_cert_rotation_gc_calls_total",
        "counter",
        "Certificate rotations that ended with their connection pool",
    ),
    MetricSpec(
        "rest_client_transport_create_calls_total",
        "counter",
        "Connection pools asked for, by hit or miss",
        ("result",),
    ),
)

GENERIC = (
    MetricSpec(
        "kubernetes_build_info",
        "gauge",
        "Always 1; the labels say what is running",
        (
            "major",
            "minor",
            "git_version",
            "git_commit",
            "git_tree_state",
            "build_date",
            "go_version",
            "compiler",
            "platform",
        ),
        stability="BETA",
    ),
    MetricSpec(
        "kubernetes_feature_enabled",
        "gauge",
        "1 if the feature gate is on",
        ("name", "stage"),
        stability="BETA",
    ),
    MetricSpec(
        "registered_metrics_total",
        "counter",
        "Registered metrics by stability level and deprecation",
        ("stability_level", "deprecated_version"),
        stability="BETA",
    ),
    MetricSpec(
        "cardinality_enforcement_unexpected_categorizations_total",
        "counter",
        "Label values outside of an allowed list",
    ),
    MetricSpec(
        "hidden_metrics_total", "counter", "Metrics hidden by deprecation", stability="BETA"
    ),
    MetricSpec(
        "disabled_metrics_total", "counter", "Metrics disabled by configuration", stability="BETA"
    ),
)

# ---- Ours: not in upstream. Names start with kubeproxy_ and follow the same rules. ----
EXTENSIONS = (
    MetricSpec(
        "kubeproxy_config_last_reload_successful",
        "gauge",
        "0 if the configuration file has changed to what cannot be used, else 1",
    ),
    MetricSpec(
        "kubeproxy_distribution_info",
        "gauge",
        "Always 1; the labels say which version of this program runs, and of which commit",
        ("version", "commit"),
    ),
    MetricSpec(
        "kubeproxy_drift_repairs_total",
        "counter",
        "Kernel objects found changed by somebody else and repaired",
        _FAMILY,
    ),
    MetricSpec(
        "kubeproxy_rejected_objects_total",
        "counter",
        "API objects left out because they cannot be used",
        ("kind",),
    ),
    MetricSpec(
        "kubeproxy_conntrack_owed_service_ports",
        "gauge",
        "Service ports whose stale flows could not be looked for or deleted yet; tried again",
        _FAMILY,
    ),
    MetricSpec(
        "kubeproxy_reset_flows_total",
        "counter",
        "Flows deleted because their endpoint has gone and their Service lets them drain or resets"
        " them; in userspace mode the carrier closes connections and counts none here",
        _FAMILY,
    ),
    MetricSpec(
        "kubeproxy_reset_closed_sockets_total",
        "counter",
        "Sockets of this node that were closed along with such flows",
        _FAMILY,
    ),
    MetricSpec(
        "kubeproxy_refused_service_ports",
        "gauge",
        "Service ports that the kernel refuses at present; they are retried with a growing pause",
        _FAMILY,
    ),
    MetricSpec(
        "kubeproxy_sync_batch_failures_total",
        "counter",
        "Batches the kernel refused",
        _FAMILY,
    ),
    MetricSpec(
        "kubeproxy_nftables_localhost_nodeport_listeners",
        "gauge",
        "Listeners for node ports on the loopback address",
        _FAMILY,
        ("nftables",),
    ),
    MetricSpec(
        "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
        "counter",
        "Listeners on the loopback address that could not be made",
        _FAMILY,
        ("nftables",),
    ),
)

SLIS = (
    MetricSpec(
        "kubernetes_healthcheck",
        "gauge",
        "Result of the last run of a health check",
        ("name", "type"),
        stability="STABLE",
    ),
    MetricSpec(
        "kubernetes_healthchecks_total",
        "counter",
        "Results of health checks",
        ("name", "type", "status"),
        stability="STABLE",
    ),
)
"""Served on /metrics/slis only."""

TABLE = UPSTREAM + CLIENT + GENERIC + EXTENSIONS
"""Everything on /metrics except packet counters and process metrics, which are collected."""
