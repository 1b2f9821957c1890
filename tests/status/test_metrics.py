"""What a round, an event or a scrape does to the metrics, golden files of upstream included."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.facts.ids import Family, Protocol, ServicePortId
from kubeproxy.modes.base import Measure
from kubeproxy.status.metrics import Metrics
from kubeproxy.sync.report import FlowReport, Refusal, RoundReport

GOLDEN = Path(__file__).parent / "golden"
V4, V6 = Family.IPV4, Family.IPV6


def lines(metrics: Metrics, prefix: str = "kubeproxy_") -> list[str]:
    return [x for x in metrics.scrape()[1].decode().splitlines() if x.startswith(prefix)]


def rules(total: tuple[int, int], last: tuple[int, int]) -> tuple[Measure, ...]:
    """Rule counts of the filter and nat tables."""
    return tuple(
        Measure(name, (("table", table),), count)
        for name, counts in (
            ("kubeproxy_sync_proxy_rules_iptables_total", total),
            ("kubeproxy_sync_proxy_rules_iptables_last", last),
        )
        for table, count in zip(("filter", "nat"), counts, strict=True)
    )


def full(family: Family, filter_rules: int, nat_rules: int) -> RoundReport:
    counts = (filter_rules, nat_rules)
    return RoundReport(family, True, 1.7e9, 0.01, measures=rules(counts, counts))


def iptables(services: int, slices: int, *rounds: RoundReport) -> Metrics:
    """Metrics after so many events (per family for services) and these rounds."""
    metrics = Metrics("iptables")
    for _ in range(services):
        metrics.service_event(pending=1)
    for _ in range(slices):
        metrics.slice_event(pending=1)
    for report in rounds:
        metrics.observe_round(report)
    return metrics


CASES = {
    "iptables-dual-stack": iptables(4, 3, full(V4, 5, 25), full(V6, 5, 19)),
    "iptables-partial-step": iptables(
        6,
        2,
        full(V4, 5, 22),
        full(V6, 3, 5),
        RoundReport(V4, False, 1.7e9, 0.01, measures=rules((5, 22), (5, 9))),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_golden_metrics(case: str) -> None:
    """After the same events and rounds the same lines as upstream's, character for character."""
    expected = (GOLDEN / f"{case}.txt").read_text().splitlines()
    found = set(lines(CASES[case]))
    assert [line for line in expected if line not in found] == []
    names = {line.partition("{")[0].partition(" ")[0] for line in expected}
    shown = {x for x in found if x.partition("{")[0].partition(" ")[0] in names}
    assert shown == set(expected)


def test_golden_metrics_of_conntrack_and_missing_local_endpoints() -> None:
    """A reconciliation that deletes nothing still shows a zero; unused policies show zero."""
    metrics = Metrics("ipvs")
    metrics.observe_round(RoundReport(V4, True, 1.7e9, 0.1))
    metrics.observe_flows(FlowReport(V4, 1.7e9, 0.001))
    metrics.observe_round(RoundReport(V6, True, 1.7e9, 0.1))
    expected = (GOLDEN / "ipvs-multi-port-dns.txt").read_text().splitlines()
    assert set(expected) <= set(lines(metrics))
    golden = (GOLDEN / "iptables-itp-local-with-local.txt").read_text().splitlines()
    assert {x for x in golden if "conntrack" in x} <= set(lines(metrics))


def test_golden_metrics_of_services_without_local_endpoints() -> None:
    golden = (GOLDEN / "iptables-lb-local-no-local.txt").read_text().splitlines()
    wanted = {x for x in golden if "no_local_endpoints" in x}
    count = next(int(x.split()[1]) for x in wanted if "IPv4" in x and "external" in x)
    assert count > 0
    metrics = Metrics("iptables")
    metrics.observe_round(RoundReport(V4, True, 1.7e9, 0.1, no_local_external=count))
    metrics.observe_round(RoundReport(V6, True, 1.7e9, 0.1))
    assert wanted <= set(lines(metrics))


def test_a_successful_round_sets_its_time_and_latencies() -> None:
    metrics = Metrics("nftables")
    metrics.observe_round(
        RoundReport(V4, False, 1763230000.5, 0.1, programming_latencies=(0.1, 0.2, 400.0))
    )
    found = lines(metrics)
    prefix = "kubeproxy_network_programming_duration_seconds"
    stamp = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
    assert f'{stamp}{{ip_family="IPv4"}} 1.7632300005e+09' in found
    assert f'{prefix}_bucket{{ip_family="IPv4",le="0"}} 0' in found
    assert f'{prefix}_bucket{{ip_family="IPv4",le="0.25"}} 2' in found
    assert f'{prefix}_bucket{{ip_family="IPv4",le="300"}} 2' in found
    assert f'{prefix}_count{{ip_family="IPv4"}} 3' in found


