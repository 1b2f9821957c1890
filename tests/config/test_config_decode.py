"""Configuration files: what is read, what is only noted, and what is refused in which words."""

from __future__ import annotations

import pytest

from kubeproxy.config.decode import decode_config
from kubeproxy.config.types import KubeProxyConfiguration, VModuleItem
from kubeproxy.errors import ConfigError
from kubeproxy.go.duration import Duration

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
JSON_HEAD = '"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"'
SCHEME = 'in scheme "pkg/proxy/apis/config/scheme/scheme.go:29"'


def decode(body: str) -> KubeProxyConfiguration:
    decoded = decode_config(HEAD + body)
    assert decoded.strict_problem == ""
    return decoded.config


def problem(text: str) -> str:
    return decode_config(text).strict_problem


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        decode_config(text)
    return str(caught.value)


def test_every_field_is_read() -> None:
    config = decode(
        """\
featureGates: {ComponentFlagz: false}
clientConnection: {kubeconfig: /k, acceptContentTypes: a, contentType: b, qps: 1.5, burst: 2}
logging:
  format: json
  flushFrequency: 3s
  verbosity: 4
  vmodule: [{filePattern: sink, verbosity: 5}]
  options: {text: {splitStream: true, infoBufferSize: 2Ki}, json: {infoBufferSize: 512}}
hostnameOverride: node
bindAddress: "::"
healthzBindAddress: 1.1.1.1:1
metricsBindAddress: 2.2.2.2:2
bindAddressHardFail: true
enableProfiling: true
showHiddenMetricsForVersion: "1.35"
mode: ipvs
iptables: {masqueradeBit: 1, masqueradeAll: true, localhostNodePorts: false, syncPeriod: 2s,
  minSyncPeriod: 1s}
ipvs: {syncPeriod: 3s, minSyncPeriod: 2s, scheduler: lc, excludeCIDRs: [10.0.0.0/8],
  strictARP: true, tcpTimeout: 1s, tcpFinTimeout: 2s, udpTimeout: 3s}
nftables: {masqueradeBit: 2, masqueradeAll: true, syncPeriod: 4s, minSyncPeriod: 3s}
winkernel: {networkName: net, sourceVip: s, enableDSR: true, rootHnsEndpointName: r,
  forwardHealthCheckVip: true}
detectLocalMode: NodeCIDR
detectLocal: {bridgeInterface: b, interfaceNamePrefix: p}
clusterCIDR: 10.0.0.0/8, fd00::/8
nodePortAddresses: [primary]
oomScoreAdj: -1
conntrack: {maxPerCore: 1, min: 2, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 4s,
  tcpBeLiberal: true, udpTimeout: 5s, udpStreamTimeout: 6s}
configSyncPeriod: 1m
portRange: 1-2
windowsRunAsService: true
"""
    )
    assert config.feature_gates == {"ComponentFlagz": False}
    assert config.client_connection.qps == 1.5 and config.client_connection.burst == 2
    assert config.logging.vmodule == (VModuleItem(file_pattern="sink", verbosity=5),)
    assert config.logging.options.text.info_buffer_size.value == 2048
    assert config.logging.options.json.info_buffer_size.text == "512"
    assert config.ipvs.exclude_cidrs == ("10.0.0.0/8",) and config.ipvs.strict_arp
    assert config.winkernel.enable_dsr and config.winkernel.forward_health_check_vip
    assert config.cluster_cidrs == ("10.0.0.0/8", " fd00::/8")
    assert config.node_port_addresses == ("primary",)
    assert config.conntrack.tcp_established_timeout == Duration(0)
    assert config.conntrack.udp_stream_timeout == Duration.of_seconds(6)
    assert config.windows_run_as_service and config.mode == "ipvs"
    standard = KubeProxyConfiguration()
    unchanged = [
        name for name in standard.__struct_fields__
        if getattr(config, name) == getattr(standard, name)
    ]  # fmt: skip
    assert unchanged == []


@pytest.mark.parametrize("word", ["yes", "Yes", "on", "y", "true", "True"])
def test_yaml_words_for_true(word: str) -> None:
    assert decode(f"bindAddressHardFail: {word}\n").bind_address_hard_fail is True


