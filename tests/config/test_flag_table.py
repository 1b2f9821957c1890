"""Every flag of upstream: its type, default, the field it sets, and whether it survives `--config`."""

# ruff: noqa: E501 - a row of the table stays on one line

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.config.flags import ALL_FLAGS, EXTENSION_FLAGS, FLAGS, UPSTREAM_FLAGS, Extensions
from kubeproxy.config.load import load
from kubeproxy.config.parse import parse_flags
from kubeproxy.config.usage import help_text
from kubeproxy.config.write import config_document
from kubeproxy.go.duration import Duration


class Row(NamedTuple):
    name: str
    kind: str
    default: str
    with_config: bool
    field: str
    sample: str | None
    written: object


# fmt: off
ROWS = (
    Row('bind-address', 'ip', '0.0.0.0', False, 'bindAddress', '10.0.0.9', '10.0.0.9'),
    Row('bind-address-hard-fail', '', 'false', False, 'bindAddressHardFail', 'true', True),
    Row('boot-id-file', 'string', '/proc/sys/kernel/random/boot_id', False, '', None, None),
    Row('cleanup', '', 'false', True, '', None, None),
    Row('cluster-cidr', 'string', '', False, 'clusterCIDR', '10.1.0.0/16,fd00::/64', '10.1.0.0/16,fd00::/64'),
    Row('config', 'string', '', True, '', None, None),
    Row('config-sync-period', 'duration', '15m0s', False, 'configSyncPeriod', '7m', '7m0s'),
    Row('conntrack-max-per-core', 'int32', '32768', False, 'conntrack.maxPerCore', '5', 5),
    Row('conntrack-min', 'int32', '131072', False, 'conntrack.min', '0x10', 16),
    Row('conntrack-tcp-be-liberal', '', 'false', False, 'conntrack.tcpBeLiberal', '1', True),
    Row('conntrack-tcp-timeout-close-wait', 'duration', '1h0m0s', False, 'conntrack.tcpCloseWaitTimeout', '5s', '5s'),
    Row('conntrack-tcp-timeout-established', 'duration', '24h0m0s', False, 'conntrack.tcpEstablishedTimeout', '0', '0s'),
    Row('conntrack-udp-timeout', 'duration', '0s', False, 'conntrack.udpTimeout', '3s', '3s'),
    Row('conntrack-udp-timeout-stream', 'duration', '0s', False, 'conntrack.udpStreamTimeout', '4s', '4s'),
    Row('detect-local-mode', 'LocalMode', '', False, 'detectLocalMode', 'NodeCIDR', 'NodeCIDR'),
    Row('feature-gates', 'mapStringBool', '', False, 'featureGates', 'ComponentFlagz=false', {'ComponentFlagz': False}),
    Row('healthz-bind-address', 'ipport', '0.0.0.0:10256', False, 'healthzBindAddress', '10.0.0.9:1', '10.0.0.9:1'),
    Row('healthz-port', 'int32', '10256', False, '', None, None),
    Row('help', '', 'false', True, '', None, None),
    Row('hostname-override', 'string', '', True, 'hostnameOverride', ' Node-A ', 'node-a'),
    Row('init-only', '', 'false', True, '', None, None),
    Row('iptables-localhost-nodeports', '', 'true', False, 'iptables.localhostNodePorts', 'false', False),
    Row('iptables-masquerade-bit', 'int32', '14', False, 'iptables.masqueradeBit', '3', 3),
    Row('iptables-min-sync-period', 'duration', '1s', False, '', None, None),
    Row('iptables-sync-period', 'duration', '30s', False, '', None, None),
    Row('ipvs-exclude-cidrs', 'strings', '[]', False, 'ipvs.excludeCIDRs', '10.0.0.0/8,fd00::/8', ['10.0.0.0/8', 'fd00::/8']),
    Row('ipvs-min-sync-period', 'duration', '1s', False, '', None, None),
    Row('ipvs-scheduler', 'string', '', False, 'ipvs.scheduler', 'lc', 'lc'),
    Row('ipvs-strict-arp', '', 'false', False, 'ipvs.strictARP', 't', True),
    Row('ipvs-sync-period', 'duration', '30s', False, '', None, None),
    Row('ipvs-tcp-timeout', 'duration', '0s', False, 'ipvs.tcpTimeout', '1m', '1m0s'),
    Row('ipvs-tcpfin-timeout', 'duration', '0s', False, 'ipvs.tcpFinTimeout', '2m', '2m0s'),
    Row('ipvs-udp-timeout', 'duration', '0s', False, 'ipvs.udpTimeout', '3m', '3m0s'),
    Row('kube-api-burst', 'int32', '10', False, 'clientConnection.burst', '20', 20),
    Row('kube-api-content-type', 'string', 'application/vnd.kubernetes.protobuf', False, 'clientConnection.contentType', 'application/json', 'application/json'),
    Row('kube-api-qps', 'float32', '5', False, 'clientConnection.qps', '2.5', 2.5),
    Row('kubeconfig', 'string', '', False, 'clientConnection.kubeconfig', '/k', '/k'),
    Row('log-flush-frequency', 'duration', '5s', True, 'logging.flushFrequency', '9s', '9s'),
    Row('log-json-info-buffer-size', 'quantity', '0', True, 'logging.options.json.infoBufferSize', '2Ki', '2Ki'),
    Row('log-json-split-stream', '', 'false', True, 'logging.options.json.splitStream', 'true', True),
    Row('log-text-info-buffer-size', 'quantity', '0', True, 'logging.options.text.infoBufferSize', '1k', '1k'),
    Row('log-text-split-stream', '', 'false', True, 'logging.options.text.splitStream', 'true', True),
    Row('logging-format', 'string', 'text', True, 'logging.format', 'json', 'json'),
    Row('machine-id-file', 'string', '/etc/machine-id,/var/lib/dbus/machine-id', False, '', None, None),
    Row('masquerade-all', '', 'false', False, '', None, None),
    Row('master', 'string', '', True, '', None, None),
    Row('metrics-bind-address', 'ipport', '127.0.0.1:10249', False, 'metricsBindAddress', '[::1]:2', '[::1]:2'),
    Row('metrics-port', 'int32', '10249', False, '', None, None),
    Row('nodeport-addresses', 'strings', '[]', False, 'nodePortAddresses', '10.0.0.0/8', ['10.0.0.0/8']),
    Row('oom-score-adj', 'int32', '-999', False, 'oomScoreAdj', '-5', -5),
    Row('pod-bridge-interface', 'string', '', False, 'detectLocal.bridgeInterface', 'cbr0', 'cbr0'),
    Row('pod-interface-name-prefix', 'string', '', False, 'detectLocal.interfaceNamePrefix', 'veth', 'veth'),
    Row('profiling', '', 'false', False, 'enableProfiling', 'true', True),
    Row('proxy-mode', 'ProxyMode', '', False, 'mode', 'nftables', 'nftables'),
    Row('show-hidden-metrics-for-version', 'string', '', False, 'showHiddenMetricsForVersion', '1.35', '1.35'),
    Row('v', 'Level', '0', True, 'logging.verbosity', '4', 4),
    Row('version', 'version[=true]', 'false', True, '', None, None),
    Row('vmodule', 'pattern=N,...', '', True, 'logging.vmodule', 'sink=5', [{'filePattern': 'sink', 'verbosity': 5}]),
    Row('write-config-to', 'string', '', True, '', None, None),
)
# fmt: on
FIELD_ROWS = [row for row in ROWS if row.sample is not None]
MINIMAL = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def field_after(argv: list[str], path: str) -> object:
    value: object = config_document(load(parse_flags(argv)).config)
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def test_there_are_no_other_flags() -> None:
    assert sorted(flag.name for flag in UPSTREAM_FLAGS) == sorted(row.name for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_flag_has_upstreams_type_and_default(row: Row) -> None:
    flag = FLAGS[row.name]
    assert flag.kind.name == row.kind
    assert parse_flags([]).formatted()[row.name] == row.default
    assert flag.with_config is row.with_config


@pytest.mark.parametrize("row", FIELD_ROWS, ids=lambda row: row.name)
def test_a_flag_sets_its_field(row: Row) -> None:
    assert field_after([f"--{row.name}={row.sample}"], row.field) == row.written
    assert field_after([], row.field) != row.written


@pytest.mark.parametrize("row", FIELD_ROWS, ids=lambda row: row.name)
def test_with_a_file_only_some_flags_still_count(row: Row, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(MINIMAL)
    given = [f"--config={config}"]
    after = field_after([*given, f"--{row.name}={row.sample}"], row.field)
    assert after == (row.written if row.with_config else field_after(given, row.field))


def test_vmodule_of_flag_and_file_are_merged_the_flag_first(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(MINIMAL + "logging:\n  vmodule: [{filePattern: b, verbosity: 2}]\n")
    merged = field_after([f"--config={config}", "--vmodule=a=1"], "logging.vmodule")
    assert merged == [
        {"filePattern": "a", "verbosity": 1},
        {"filePattern": "b", "verbosity": 2},
    ]


def test_flags_without_a_field_end_in_the_settings() -> None:
    settings = parse_command_line(
        ["--master=https://m", "--cleanup", "--init-only", "--version=v1.36.4-ours"]
    )
    assert isinstance(settings, Settings)
    assert (settings.master, settings.cleanup, settings.init_only) == ("https://m", True, True)
    assert settings.version == "v1.36.4-ours"


EXTENSION_SAMPLES = {
    "inspection-socket": ("/tmp/x.sock", "/tmp/x.sock"),
    "manifests": ("/m", "/m"),
    "health-check": ("http /healthz fall=2", "http /healthz fall=2"),
    "nftables-localhost-nodeports": ("true", True),
    "ipvs-hostports-on-clusterips": ("true", True),
    "proxy-port-range": ("100+50", "100+50"),
    "udp-timeout": ("1s", Duration.of_seconds(1)),
    "xtables-lock-timeout": ("9s", Duration.of_seconds(9)),
    "iptables-variant": ("legacy", "legacy"),
    "wait-for-other-proxy": ("false", False),
    "service-events": ("true", True),
    "service-metrics": ("20", 20),
    "keep-privileges": ("true", True),
    "endpoint-cidrs": ("10.0.0.0/8,fd00::/8", ("10.0.0.0/8", "fd00::/8")),
    "external-ip-cidrs": ("203.0.113.0/24", ("203.0.113.0/24",)),
    "load-balancer-cidrs": ("203.0.113.0/24", ("203.0.113.0/24",)),
    "refused-node-ports": ("10250,2379-2380", ("10250", "2379-2380")),
    "config-restart-jitter": ("3s", Duration.of_seconds(3)),
}


def test_every_extension_flag_fills_its_own_setting(tmp_path: Path) -> None:
    """Also next to a configuration file, which has no field for them."""
    config = tmp_path / "config.yaml"
    config.write_text(MINIMAL)
    argv = [f"--{name}={text}" for name, (text, _) in EXTENSION_SAMPLES.items()]
    extensions = load(parse_flags([f"--config={config}", *argv])).extensions
    shown = {flag.name: extensions.values[flag.name] for flag in EXTENSION_FLAGS}
    assert shown == {name: value for name, (_, value) in EXTENSION_SAMPLES.items()}


def test_extension_flags_are_shown_as_they_are_given() -> None:
    """kpctl gives a running proxy's flags to a parser of its own."""
    argv = [f"--{name}={text}" for name, (text, _) in EXTENSION_SAMPLES.items()]
    given = load(parse_flags(argv)).extensions
    again = [f"--{name}={text}" for name, text in given.texts().items()]
    assert load(parse_flags(again)).extensions == given
    defaults = [f"--{name}={text}" for name, text in Extensions().texts().items()]
    assert load(parse_flags(defaults)).extensions.texts() == Extensions().texts()


def test_extension_flags_default_to_the_settings_defaults() -> None:
    assert load(parse_flags([])).extensions == Extensions()


def test_help_shows_every_flag_that_is_not_deprecated_and_only_unsettled_gates() -> None:
    text = help_text()
    for flag in ALL_FLAGS:
        assert (f"--{flag.name} " in text) is not bool(flag.deprecated), flag.name
    assert "ComponentFlagz=true|false (BETA - default=true)" in text
    assert "NFTablesProxyMode" not in text
    assert text.index("Extensions (not in") < text.index("--manifests string")
