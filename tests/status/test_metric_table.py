"""The metric table against the specification, restated independently: name, type, labels, modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kubeproxy
from kubeproxy.status.metric_table import SLIS, TABLE, MetricSpec
from kubeproxy.status.metrics import Metrics

ALL = "iptables ipvs nftables userspace"

SPECIFICATION = f"""
sync_proxy_rules_duration_seconds                    histogram ip_family {ALL}
sync_full_proxy_rules_duration_seconds               histogram ip_family iptables nftables
sync_partial_proxy_rules_duration_seconds            histogram ip_family iptables nftables
sync_proxy_rules_last_timestamp_seconds              gauge ip_family {ALL}
sync_proxy_rules_last_queued_timestamp_seconds       gauge ip_family {ALL}
network_programming_duration_seconds                 histogram ip_family {ALL}
sync_proxy_rules_endpoint_changes_pending            gauge - {ALL}
sync_proxy_rules_endpoint_changes_total              counter - {ALL}
sync_proxy_rules_service_changes_pending             gauge - {ALL}
sync_proxy_rules_service_changes_total               counter - {ALL}
sync_proxy_rules_no_local_endpoints_total            gauge traffic_policy,ip_family {ALL}
proxy_healthz_total                                  counter code {ALL}
proxy_livez_total                                    counter code {ALL}
sync_proxy_rules_iptables_restore_failures_total     counter ip_family iptables ipvs userspace
sync_proxy_rules_iptables_partial_restore_failures_total counter ip_family iptables
sync_proxy_rules_iptables_total                      gauge table,ip_family iptables
sync_proxy_rules_iptables_last                       gauge table,ip_family iptables
sync_proxy_rules_nftables_sync_failures_total        counter ip_family nftables
sync_proxy_rules_nftables_cleanup_failures_total     counter ip_family nftables
conntrack_reconciler_sync_duration_seconds           histogram ip_family iptables ipvs nftables
conntrack_reconciler_deleted_entries_total           counter ip_family iptables ipvs nftables
config_last_reload_successful                        gauge - {ALL}
distribution_info                                    gauge version,commit {ALL}
drift_repairs_total                                  counter ip_family {ALL}
rejected_objects_total                               counter kind {ALL}
conntrack_owed_service_ports                         gauge ip_family {ALL}
reset_flows_total                                    counter ip_family {ALL}
reset_closed_sockets_total                           counter ip_family {ALL}
refused_service_ports                                gauge ip_family {ALL}
sync_batch_failures_total                            counter ip_family {ALL}
nftables_localhost_nodeport_listeners                gauge ip_family nftables
nftables_localhost_nodeport_listener_creation_failures_total counter ip_family nftables
"""

ROWS = [line.split() for line in SPECIFICATION.strip().splitlines()]

# Upstream registers these too. Here nothing happens that they could count.
NEVER_SET = {
    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
    "rest_client_exec_plugin_certificate_rotation_age",
    "rest_client_transport_cert_rotation_gc_calls_total",
    "cardinality_enforcement_unexpected_categorizations_total",
    "hidden_metrics_total",
    "disabled_metrics_total",
}

SYNC_BOUNDS = [
    "0.001",
    "0.002",
    "0.004",
    "0.008",
    "0.016",
    "0.032",
    "0.064",
    "0.128",
    "0.256",
    "0.512",
    "1.024",
    "2.048",
    "4.096",
    "8.192",
    "16.384",
    "+Inf",
]


def touch(metrics: Metrics, spec: MetricSpec) -> None:
    """Give the metric a first value, so that it shows."""
    record = {"counter": metrics.add, "gauge": metrics.set, "histogram": metrics.observe}
    record[spec.kind](spec.name, 1, **dict.fromkeys(spec.labels, "x"))


def touched(mode: str) -> str:
    metrics = Metrics(mode)
    for spec in TABLE:
        touch(metrics, spec)
    return metrics.scrape()[1].decode()


def bounds(body: str, name: str) -> list[str]:
    lines = (x for x in body.splitlines() if x.startswith(name + "_bucket"))
    return [line.partition('le="')[2].partition('"')[0] for line in lines]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_metric_is_served_as_specified_in_its_modes_only(row: list[str]) -> None:
    """Name, type and labels appear in the modes of the specification and nowhere else."""
    name, kind, labels, *modes = row
    for mode in ALL.split():
        lines = touched(mode).splitlines()
        assert (f"# TYPE kubeproxy_{name} {kind}" in lines) == (mode in modes)
        assert any(x.startswith(f"# HELP kubeproxy_{name} [ALPHA] ") for x in lines) == (
            mode in modes
        )
    spec = next(s for s in TABLE if s.name == f"kubeproxy_{name}")
    assert ",".join(spec.labels) == labels.replace("-", "")


def test_no_metric_of_ours_is_missing_from_the_specification() -> None:
    """A new metric is added to the list above as well."""
    ours = {s.name for s in TABLE if s.name.startswith("kubeproxy_")}
    assert ours == {f"kubeproxy_{row[0]}" for row in ROWS}


def test_the_place_that_sets_a_metric_is_found_by_its_whole_name() -> None:
    """Each row has such a place in exactly one file, and a search for the name finds it."""
    files = [
        path.read_text()
        for path in Path(kubeproxy.__file__).parent.rglob("*.py")
        if path.name != "metric_table.py"
    ]
    places = {s.name: sum(f'"{s.name}"' in text for text in files) for s in TABLE}
    assert {name for name, count in places.items() if count == 0} == NEVER_SET
    assert max(places.values()) == 1


@pytest.mark.parametrize(
    "name",
    [
        "kubeproxy_sync_proxy_rules_duration_seconds",
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
    ],
)
def test_sync_durations_double_from_a_millisecond(name: str) -> None:
    """Bucket bounds read exactly as upstream prints them."""
    assert bounds(touched("iptables"), name) == SYNC_BOUNDS


def test_network_programming_has_the_zero_bucket() -> None:
    """Upstream's odd first bucket is kept: dashboards compare buckets."""
    found = bounds(touched("ipvs"), "kubeproxy_network_programming_duration_seconds")
    expected = ["0", "0.25", "0.5", *map(str, range(1, 60)), *map(str, range(60, 120, 5))]
    assert found == [*expected, *map(str, range(120, 301, 30)), "+Inf"]


