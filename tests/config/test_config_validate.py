"""Every rule a configuration is held to, in upstream's words and order."""

from __future__ import annotations

import pytest

from kubeproxy.config.defaults import complete_platform, set_path
from kubeproxy.config.field_errors import join_errors
from kubeproxy.config.gates import resolve_gates
from kubeproxy.config.types import FlushFrequency, KubeProxyConfiguration, VModuleItem
from kubeproxy.config.validate import unrunnable, validate, validate_logging
from kubeproxy.go.duration import Duration
from kubeproxy.go.quantity import parse_quantity

ROOT = "KubeProxyConfiguration"
CONNTRACK = f"{ROOT}.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration"
LOCAL = f"{ROOT}.DetectLocalConfiguration"
PAIR = (
    "must be a either a single CIDR or dual-stack pair of CIDRs "
    "(e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]"
)
BLOCK = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"
NEGATIVE = Duration(-1)
Changes = dict[str, object]


def completed(changes: Changes) -> KubeProxyConfiguration:
    """The default configuration of a mode, with these paths changed afterwards."""
    mode = changes.get("mode", "iptables")
    config = complete_platform(set_path(KubeProxyConfiguration(), "mode", mode))
    for path, value in changes.items():
        config = set_path(config, path, value)
    return config


def errors(changes: Changes) -> list[str]:
    return [str(error) for error in validate(completed(changes))]