@pytest.mark.parametrize(
    ("mode", "is_full", "expected"),
    [
        ("iptables", True, {"sync_proxy_rules_iptables_restore_failures_total"}),
        (
            "iptables",
            False,
            {
                "sync_proxy_rules_iptables_restore_failures_total",
                "sync_proxy_rules_iptables_partial_restore_failures_total",
            },
        ),
        ("nftables", False, {"sync_proxy_rules_nftables_sync_failures_total"}),
        ("ipvs", True, {"sync_proxy_rules_iptables_restore_failures_total"}),
    ],
)
def test_a_failed_round_counts_once_and_keeps_the_last_success(
    mode: str, is_full: bool, expected: set[str]
) -> None:
    """Failures raise the mode's counter by one, ours by each failure; no time of success is set."""
    metrics = Metrics(mode)
    refused = (Refusal(ServicePortId("default", "a", "http", Protocol.TCP), "no"),)
    failed = RoundReport(V6, is_full, 1.7e9, 0.5, error="locked", refused=refused)
    metrics.observe_round(failed)
    found = lines(metrics)
    counted = {x.split("{")[0].removeprefix("kubeproxy_") for x in found if "failures" in x}
    assert counted == expected | {"sync_batch_failures_total"}
    assert all(x.endswith(" 1") for x in found if "failures" in x and "batch" not in x)
    assert 'kubeproxy_sync_batch_failures_total{ip_family="IPv6"} 2' in found
    assert not [x for x in found if "last_timestamp" in x or "no_local" in x]
    assert 'kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1' in found


def test_a_round_that_is_done_except_for_refused_services_is_a_sync() -> None:
    """One Service the kernel refuses must not make the others look unsynced."""
    metrics = Metrics("nftables")
    refused = (Refusal(ServicePortId("default", "a", "http", Protocol.TCP), "no"),)
    done = RoundReport(
        V4, False, 1.7e9, 0.5, refused=refused, held_back=1, programming_latencies=(0.25,)
    )
    metrics.observe_round(done)
    found = lines(metrics)
    last = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
    assert f'{last}{{ip_family="IPv4"}} 1.7e+09' in found
    assert 'kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 1' in found
    assert 'kubeproxy_refused_service_ports{ip_family="IPv4"} 1' in found
    assert 'kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1' in found


@pytest.mark.parametrize("mode", ["iptables", "ipvs", "nftables"])
def test_counters_begin_at_zero(mode: str) -> None:
    """After a first round without anything to delete or repair, so that the first rise shows."""
    metrics = Metrics(mode)
    metrics.observe_round(RoundReport(V4, True, 1.0, 0.1))
    found = lines(metrics)
    for name in ("conntrack_reconciler_deleted_entries_total", "drift_repairs_total"):
        assert f'kubeproxy_{name}{{ip_family="IPv4"}} 0' in found
    assert not any("conntrack_reconciler_sync_duration_seconds_count" in line for line in found)


def test_a_failed_search_for_stale_flows_counts_what_it_deleted_and_what_is_owed() -> None:
    """As upstream, its duration is not observed."""
    metrics = Metrics("nftables")
    metrics.observe_flows(FlowReport(V4, 1.0, 0.1, deleted=3, owed=2, error="no buffer space"))
    found = lines(metrics)
    assert 'kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 3' in found
    assert 'kubeproxy_conntrack_owed_service_ports{ip_family="IPv4"} 2' in found
    assert not any("conntrack_reconciler_sync_duration_seconds_count" in line for line in found)


def test_a_negative_zero_has_no_sign() -> None:
    """Prometheus' library for Go drops it."""
    metrics = Metrics("nftables")
    metrics.set("kubeproxy_config_last_reload_successful", -0.0)
    assert "kubeproxy_config_last_reload_successful 0" in lines(metrics)


def test_pending_changes_are_gone_after_any_round() -> None:
    metrics = Metrics("iptables")
    metrics.slice_event(pending=7)
    metrics.service_event(pending=3)
    assert "kubeproxy_sync_proxy_rules_endpoint_changes_pending 7" in lines(metrics)
    assert "kubeproxy_sync_proxy_rules_service_changes_pending 3" in lines(metrics)
    metrics.observe_round(RoundReport(V4, True, 1.0, 0.1, error="no"))
    assert "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0" in lines(metrics)
    assert "kubeproxy_sync_proxy_rules_service_changes_pending 0" in lines(metrics)