def test_only_the_first_document_counts() -> None:
    text = f"---\n{HEAD}mode: ipvs\n---\nmode: nftables\n...\n]broken"
    assert decode_config(text).config.mode == "ipvs"


def test_json_is_recognised_by_its_brace() -> None:
    decoded = decode_config(f'\n {{{JSON_HEAD}, "mode": "ipvs", "oomScoreAdj": -5}}')
    assert (decoded.config.mode, decoded.config.oom_score_adj) == ("ipvs", -5)


def test_anchors_and_merge_keys_work() -> None:
    config = decode("iptables: &a {syncPeriod: 9s}\nnftables:\n  <<: *a\n  masqueradeBit: 3\n")
    assert config.nftables.sync_period == Duration.of_seconds(9)
    assert config.nftables.masquerade_bit == 3


@pytest.mark.parametrize(
    "body",
    [
        "iptables: null",
        "mode: null",
        "oomScoreAdj: null",
        "nodePortAddresses: null",
        "conntrack: {tcpEstablishedTimeout: null}",
        "bindAddress: ~",
        "logging: {flushFrequency: null, vmodule: null, options: null}",
        "featureGates: null",
    ],
)
def test_null_is_absent(body: str) -> None:
    assert decode(body) == decode("")


@pytest.mark.parametrize(
    ("value", "seconds", "number"), [("1500ms", 1.5, False), ("7", 7e-9, True)]
)
def test_flush_frequency_is_a_text_or_nanoseconds(value: str, seconds: float, number: bool) -> None:
    frequency = decode(f"logging: {{flushFrequency: {value}}}").logging.flush_frequency
    assert (frequency.duration.seconds, frequency.is_number) == (seconds, number)


def test_unknown_fields_are_noted_in_order() -> None:
    text = HEAD + "zzz: 1\nbogusField: 1\niptables: {foo: 1, masqueradeBit: 3}\nMode: ipvs\n"
    assert problem(text) == (
        'strict decoding error: unknown field "Mode", unknown field "bogusField", '
        'unknown field "iptables.foo", unknown field "zzz"'
    )
    assert decode_config(text).config.iptables.masquerade_bit == 3


def test_unknown_fields_of_a_list_element_name_the_element() -> None:
    text = HEAD + "logging: {vmodule: [{filePattern: a, x: 1}]}\n"
    assert problem(text) == 'strict decoding error: unknown field "logging.vmodule[0].x"'


def test_the_last_duplicate_wins_and_yaml_names_the_line() -> None:
    text = HEAD + "bindAddress: 1.1.1.1\nbindAddress: 2.2.2.2\n"
    assert problem(text) == (
        "strict decoding error: yaml: unmarshal errors:\n"
        '  line 4: key "bindAddress" already set in map'
    )
    assert decode_config(text).config.bind_address == "2.2.2.2"


def test_the_last_duplicate_wins_and_json_names_the_field() -> None:
    text = f'{{{JSON_HEAD}, "mode": "ipvs", "mode": "nftables", "ipvs": {{"a": 1, "a": 2}}}}'
    assert problem(text) == (
        'strict decoding error: duplicate field "mode", duplicate field "ipvs.a", '
        'unknown field "ipvs.a"'
    )
    assert decode_config(text).config.mode == "nftables"


