"""Absent, zero and explicit values; the choice of mode; flags that depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.config.decode import decode_config
from kubeproxy.config.defaults import apply_defaults, get_path
from kubeproxy.config.load import Loaded, load
from kubeproxy.config.parse import parse_flags
from kubeproxy.config.types import FlushFrequency, KubeProxyConfiguration
from kubeproxy.go.duration import Duration

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def seconds(value: float) -> Duration:
    return Duration.of_seconds(value)


def from_file(body: str) -> KubeProxyConfiguration:
    return apply_defaults(decode_config(HEAD + body).config)


def load_file(tmp_path: Path, body: str, *argv: str) -> Loaded:
    path = tmp_path / "config.yaml"
    path.write_text(HEAD + body)
    return load(parse_flags([f"--config={path}", *argv]))


def from_flags(*argv: str) -> KubeProxyConfiguration:
    return load(parse_flags(argv)).config


@pytest.mark.parametrize(
    ("path", "absent", "body", "explicit"),
    [
        ("client_connection.content_type", "application/vnd.kubernetes.protobuf",
         "clientConnection: {contentType: ''}", "application/vnd.kubernetes.protobuf"),
        ("client_connection.qps", 5.0, "clientConnection: {qps: 0}", 5.0),
        ("client_connection.qps", 5.0, "clientConnection: {qps: -1}", -1.0),
        ("client_connection.burst", 10, "clientConnection: {burst: 0}", 10),
        ("logging.format", "text", "logging: {format: ''}", "text"),
        ("logging.flush_frequency", FlushFrequency(), "logging: {flushFrequency: 0}",
         FlushFrequency()),
        ("bind_address", "0.0.0.0", "bindAddress: ''", "0.0.0.0"),
        ("iptables.masquerade_bit", 14, "iptables: {masqueradeBit: 0}", 0),
        ("iptables.localhost_node_ports", True, "iptables: {localhostNodePorts: false}", False),
        ("iptables.sync_period", seconds(30), "iptables: {syncPeriod: 0s}", seconds(30)),
        ("iptables.min_sync_period", seconds(1), "iptables: {minSyncPeriod: 0s}", seconds(1)),
        ("ipvs.sync_period", seconds(30), "ipvs: {syncPeriod: 0s}", seconds(30)),
        ("ipvs.min_sync_period", seconds(0), "ipvs: {minSyncPeriod: 0s}", seconds(0)),
        ("nftables.masquerade_bit", 14, "nftables: {masqueradeBit: 0}", 0),
        ("nftables.sync_period", seconds(30), "nftables: {syncPeriod: 0s}", seconds(30)),
        ("nftables.min_sync_period", seconds(1), "nftables: {minSyncPeriod: 0s}", seconds(1)),
        ("oom_score_adj", -999, "oomScoreAdj: 0", 0),
        ("conntrack.max_per_core", 32768, "conntrack: {maxPerCore: 0}", 0),
        ("conntrack.min", 131072, "conntrack: {min: 0}", 0),
        ("conntrack.tcp_established_timeout", seconds(86400),
         "conntrack: {tcpEstablishedTimeout: 0s}", seconds(0)),
        ("conntrack.tcp_close_wait_timeout", seconds(3600),
         "conntrack: {tcpCloseWaitTimeout: 0s}", seconds(0)),
        ("config_sync_period", seconds(900), "configSyncPeriod: 0s", seconds(900)),
        ("port_range", "", "portRange: 1-2", ""),
    ],
)  # fmt: skip
def test_zero_is_or_is_not_the_default(
    path: str, absent: object, body: str, explicit: object
) -> None:
    assert get_path(from_file(""), path) == absent
    assert get_path(from_file(body), path) == explicit


@pytest.mark.parametrize(
    ("body", "healthz", "metrics"),
    [
        ("", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("bindAddress: 10.0.0.1", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("bindAddress: '::'", "[::]:10256", "[::1]:10249"),
        ("bindAddress: nonsense", "[::]:10256", "[::1]:10249"),
        ("{healthzBindAddress: 1.1.1.1, metricsBindAddress: 'fd00::1'}",
         "1.1.1.1:10256", "[fd00::1]:10249"),
        ("{healthzBindAddress: 1.1.1.1:5, metricsBindAddress: foo}", "1.1.1.1:5", "foo"),
    ],
)  # fmt: skip
def test_server_addresses_follow_bind_address(body: str, healthz: str, metrics: str) -> None:
    text = body[1:-1].replace(", ", "\n") if body.startswith("{") else body
    config = from_file(text)
    assert (config.healthz_bind_address, config.metrics_bind_address) == (healthz, metrics)


def test_a_bind_address_flag_leaves_the_servers_alone() -> None:
    config = from_flags("--bind-address=::")
    assert config.healthz_bind_address == "0.0.0.0:10256"


@pytest.mark.parametrize(
    ("mode", "sync", "minimum", "everything"),
    [
        ("", 10, 1, True),
        ("iptables", 10, 1, True),
        ("userspace", 10, 1, True),
        ("ipvs", 20, 2, True),
        ("nftables", 30, 3, False),
    ],
)
def test_the_chosen_modes_values_count_and_others_are_emptied(
    tmp_path: Path, mode: str, sync: float, minimum: float, everything: bool
) -> None:
    config = load_file(
        tmp_path,
        f"mode: '{mode}'\n"
        "iptables: {syncPeriod: 10s, minSyncPeriod: 1s, masqueradeAll: true, masqueradeBit: 1}\n"
        "ipvs: {syncPeriod: 20s, minSyncPeriod: 2s}\n"
        "nftables: {syncPeriod: 30s, minSyncPeriod: 3s, masqueradeBit: 2}\n",
    ).config
    assert config.mode == (mode or "iptables")
    assert (config.sync_period_seconds, config.min_sync_period_seconds) == (sync, minimum)
    assert config.masquerade_all is everything
    assert config.masquerade_bit == (2 if mode == "nftables" else 1)
    periods = [
        section.sync_period.seconds for section in (config.iptables, config.ipvs, config.nftables)
    ]
    assert sorted(periods) == [0, 0, sync]


@pytest.mark.parametrize(
    ("mode", "sync", "minimum"), [("iptables", 5, 0), ("nftables", 5, 0), ("ipvs", 7, 2)]
)
def test_period_flags_apply_by_mode(mode: str, sync: float, minimum: float) -> None:
    config = from_flags(
        f"--proxy-mode={mode}", "--iptables-sync-period=5s", "--iptables-min-sync-period=0",
        "--ipvs-sync-period=7s", "--ipvs-min-sync-period=2s",
    )  # fmt: skip
    assert (config.sync_period_seconds, config.min_sync_period_seconds) == (sync, minimum)


@pytest.mark.parametrize("mode", ["", "iptables", "ipvs", "nftables", "userspace"])
def test_without_period_flags_every_mode_has_the_same_periods(mode: str) -> None:
    config = from_flags(f"--proxy-mode={mode}")
    assert (config.sync_period_seconds, config.min_sync_period_seconds) == (30, 1)


@pytest.mark.parametrize("mode", ["iptables", "ipvs", "nftables", "userspace"])
def test_masquerade_all_works_in_every_mode(mode: str) -> None:
    assert from_flags(f"--proxy-mode={mode}", "--masquerade-all").masquerade_all


def test_the_iptables_bit_flag_has_no_effect_in_nftables_mode() -> None:
    argv = ("--iptables-masquerade-bit=3",)
    assert from_flags("--proxy-mode=nftables", *argv).masquerade_bit == 14
    assert from_flags("--proxy-mode=ipvs", *argv).masquerade_bit == 3


@pytest.mark.parametrize(
    ("argv", "addresses"),
    [
        (["--proxy-mode=nftables"], ("primary",)),
        (["--proxy-mode=nftables", "--nodeport-addresses="], ("primary",)),
        (["--proxy-mode=nftables", "--nodeport-addresses=10.0.0.0/8"], ("10.0.0.0/8",)),
        (["--proxy-mode=iptables"], None),
        (["--proxy-mode=iptables", "--nodeport-addresses="], ()),
    ],
)
def test_nftables_mode_restricts_node_ports_to_primary(
    argv: list[str], addresses: tuple[str, ...] | None
) -> None:
    assert from_flags(*argv).node_port_addresses == addresses


def test_blank_modes_are_chosen_and_logged() -> None:
    loaded = load(parse_flags([]))
    assert (loaded.config.mode, loaded.config.detect_local_mode) == ("iptables", "ClusterCIDR")
    assert [note.message for note in loaded.notes] == ["Using iptables proxy"]
    assert load(parse_flags(["--proxy-mode=iptables"])).notes == ()


@pytest.mark.parametrize(
    ("argv", "healthz", "metrics"),
    [
        ([], "0.0.0.0:10256", "127.0.0.1:10249"),
        (["--healthz-bind-address=", "--metrics-bind-address="], "0.0.0.0:10256",
         "127.0.0.1:10249"),
        (["--healthz-bind-address=1.1.1.1", "--metrics-bind-address=::1"], "1.1.1.1:10256",
         "[::1]:10249"),
        (["--healthz-bind-address=1.1.1.1", "--healthz-port=5"], "1.1.1.1:5", "127.0.0.1:10249"),
        (["--healthz-bind-address=1.1.1.1:2", "--healthz-port=5"], "1.1.1.1:2",
         "127.0.0.1:10249"),
        (["--healthz-port=0"], "", "127.0.0.1:10249"),
        (["--metrics-port=0"], "0.0.0.0:10256", ""),
        (["--write-config-to=x", "--healthz-port=0", "--metrics-port=0"], "0.0.0.0:10256",
         "127.0.0.1:10249"),
        (["--write-config-to=x", "--healthz-bind-address=1.1.1.1"], "1.1.1.1",
         "127.0.0.1:10249"),
    ],
)  # fmt: skip
def test_address_and_port_flags(argv: list[str], healthz: str, metrics: str) -> None:
    config = from_flags(*argv)
    assert (config.healthz_bind_address, config.metrics_bind_address) == (healthz, metrics)


def test_port_flags_are_ignored_with_a_file(tmp_path: Path) -> None:
    config = load_file(tmp_path, "", "--healthz-port=0", "--metrics-port=0").config
    assert config.healthz_bind_address == "0.0.0.0:10256"


def test_the_hostname_flag_wins_over_the_file(tmp_path: Path) -> None:
    assert load_file(tmp_path, "hostnameOverride: b", "--hostname-override= A ").config == (
        load_file(tmp_path, "hostnameOverride: a").config
    )


def test_an_explicitly_empty_cluster_cidr_differs_from_none() -> None:
    assert from_flags().cluster_cidrs == ()
    assert from_flags("--cluster-cidr=").cluster_cidrs == ("",)


def test_a_flush_frequency_flag_keeps_the_files_form(tmp_path: Path) -> None:
    loaded = load_file(tmp_path, "logging: {flushFrequency: 7}", "--log-flush-frequency=2s")
    assert loaded.config.logging.flush_frequency == FlushFrequency(seconds(2), is_number=True)


def test_the_files_bytes_are_kept_for_the_watch(tmp_path: Path) -> None:
    assert load_file(tmp_path, "mode: ipvs\n").config_content == f"{HEAD}mode: ipvs\n".encode()