def test_drift_and_rejected_objects_are_counted() -> None:
    metrics = Metrics("userspace")
    metrics.observe_round(RoundReport(V4, True, 1.0, 0.1, drifted_items=3))
    metrics.object_rejected("Service")
    found = lines(metrics)
    assert 'kubeproxy_drift_repairs_total{ip_family="IPv4"} 3' in found
    assert 'kubeproxy_rejected_objects_total{kind="Service"} 1' in found


def test_a_measure_is_recorded_by_the_kind_of_its_metric() -> None:
    """A counter adds up, a gauge is replaced, a metric of another mode is ignored."""
    metrics = Metrics("nftables")
    failed = Measure("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", (), 2)
    foreign = Measure("kubeproxy_sync_proxy_rules_iptables_total", (("table", "nat"),), 9)
    for _ in range(2):
        metrics.observe_round(RoundReport(V4, True, 1.0, 0.1, measures=(failed, foreign)))
    found = lines(metrics)
    assert f'{failed.metric}{{ip_family="IPv4"}} 4' in found
    assert not [x for x in found if "iptables" in x]


def test_a_misspelt_metric_is_an_error() -> None:
    with pytest.raises(KeyError, match="no metric is called"):
        Metrics("ipvs").add("kubeproxy_sync_total")


def test_gates_build_and_queue_time_are_published() -> None:
    metrics = Metrics("iptables")
    metrics.feature_gates([("AllAlpha", "ALPHA", False), ("Stable", "", True)])
    metrics.build_info(
        major="1",
        minor="36",
        git_version="v1.36.4",
        git_commit="",
        git_tree_state="",
        build_date="",
        go_version="",
        compiler="cpython",
        platform="linux/amd64",
    )
    metrics.sync_queued(V6, 1e9)
    gates = lines(metrics, "kubernetes_feature_enabled")
    assert gates == [
        'kubernetes_feature_enabled{name="AllAlpha",stage="ALPHA"} 0',
        'kubernetes_feature_enabled{name="Stable",stage=""} 1',
    ]
    (build,) = lines(metrics, "kubernetes_build_info")
    assert 'git_version="v1.36.4"' in build
    assert build.endswith(" 1")
    queued = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
    assert f'{queued}{{ip_family="IPv6"}} 1e+09' in lines(metrics)


def test_registered_metrics_are_counted_by_stability() -> None:
    found = lines(Metrics("ipvs"), "registered_metrics_total")
    assert [x.partition("} ")[0] + "}" for x in found] == [
        f'registered_metrics_total{{deprecated_version="",stability_level="{level}"}}'
        for level in ("ALPHA", "BETA", "STABLE")
    ]
    assert {"hidden_metrics_total 0", "disabled_metrics_total 0"} <= set(lines(Metrics("ipvs"), ""))


def test_packet_counters_are_read_when_scraped_in_iptables_mode_only() -> None:
    """The kernel's number is shown as it is; an object that does not exist shows nothing."""
    kernel = {"ct_state_invalid_dropped_pkts": 7}
    name = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
    metrics, other = Metrics("iptables"), Metrics("nftables")
    metrics.serve_packet_counts(kernel.get)
    other.serve_packet_counts(kernel.get)
    assert f"{name} 7" in lines(metrics)
    kernel["ct_state_invalid_dropped_pkts"] = 9
    assert f"{name} 9" in lines(metrics)
    assert not [x for x in lines(metrics) if "localhost_nodeports" in x]
    assert not [x for x in lines(other) if "packets" in x]


def test_two_proxies_in_one_process_do_not_share_metrics() -> None:
    first, second = Metrics("iptables"), Metrics("iptables")
    first.slice_event(pending=1)
    assert "kubeproxy_sync_proxy_rules_endpoint_changes_total 0" in lines(second)


def test_process_metrics_describe_this_process() -> None:
    values = Metrics("iptables").process.values()
    assert set(values) == {
        f"process_{name}"
        for name in [
            "cpu_seconds_total",
            "max_fds",
            "network_receive_bytes_total",
            "network_transmit_bytes_total",
            "open_fds",
            "resident_memory_bytes",
            "start_time_seconds",
            "virtual_memory_bytes",
            "virtual_memory_max_bytes",
        ]
    }
    assert 1e6 < values["process_resident_memory_bytes"] < values["process_virtual_memory_bytes"]
    assert values["process_start_time_seconds"] > 1.6e9


def test_process_metrics_without_proc_are_left_out(tmp_path: Path) -> None:
    from kubeproxy.status.process import ProcessCollector

    assert set(ProcessCollector(tmp_path).values()) == {
        "process_max_fds",
        "process_virtual_memory_max_bytes",
    }