@pytest.mark.parametrize("mode", ["", "iptables", "ipvs", "nftables", "userspace"])
def test_defaults_are_valid_in_every_mode(mode: str) -> None:
    assert errors({"mode": mode}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"iptables.masquerade_bit": 32},
         f"{ROOT}.KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: "
         "must be within the range [0, 31]"),
        ({"mode": "nftables", "iptables.masquerade_bit": -1},
         f"{ROOT}.KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: -1: "
         "must be within the range [0, 31]"),
        ({"mode": "nftables", "nftables.masquerade_bit": 32},
         f"{ROOT}.KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: 32: "
         "must be within the range [0, 31]"),
        *(({"mode": "ipvs", f"ipvs.{attribute}": NEGATIVE},
           f'{ROOT}.KubeProxyIPVSConfiguration.{name}: Invalid value: "-1ns": '
           "must be greater than or equal to 0")
          for attribute, name in (("tcp_timeout", "TCPTimeout"),
                                  ("tcp_fin_timeout", "TCPFinTimeout"),
                                  ("udp_timeout", "UDPTimeout"))),
        ({"mode": "ipvs", "ipvs.exclude_cidrs": ("10.0.0.0/8", "x")},
         f'{ROOT}.KubeProxyIPVSConfiguration.ExcludeCidrs[1]: Invalid value: "x": '
         "must be a valid CIDR"),
        *(({f"conntrack.{attribute}": -1},
           f"{CONNTRACK}.{name}: Invalid value: -1: must be greater than or equal to 0")
          for attribute, name in (("max_per_core", "MaxPerCore"), ("min", "Min"))),
        *(({f"conntrack.{attribute}": NEGATIVE},
           f'{CONNTRACK}.{name}: Invalid value: "-1ns": must be greater than or equal to 0')
          for attribute, name in (("tcp_established_timeout", "TCPEstablishedTimeout"),
                                  ("tcp_close_wait_timeout", "TCPCloseWaitTimeout"),
                                  ("udp_timeout", "UDPTimeout"),
                                  ("udp_stream_timeout", "UDPStreamTimeout"))),
        ({"oom_score_adj": -1001},
         f"{ROOT}.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: -1001: "
         "must be within the range [-1000, 1000]"),
        ({"mode": "kernelspace"},
         f'{ROOT}.Mode.ProxyMode: Invalid value: "kernelspace": must be iptables, ipvs, nftables '
         "or blank (blank means the best-available proxy [currently iptables])"),
        ({"mode": "IPTables"},
         f'{ROOT}.Mode.ProxyMode: Invalid value: "IPTables": must be iptables, ipvs, nftables '
         "or blank (blank means the best-available proxy [currently iptables])"),
        ({"client_connection.burst": -1},
         f"{ROOT}.ClientConnection.Burst: Invalid value: -1: must be greater than or equal to 0"),
        ({"config_sync_period": Duration(0)},
         f'{ROOT}.ConfigSyncPeriod: Invalid value: "0s": must be greater than 0'),
        ({"iptables.min_sync_period": NEGATIVE},
         f'{ROOT}.MinSyncPeriod: Invalid value: "-1ns": must be greater than or equal to 0'),
        ({"mode": "ipvs", "ipvs.min_sync_period": Duration.of_seconds(40)},
         f'{ROOT}.SyncPeriod: Invalid value: "40s": must be greater than or equal to '
         f"{ROOT}.MinSyncPeriod"),
        ({"bind_address": "x"},
         f'{ROOT}.BindAddress: Invalid value: "x": '
         "not a valid textual representation of an IP address"),
        ({"healthz_bind_address": "1.1.1.1"},
         f'{ROOT}.HealthzBindAddress: Invalid value: "1.1.1.1": must be IP:port'),
        ({"healthz_bind_address": "x:80"},
         f'{ROOT}.HealthzBindAddress: Invalid value: "x": must be a valid IP'),
        ({"metrics_bind_address": "1.1.1.1:0"},
         f'{ROOT}.MetricsBindAddress: Invalid value: "0": must be a valid port'),
        ({"metrics_bind_address": "1.1.1.1:http"},
         f'{ROOT}.MetricsBindAddress: Invalid value: "http": must be a valid port'),
        ({"metrics_bind_address": ""},
         f'{ROOT}.MetricsBindAddress: Invalid value: "": must be IP:port'),
        ({"node_port_addresses": ("10.0.0.0/8", "x")},
         f'{ROOT}.NodePortAddresses[1]: Invalid value: "x": must be a valid CIDR'),
        ({"node_port_addresses": ("primary", "x")},
         f'{ROOT}.NodePortAddresses[0]: Invalid value: "primary": '
         "can't use both 'primary' and CIDRs"),
        ({"node_port_addresses": ("10.0.0.0/8", "primary", "x")},
         f'{ROOT}.NodePortAddresses[1]: Invalid value: "primary": '
         "can't use both 'primary' and CIDRs"),
        ({"show_hidden_metrics_for_version": "1.34"},
         f'{ROOT}.ShowHiddenMetricsForVersion: Invalid value: "1.34": invalid '
         'showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: "1.34": must '
         "be omitted or have the value '1.35'; only the previous minor version is allowed"),
        ({"detect_local_mode": "foo"},
         f'{ROOT}.DetectLocalMode: Unsupported value: "foo": supported values: "ClusterCIDR", '
         '"NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", ""'),
        ({"detect_local_mode": "BridgeInterface"},
         f'{LOCAL}.InterfaceName: Invalid value: "": must not be empty'),
        ({"detect_local_mode": "InterfaceNamePrefix"},
         f'{LOCAL}.InterfacePrefix: Invalid value: "": must not be empty'),
        ({"cluster_cidrs": ("",)}, f'{LOCAL}.ClusterCIDRs[0]: Invalid value: "": {BLOCK}'),
        ({"cluster_cidrs": ("10.0.0.0/8", " fd00::/8")},
         f'{LOCAL}.ClusterCIDRs[1]: Invalid value: " fd00::/8": {BLOCK}'),
        ({"cluster_cidrs": ("10.0.0.0/8", "11.0.0.0/8")},
         f'{LOCAL}.ClusterCIDRs: Invalid value: ["10.0.0.0/8","11.0.0.0/8"]: {PAIR}'),
        ({"cluster_cidrs": ("x", "y", "z")},
         f'{LOCAL}.ClusterCIDRs: Invalid value: ["x","y","z"]: {PAIR}'),
        ({"feature_gates": {"Foo": True}},
         f'{ROOT}.featureGates: Invalid value: {{"Foo":true}}: unrecognized feature gate: Foo'),
        ({"logging.format": "foo"},
         f'{ROOT}.logging.format: Invalid value: "foo": Unsupported log format'),
    ],
)  # fmt: skip
def test_a_rule_is_broken(changes: Changes, expected: str) -> None:
    assert errors(changes) == [expected]


def test_a_sync_period_of_zero_breaks_two_rules() -> None:
    assert errors({"iptables.sync_period": Duration(0)}) == [
        f'{ROOT}.SyncPeriod: Invalid value: "0s": must be greater than 0',
        f'{ROOT}.SyncPeriod: Invalid value: "1s": must be greater than or equal to '
        f"{ROOT}.MinSyncPeriod",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "iptables", "ipvs.tcp_timeout": NEGATIVE, "ipvs.exclude_cidrs": ("x",)},
        {"mode": "ipvs", "nftables.masquerade_bit": 99},
        {"mode": "iptables", "nftables.sync_period": NEGATIVE, "ipvs.min_sync_period": NEGATIVE},
        {"healthz_bind_address": ""},
        {"healthz_bind_address": "[::]:65535"},
        {"bind_address": "010.0.0.1"},
        {"cluster_cidrs": ("10.1.2.3/16", "fd00::1/64")},
        {"detect_local_mode": "NodeCIDR", "cluster_cidrs": ("x",)},
        {"detect_local_mode": "BridgeInterface", "detect_local.bridge_interface": "cbr0"},
        {"detect_local_mode": "InterfaceNamePrefix", "detect_local.interface_name_prefix": "v"},
        {"node_port_addresses": ("primary",)},
        {"node_port_addresses": ("0.0.0.0/0", "::/0")},
        {"show_hidden_metrics_for_version": "1.35"},
        {"client_connection.qps": -1.0},
        {"ipvs.scheduler": "anything"},
    ],
)
def test_what_is_accepted(changes: Changes) -> None:
    assert errors(changes) == []