def test_client_metrics_have_upstream_buckets() -> None:
    """Latency in seconds, sizes in bytes; large bounds in Go's exponent form."""
    body = touched("nftables")
    latency = ["0.005", "0.025", "0.1", "0.25", "0.5", "1", "2", "4", "8", "15", "30", "60", "+Inf"]
    assert bounds(body, "rest_client_request_duration_seconds") == latency
    assert bounds(body, "rest_client_rate_limiter_duration_seconds") == latency
    sizes = [
        "64",
        "256",
        "512",
        "1024",
        "4096",
        "16384",
        "65536",
        "262144",
        "1.048576e+06",
        "4.194304e+06",
        "1.6777216e+07",
        "+Inf",
    ]
    assert bounds(body, "rest_client_request_size_bytes") == sizes
    assert bounds(body, "rest_client_response_size_bytes") == sizes


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("rest_client_requests_total", "code method host"),
        ("rest_client_request_retries_total", "code verb host"),
        ("rest_client_dns_resolution_duration_seconds", "host"),
        ("rest_client_request_size_bytes", "verb host"),
        ("kubernetes_feature_enabled", "name stage"),
        (
            "kubernetes_build_info",
            "major minor git_version git_commit git_tree_state build_date go_version compiler "
            "platform",
        ),
        ("kubernetes_healthcheck", "name type"),
        ("kubernetes_healthchecks_total", "name type status"),
    ],
)
def test_generic_metrics_have_upstream_labels(name: str, labels: str) -> None:
    spec = next(s for s in TABLE + SLIS if s.name == name)
    assert spec.labels == tuple(labels.split())


@pytest.mark.parametrize("mode", ALL.split())
def test_what_we_serve_is_prometheus_text(mode: str) -> None:
    """An independent parser reads every family back."""
    families = {f.name for f in text_string_to_metric_families(touched(mode))}
    assert {"kubeproxy_sync_proxy_rules_duration_seconds", "process_open_fds"} <= families


def test_what_upstream_has_with_zero_is_there() -> None:
    """Generic metrics that its libraries register, and their stability."""
    body = Metrics("nftables").scrape()[1].decode()
    for name in (
        "cardinality_enforcement_unexpected_categorizations_total",
        "rest_client_transport_cert_rotation_gc_calls_total",
    ):
        assert f"# HELP {name} [ALPHA] " in body
        assert f"\n{name} 0\n" in body
    assert "# HELP kubernetes_build_info [BETA] " in touched("nftables")


def test_labelled_metrics_appear_only_after_first_use() -> None:
    body = Metrics("iptables").scrape()[1].decode()
    assert "kubeproxy_proxy_healthz_total" not in body
    assert "kubeproxy_sync_proxy_rules_service_changes_total 0\n" in body
