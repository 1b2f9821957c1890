"""What absent and zero values of a configuration file become.

Two steps, as upstream takes them: first the defaults of the format (`apply_defaults`), which do not
depend on the mode because it is not chosen yet, then the platform's (`complete_platform`), which
choose it. Defaults of absent fields are those of the structs in `types`. Pure.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kubeproxy.config.types import (
    IPTABLES,
    NFTABLES,
    USERSPACE,
    FlushFrequency,
    KubeProxyConfiguration,
    selected,
    with_selected,
)
from kubeproxy.facts.address import join_host_port, parse_ip
from kubeproxy.facts.ids import Family
from kubeproxy.go.hostport import split_host_port

_T = TypeVar("_T", bound=msgspec.Struct)

HEALTHZ_PORT = 10256
METRICS_PORT = 10249
PRIMARY = "primary"

# Fields where an explicit zero or empty value means the default, as an absent one does.
_ZERO_IS_DEFAULT = (
    "client_connection.content_type",
    "client_connection.qps",
    "client_connection.burst",
    "logging.format",
    "bind_address",
    "iptables.sync_period",
    "iptables.min_sync_period",
    "ipvs.sync_period",
    "nftables.sync_period",
    "nftables.min_sync_period",
    "config_sync_period",
)


def get_path(value: object, path: str) -> object:
    """Return the attribute a dotted path leads to."""
    for name in path.split("."):
        value = getattr(value, name)
    return value


def set_path(value: _T, path: str, new: object) -> _T:
    """Return the struct with one attribute, possibly of a nested struct, replaced."""
    name, _, rest = path.partition(".")
    inner = set_path(getattr(value, name), rest, new) if rest else new
    return msgspec.structs.replace(value, **{name: inner})


def apply_defaults(config: KubeProxyConfiguration) -> KubeProxyConfiguration:
    """Replace zero values of a decoded file. Addresses of servers follow `bindAddress`."""
    standard = KubeProxyConfiguration()
    for path in _ZERO_IS_DEFAULT:
        if not get_path(config, path):
            config = set_path(config, path, get_path(standard, path))
    if not config.logging.flush_frequency.duration:
        config = set_path(config, "logging.flush_frequency", FlushFrequency())
    # `portRange` means something in userspace mode only; elsewhere upstream shows it empty.
    port_range = config.port_range if config.mode == USERSPACE else ""
    return _default_addresses(msgspec.structs.replace(config, port_range=port_range))


def _default_addresses(config: KubeProxyConfiguration) -> KubeProxyConfiguration:
    bind = parse_ip(config.bind_address)
    is_ipv4 = bind is not None and bind[0] is Family.IPV4
    healthz, metrics = ("0.0.0.0", "127.0.0.1") if is_ipv4 else ("::", "::1")
    return msgspec.structs.replace(
        config,
        healthz_bind_address=append_port(config.healthz_bind_address or healthz, HEALTHZ_PORT),
        metrics_bind_address=append_port(config.metrics_bind_address or metrics, METRICS_PORT),
    )


def append_port(address: str, port: int) -> str:
    """Add the port to an address without one. What is no address is left to validation."""
    try:
        split_host_port(address)
    except ValueError:
        return address if parse_ip(address) is None else join_host_port(address, port)
    return address


def complete_platform(config: KubeProxyConfiguration) -> KubeProxyConfiguration:
    """Choose the mode and what depends on it. Only the chosen mode's shared values remain."""
    chosen = selected(config)
    config = msgspec.structs.replace(
        config,
        mode=config.mode or IPTABLES,
        detect_local_mode=config.detect_local_mode or "ClusterCIDR",
    )
    if config.mode == NFTABLES and not config.node_port_addresses:
        config = msgspec.structs.replace(config, node_port_addresses=(PRIMARY,))
    return with_selected(config, chosen)
