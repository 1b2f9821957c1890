"""Validation of a completed configuration: configuration in, field errors out. Pure.

Paths, wording and order are upstream's, because operators search for them. Each rule is a small
generator, and `_RULES` lists them in upstream's order. `unrunnable` adds the one rule of ours.
Whether the host can do what is configured is left to the start of the proxy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from kubeproxy.config.field_errors import FieldError, invalid, join_errors
from kubeproxy.config.gates import FeatureGates, resolve_gates
from kubeproxy.config.types import (
    IPTABLES,
    IPVS,
    LOCAL_MODES,
    NFTABLES,
    USERSPACE,
    KubeProxyConfiguration,
    LoggingConfiguration,
)
from kubeproxy.facts.address import parse_cidr, parse_ip
from kubeproxy.go.duration import Duration
from kubeproxy.go.hostport import split_host_port
from kubeproxy.go.quoting import quote
from kubeproxy.go.text import parse_digits
from kubeproxy.version import KUBERNETES_VERSION

ROOT = "KubeProxyConfiguration"
_MODES = (IPTABLES, IPVS, NFTABLES, USERSPACE)
_NOT_NEGATIVE = "must be greater than or equal to 0"
_POSITIVE = "must be greater than 0"
_BIT_RANGE = "must be within the range [0, 31]"
_LARGEST_LEVEL = (1 << 31) - 1
_LONGEST_MIN_SYNC = Duration.of_seconds(3600)
_CIDR_PAIR = (
    "must be a either a single CIDR or dual-stack pair of CIDRs "
    "(e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]"
)


def validate(config: KubeProxyConfiguration) -> list[FieldError]:
    """Return everything that is wrong with a completed configuration."""
    return [error for rule in _RULES for error in rule(config)]


def _feature_gates(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    errors = resolve_gates(config.feature_gates).errors
    if errors:
        yield invalid(f"{ROOT}.featureGates", config.feature_gates, join_errors(errors))


def _iptables(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    if not 0 <= config.iptables.masquerade_bit <= 31:
        path = f"{ROOT}.KubeProxyIPTablesConfiguration.MasqueradeBit"
        yield invalid(path, config.iptables.masquerade_bit, _BIT_RANGE)


def _ipvs(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    if config.mode != IPVS:
        return
    path = f"{ROOT}.KubeProxyIPVSConfiguration"
    timeouts = {
        "TCPTimeout": config.ipvs.tcp_timeout,
        "TCPFinTimeout": config.ipvs.tcp_fin_timeout,
        "UDPTimeout": config.ipvs.udp_timeout,
    }
    yield from _not_negative(path, timeouts)
    for index, cidr in enumerate(config.ipvs.exclude_cidrs or ()):
        if parse_cidr(cidr) is None:
            yield invalid(f"{path}.ExcludeCidrs[{index}]", cidr, "must be a valid CIDR")


def _nftables(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    if config.mode == NFTABLES and not 0 <= config.nftables.masquerade_bit <= 31:
        path = f"{ROOT}.KubeProxyNFTablesConfiguration.MasqueradeBit"
        yield invalid(path, config.nftables.masquerade_bit, _BIT_RANGE)


def _conntrack(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    conntrack = config.conntrack
    path = f"{ROOT}.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration"
    values: dict[str, int | Duration] = {
        "MaxPerCore": conntrack.max_per_core,
        "Min": conntrack.min,
        "TCPEstablishedTimeout": conntrack.tcp_established_timeout,
        "TCPCloseWaitTimeout": conntrack.tcp_close_wait_timeout,
        "UDPTimeout": conntrack.udp_timeout,
        "UDPStreamTimeout": conntrack.udp_stream_timeout,
    }
    yield from _not_negative(path, values)


def _not_negative(path: str, values: Mapping[str, int | Duration]) -> Iterator[FieldError]:
    for name, value in values.items():
        number = value.nanoseconds if isinstance(value, Duration) else value
        if number < 0:
            yield invalid(f"{path}.{name}", value, _NOT_NEGATIVE)


def _oom_score(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    if not -1000 <= config.oom_score_adj <= 1000:
        path = f"{ROOT}.KubeProxyLinuxConfiguration.OOMScoreAdj"
        yield invalid(path, config.oom_score_adj, "must be within the range [-1000, 1000]")


def _mode(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    if config.mode and config.mode not in _MODES:
        # The text names upstream's modes only: it is what people search for.
        yield invalid(
            f"{ROOT}.Mode.ProxyMode",
            config.mode,
            "must be iptables, ipvs, nftables or blank "
            "(blank means the best-available proxy [currently iptables])",
        )


def _burst(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    yield from _not_negative(f"{ROOT}.ClientConnection", {"Burst": config.client_connection.burst})


def _periods(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    sync, minimum = config.sync_period, config.min_sync_period
    if config.config_sync_period.nanoseconds <= 0:
        yield invalid(f"{ROOT}.ConfigSyncPeriod", config.config_sync_period, _POSITIVE)
    if sync.nanoseconds <= 0:
        yield invalid(f"{ROOT}.SyncPeriod", sync, _POSITIVE)
    yield from _not_negative(ROOT, {"MinSyncPeriod": minimum})
    if minimum > sync:
        detail = f"must be greater than or equal to {ROOT}.MinSyncPeriod"
        yield invalid(f"{ROOT}.SyncPeriod", minimum, detail)


def _addresses(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    if parse_ip(config.bind_address) is None:
        detail = "not a valid textual representation of an IP address"
        yield invalid(f"{ROOT}.BindAddress", config.bind_address, detail)
    if config.healthz_bind_address:
        yield from _host_port(f"{ROOT}.HealthzBindAddress", config.healthz_bind_address)
    yield from _host_port(f"{ROOT}.MetricsBindAddress", config.metrics_bind_address)


def _host_port(path: str, text: str) -> Iterator[FieldError]:
    try:
        host, port = split_host_port(text)
    except ValueError:
        yield invalid(path, text, "must be IP:port")
        return
    if parse_ip(host) is None:
        yield invalid(path, host, "must be a valid IP")
    number = re.fullmatch(r"\+?([0-9]+)", port)
    if number is None or not 1 <= parse_digits(number[1]) <= 65535:
        yield invalid(path, port, "must be a valid port")


def _node_port_addresses(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    addresses = config.node_port_addresses or ()
    for index, text in enumerate(addresses):
        path = f"{ROOT}.NodePortAddresses[{index}]"
        if text == "primary":
            if len(addresses) != 1:
                yield invalid(path, text, "can't use both 'primary' and CIDRs")
            return
        if parse_cidr(text) is None:
            yield invalid(path, text, "must be a valid CIDR")


def _hidden_metrics(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    version = config.show_hidden_metrics_for_version
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".", 2)
    previous = f"{major}.{int(minor) - 1}"
    if version and version != previous:
        inner = invalid(
            "showHiddenMetricsForVersion",
            version,
            f"must be omitted or have the value '{previous}'; "
            "only the previous minor version is allowed",
        )
        detail = f"invalid showHiddenMetricsForVersion: {inner}"
        yield invalid(f"{ROOT}.ShowHiddenMetricsForVersion", version, detail)


def _detect_local(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    mode = config.detect_local_mode
    path = f"{ROOT}.DetectLocalConfiguration"
    if mode and mode not in LOCAL_MODES:
        supported = ", ".join(map(quote, (*LOCAL_MODES, "")))
        body = f"Unsupported value: {quote(mode)}: supported values: {supported}"
        yield FieldError(f"{ROOT}.DetectLocalMode", body)
    elif mode == "BridgeInterface" and not config.detect_local.bridge_interface:
        yield invalid(f"{path}.InterfaceName", "", "must not be empty")
    elif mode == "InterfaceNamePrefix" and not config.detect_local.interface_name_prefix:
        yield invalid(f"{path}.InterfacePrefix", "", "must not be empty")
    elif mode == "ClusterCIDR" and config.cluster_cidrs:
        yield from _cluster_cidrs(f"{path}.ClusterCIDRs", config.cluster_cidrs)


def _cluster_cidrs(path: str, cidrs: tuple[str, ...]) -> Iterator[FieldError]:
    if len(cidrs) > 2:
        yield invalid(path, cidrs, _CIDR_PAIR)
        return
    parsed = [parse_cidr(cidr) for cidr in cidrs]
    for index, (text, cidr) in enumerate(zip(cidrs, parsed, strict=True)):
        if cidr is None:
            detail = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"
            yield invalid(f"{path}[{index}]", text, detail)
    families = [cidr[0] for cidr in parsed if cidr is not None]
    if len(families) == 2 and families[0] is families[1]:
        yield invalid(path, cidrs, _CIDR_PAIR)


def _logging(config: KubeProxyConfiguration) -> Iterator[FieldError]:
    gates = resolve_gates(config.feature_gates).gates
    yield from validate_logging(config.logging, gates, f"{ROOT}.logging")


def validate_logging(
    logging: LoggingConfiguration, gates: FeatureGates, path: str = "logging"
) -> Iterator[FieldError]:
    """Check the logging section. This also runs on its own, before logging starts."""
    if logging.flush_frequency.duration.nanoseconds <= 0:
        detail = "Must be greater than zero"
        yield invalid(f"{path}.flushFrequency", logging.flush_frequency, detail)
    if logging.format not in ("text", "json"):
        yield invalid(f"{path}.format", logging.format, "Unsupported log format")
    elif logging.format == "json" and not gates.enabled("LoggingBetaOptions"):
        detail = "Log format json is disabled, see LoggingBetaOptions feature"
        yield FieldError(f"{path}.format", f"Forbidden: {detail}")
    yield from _level(f"{path}.verbosity", logging.verbosity)
    yield from _vmodule(logging, f"{path}.vmodule")
    if not gates.enabled("LoggingAlphaOptions"):
        yield from _alpha_options(logging, f"{path}.options")


def _level(path: str, level: int) -> Iterator[FieldError]:
    if level > _LARGEST_LEVEL:
        yield invalid(path, level, f"Must be <= {_LARGEST_LEVEL}")


def _vmodule(logging: LoggingConfiguration, path: str) -> Iterator[FieldError]:
    if logging.vmodule and logging.format not in ("", "text"):
        yield FieldError(path, "Forbidden: Only supported for text log format")
    for index, item in enumerate(logging.vmodule):
        here = f"{path}[{index}]"
        if not item.file_pattern:
            yield FieldError(here, "Required value: File pattern must not be empty")
        if "=" in item.file_pattern or "," in item.file_pattern:
            detail = "File pattern must not contain equal sign or comma"
            yield invalid(here, item.file_pattern, detail)
        yield from _level(here, item.verbosity)


def _alpha_options(logging: LoggingConfiguration, path: str) -> Iterator[FieldError]:
    for name, options in (("text", logging.options.text), ("json", logging.options.json)):
        wanted = {
            "splitStream": options.split_stream,
            "infoBufferSize": options.info_buffer_size.value != 0,
        }
        for field, is_set in wanted.items():
            if is_set:
                body = "Forbidden: Feature LoggingAlphaOptions is disabled"
                yield FieldError(f"{path}.{name}.{field}", body)


_RULES: tuple[Callable[[KubeProxyConfiguration], Iterator[FieldError]], ...] = (
    _feature_gates,
    _iptables,
    _ipvs,
    _nftables,
    _conntrack,
    _oom_score,
    _mode,
    _burst,
    _periods,
    _addresses,
    _node_port_addresses,
    _hidden_metrics,
    _detect_local,
    _logging,
)


def unrunnable(config: KubeProxyConfiguration) -> list[FieldError]:
    """Return errors of ours: settings that upstream accepts and then crashes with.

    In these modes full syncs come at least hourly, so a longer minimum cannot be kept.
    """
    hourly = config.mode in (IPTABLES, NFTABLES)
    if not hourly or config.min_sync_period <= _LONGEST_MIN_SYNC:
        return []
    detail = f"must not be greater than {_LONGEST_MIN_SYNC} in {config.mode} mode"
    return [invalid(f"{ROOT}.MinSyncPeriod", config.min_sync_period, detail)]