def test_errors_come_in_upstreams_order() -> None:
    broken: Changes = {
        "logging.format": "foo",
        "detect_local_mode": "foo",
        "node_port_addresses": ("x",),
        "metrics_bind_address": "",
        "healthz_bind_address": "x",
        "bind_address": "x",
        "config_sync_period": Duration(0),
        "client_connection.burst": -1,
        "oom_score_adj": 2000,
        "conntrack.min": -1,
        "iptables.masquerade_bit": 99,
        "feature_gates": {"Foo": True},
    }
    order = [error.split(":")[0].removeprefix(f"{ROOT}.") for error in errors(broken)]
    assert order == [
        "featureGates",
        "KubeProxyIPTablesConfiguration.MasqueradeBit",
        "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.Min",
        "KubeProxyLinuxConfiguration.OOMScoreAdj",
        "ClientConnection.Burst",
        "ConfigSyncPeriod",
        "BindAddress",
        "HealthzBindAddress",
        "MetricsBindAddress",
        "NodePortAddresses[0]",
        "DetectLocalMode",
        "logging.format",
    ]


@pytest.mark.parametrize(
    ("changes", "gates", "expected"),
    [
        ({"flush_frequency": FlushFrequency(Duration(0))}, {},
         'logging.flushFrequency: Invalid value: "0s": Must be greater than zero'),
        ({"flush_frequency": FlushFrequency(NEGATIVE, is_number=True)}, {},
         "logging.flushFrequency: Invalid value: -1: Must be greater than zero"),
        ({"format": "foo"}, {}, 'logging.format: Invalid value: "foo": Unsupported log format'),
        ({"format": "json"}, {"LoggingBetaOptions": False},
         "logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"),
        ({"verbosity": 1 << 31}, {},
         "logging.verbosity: Invalid value: 2147483648: Must be <= 2147483647"),
        ({"format": "json", "vmodule": (VModuleItem(file_pattern="a"),)}, {},
         "logging.vmodule: Forbidden: Only supported for text log format"),
        ({"vmodule": (VModuleItem(),)}, {},
         "logging.vmodule[0]: Required value: File pattern must not be empty"),
        ({"vmodule": (VModuleItem(file_pattern="a=b"),)}, {},
         'logging.vmodule[0]: Invalid value: "a=b": '
         "File pattern must not contain equal sign or comma"),
        ({"vmodule": (VModuleItem(file_pattern="a", verbosity=1 << 31),)}, {},
         "logging.vmodule[0]: Invalid value: 2147483648: Must be <= 2147483647"),
        *(({f"options.{name}.split_stream": True}, {},
           f"logging.options.{name}.splitStream: Forbidden: "
           "Feature LoggingAlphaOptions is disabled") for name in ("text", "json")),
        *(({f"options.{name}.info_buffer_size": parse_quantity("1k")}, {},
           f"logging.options.{name}.infoBufferSize: Forbidden: "
           "Feature LoggingAlphaOptions is disabled") for name in ("text", "json")),
    ],
)  # fmt: skip
def test_a_logging_rule_is_broken(changes: Changes, gates: dict[str, bool], expected: str) -> None:
    config = completed({f"logging.{path}": value for path, value in changes.items()})
    found = validate_logging(config.logging, resolve_gates(gates).gates)
    assert [str(error) for error in found] == [expected]


def test_alpha_options_are_accepted_with_their_gate() -> None:
    config = completed({"logging.options.text.split_stream": True})
    gates = resolve_gates({"LoggingAlphaOptions": True}).gates
    assert list(validate_logging(config.logging, gates)) == []


def test_errors_are_joined_as_upstream_joins_them() -> None:
    assert join_errors(["a"]) == "a"
    assert join_errors(["a", "b", "a"]) == "[a, b]"


@pytest.mark.parametrize(
    ("mode", "hours", "runs"),
    [("iptables", 1, True), ("iptables", 2, False), ("nftables", 2, False), ("ipvs", 2, True)],
)
def test_a_minimum_above_an_hour_cannot_run(mode: str, hours: int, runs: bool) -> None:
    period = Duration.of_seconds(hours * 3600)
    found = unrunnable(completed({"mode": mode, f"{mode}.min_sync_period": period}))
    assert (found == []) is runs
