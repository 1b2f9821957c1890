"""Flags and configuration file → the effective configuration and gates.

This is upstream's "complete" stage: read the file if there is one, otherwise apply the flags; then
the platform's defaults, the host name flag and the feature gates. Every failure raises
`ConfigError`. Messages for the log are returned as notes, because logging is not set up yet.
Validation is left to `validate`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubeproxy.config import kinds
from kubeproxy.config.defaults import append_port, apply_defaults, complete_platform, set_path
from kubeproxy.config.field_errors import join_errors
from kubeproxy.config.flags import EXTENSION_FLAGS, UPSTREAM_FLAGS, Extensions, Flag
from kubeproxy.config.gates import FeatureGates, resolve_gates
from kubeproxy.config.parse import ParsedFlags
from kubeproxy.config.types import IPVS, KubeProxyConfiguration, Selected, selected, with_selected
from kubeproxy.errors import ConfigError
from kubeproxy.go.duration import Duration
from kubeproxy.go.text import format_os_error
from kubeproxy.kernel.files import read_limited

MOST_BYTES = 1 << 20
"""As much as a ConfigMap may hold. A larger file is refused before it is parsed."""


class Note(msgspec.Struct, frozen=True):
    """A message to log at level info."""

    message: str
    values: Mapping[str, object] = msgspec.field(default_factory=dict)


class Loaded(msgspec.Struct, frozen=True):
    """The outcome of completion, not validated yet."""

    config: KubeProxyConfiguration
    extensions: Extensions
    gates: FeatureGates
    notes: tuple[Note, ...] = ()
    config_content: bytes | None = None
    """The file as it was read, so that `watch` notices a change made since."""


def load(flags: ParsedFlags) -> Loaded:
    """Return the effective settings. Raises ConfigError."""
    path = flags.text("config")
    return load_content(flags, _read_file(path) if path else None)


def load_content(flags: ParsedFlags, content: bytes | None) -> Loaded:
    """Return the effective settings with this content of the configuration file, if any."""
    notes: list[Note] = []
    if content is None:
        config = config_from_flags(flags)
    else:
        config = config_from_file(content, flags, notes)
    if not config.mode:
        notes.append(Note("Using iptables proxy"))
    config = _override_hostname(complete_platform(config), flags)
    gates = _resolve_gates(config, notes)
    given = {f.name: flags.values[f.name] for f in EXTENSION_FLAGS if f.name in flags.given}
    return Loaded(config, Extensions(given), gates, tuple(notes), content)


def _read_file(path: str) -> bytes:
    try:
        return read_limited(path, MOST_BYTES)
    except OSError as error:
        # Go can open a directory and fails when it reads from it.
        verb = "read" if isinstance(error, IsADirectoryError) else "open"
        raise ConfigError(f"{verb} {path}: {format_os_error(error)}") from None


def config_from_file(
    content: bytes, flags: ParsedFlags, notes: list[Note]
) -> KubeProxyConfiguration:
    """Decode the file and fill in its defaults. Of the flags only those about logging count."""
    # Only a file needs YAML and the introspection of types; `--version` starts quicker without.
    from kubeproxy.config.decode import decode_config

    try:
        decoded = decode_config(content.decode())
    except UnicodeDecodeError:
        message = "failed to decode: yaml: invalid leading UTF-8 octet"
        raise ConfigError(message) from None
    except ConfigError as error:
        raise ConfigError(f"failed to decode: {error}") from None
    if decoded.strict_problem:
        notes.append(
            Note(
                "Using lenient decoding as strict decoding failed",
                {"err": decoded.strict_problem},
            )
        )
    return _override_logging(apply_defaults(decoded.config), flags)


def _override_logging(config: KubeProxyConfiguration, flags: ParsedFlags) -> KubeProxyConfiguration:
    """Let logging flags win over the file. Patterns of both count, the flag's first."""
    from_file = config.logging.vmodule
    for flag in UPSTREAM_FLAGS:
        if flag.path.startswith("logging.") and flag.name in flags.given:
            config = _apply(config, flag, flags.values[flag.name])
    if "vmodule" in flags.given:
        config = set_path(config, "logging.vmodule", config.logging.vmodule + from_file)
    return config


def config_from_flags(flags: ParsedFlags) -> KubeProxyConfiguration:
    """Apply the flags that were given to the default configuration."""
    config = KubeProxyConfiguration()
    defaults = selected(config)
    for flag in UPSTREAM_FLAGS:
        if flag.path and flag.name in flags.given:
            config = _apply(config, flag, flags.values[flag.name])
    if "cluster-cidr" in flags.given:
        cidrs = tuple(flags.text("cluster-cidr").split(","))
        config = msgspec.structs.replace(config, cluster_cidrs=cidrs)
    if not flags.text("write-config-to"):
        config = _apply_deprecated_ports(config, flags)
    return with_selected(config, _selected_by_flags(config.mode, defaults, flags))


def _apply(
    config: KubeProxyConfiguration, flag: Flag, value: kinds.Value
) -> KubeProxyConfiguration:
    if flag.kind in (kinds.ADDRESS, kinds.ENDPOINT) and value == "":
        return config  # an empty address leaves the default, it does not switch a server off
    if flag.path == "logging.flush_frequency":
        return set_path(config, "logging.flush_frequency.duration", value)
    return set_path(config, flag.path, value)


def _apply_deprecated_ports(
    config: KubeProxyConfiguration, flags: ParsedFlags
) -> KubeProxyConfiguration:
    """Apply `--healthz-port` and `--metrics-port`: a port for a bare address, 0 empties it."""

    def address(text: str, port: int) -> str:
        return append_port(text, port) if port else ""

    return msgspec.structs.replace(
        config,
        healthz_bind_address=address(config.healthz_bind_address, flags.integer("healthz-port")),
        metrics_bind_address=address(config.metrics_bind_address, flags.integer("metrics-port")),
    )


def _selected_by_flags(mode: str, defaults: Selected, flags: ParsedFlags) -> Selected:
    """Take the pair of period flags that belongs to the mode, each only if it was given."""
    prefix = "ipvs" if mode == IPVS else "iptables"
    return Selected(
        _period(flags, f"{prefix}-sync-period", defaults.sync_period),
        _period(flags, f"{prefix}-min-sync-period", defaults.min_sync_period),
        flags.is_set("masquerade-all"),
    )


def _period(flags: ParsedFlags, name: str, default: Duration) -> Duration:
    value = flags.values[name]
    return value if name in flags.given and isinstance(value, Duration) else default


def _override_hostname(
    config: KubeProxyConfiguration, flags: ParsedFlags
) -> KubeProxyConfiguration:
    given = flags.text("hostname-override")
    if not given:
        return config
    name = given.strip().lower()
    if not name:
        raise ConfigError("empty hostname-override is invalid")
    return msgspec.structs.replace(config, hostname_override=name)


def _resolve_gates(config: KubeProxyConfiguration, notes: list[Note]) -> FeatureGates:
    resolution = resolve_gates(config.feature_gates)
    if resolution.errors:
        raise ConfigError(join_errors(resolution.errors))
    notes += (
        Note(warning.message, {"featureGate": warning.gate, "value": warning.value})
        for warning in resolution.warnings
    )
    return resolution.gates