FIELD = "json: cannot unmarshal {} into Go struct field {} of type {}"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "Object 'Kind' is missing in ''"),
        ("a: 1", "Object 'Kind' is missing in 'a: 1'"),
        ("kind: X", "Object 'apiVersion' is missing in 'kind: X'"),
        ("kind: X\napiVersion: a/b", f'no kind "X" is registered for version "a/b" {SCHEME}'),
        ("kind: KubeProxyConfiguration\napiVersion: v1",
         f'no kind "KubeProxyConfiguration" is registered for version "v1" {SCHEME}'),
        ("kind: X\napiVersion: a/b/c", "unexpected GroupVersion string: a/b/c"),
        (HEAD + "bindAddressHardFail: maybe",
         FIELD.format("string", "KubeProxyConfiguration.bindAddressHardFail", "bool")),
        (HEAD + "hostnameOverride: on",
         FIELD.format("bool", "KubeProxyConfiguration.hostnameOverride", "string")),
        (HEAD + "mode: 5",
         FIELD.format("number", "KubeProxyConfiguration.mode", "v1alpha1.ProxyMode")),
        (HEAD + "detectLocalMode: [a]",
         FIELD.format("array", "KubeProxyConfiguration.detectLocalMode", "v1alpha1.LocalMode")),
        (HEAD + "nodePortAddresses: primary",
         FIELD.format("string", "KubeProxyConfiguration.nodePortAddresses", "[]string")),
        (HEAD + "nodePortAddresses: [5]",
         FIELD.format("number", "KubeProxyConfiguration.nodePortAddresses", "string")),
        (HEAD + "featureGates: {A: x}",
         FIELD.format("string", "KubeProxyConfiguration.featureGates", "bool")),
        (HEAD + "featureGates: [A]",
         FIELD.format("array", "KubeProxyConfiguration.featureGates", "map[string]bool")),
        (HEAD + "iptables: x",
         FIELD.format("string", "KubeProxyConfiguration.iptables",
                      "v1alpha1.KubeProxyIPTablesConfiguration")),
        (HEAD + "iptables: {masqueradeBit: {}}",
         FIELD.format("object", "KubeProxyIPTablesConfiguration.iptables.masqueradeBit", "int32")),
        (HEAD + "logging: {verbosity: x}",
         FIELD.format("string", "LoggingConfiguration.logging.verbosity", "v1.VerbosityLevel")),
        (HEAD + "logging: {verbosity: -1}",
         FIELD.format("number -1", "LoggingConfiguration.logging.verbosity",
                      "v1.VerbosityLevel")),
        (HEAD + "logging: {vmodule: x}",
         FIELD.format("string", "LoggingConfiguration.logging.vmodule",
                      "v1.VModuleConfiguration")),
        (HEAD + "oomScoreAdj: 1.5",
         FIELD.format("number 1.5", "KubeProxyConfiguration.oomScoreAdj", "int32")),
        (HEAD + "oomScoreAdj: 3000000000",
         FIELD.format("number 3000000000", "KubeProxyConfiguration.oomScoreAdj", "int32")),
        (HEAD + "clientConnection: {qps: x}",
         FIELD.format("string", "ClientConnectionConfiguration.clientConnection.qps", "float32")),
        (HEAD + "configSyncPeriod: 5",
         FIELD.format("number", "KubeProxyConfiguration.configSyncPeriod", "string")),
        (HEAD + "configSyncPeriod: abc", 'time: invalid duration "abc"'),
        (HEAD + "configSyncPeriod: null", 'time: invalid duration ""'),
        (HEAD + "logging: {flushFrequency: true}",
         'invalid duration "true": json: cannot unmarshal bool into Go value of type '
         "time.Duration"),
        (HEAD + "logging: {options: {text: {infoBufferSize: 1K}}}",
         "unable to parse quantity's suffix"),
        (HEAD + "a: b: c", "yaml: line 3: mapping values are not allowed in this context"),
        ("- a\n", 'couldn\'t get version/kind; json parse error: json: cannot unmarshal array into '
         r'Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; '
         r'Kind string "json:\"kind,omitempty\"" }'),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(text: str, error: str) -> None:
    assert refusal(text) == error


def test_broken_json_is_refused() -> None:
    assert refusal("{apiVersion: x}").startswith("couldn't get version/kind; json parse error: ")


def test_a_bad_duration_is_reported_before_a_wrong_type() -> None:
    """Upstream collects type errors but stops at a field that reads itself."""
    assert refusal(HEAD + "bindAddress: 5\nconfigSyncPeriod: abc\n") == (
        'time: invalid duration "abc"'
    )


def test_of_several_type_errors_the_first_by_name_is_reported() -> None:
    text = HEAD + "oomScoreAdj: x\nbindAddress: 5\n"
    assert "KubeProxyConfiguration.bindAddress" in refusal(text)
