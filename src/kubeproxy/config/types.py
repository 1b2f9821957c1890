"""KubeProxyConfiguration (`kubeproxy.config.k8s.io/v1alpha1`) as frozen values.

Attributes are upstream's fields in snake case; the JSON names are upstream's to the letter. A value
made with no argument is upstream's default configuration, before the mode is chosen.

Upstream keeps one sync period, one minimum and one masquerade-all for the mode that runs, and fills
only that mode's section when it shows its configuration. `with_selected` brings a configuration
into that form. The properties below read it back, so that no other code has to know which section
counts. Reading files, defaults of zero values and validation are in the modules next to this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from kubeproxy.go.duration import Duration
from kubeproxy.go.quantity import Quantity

GROUP = "kubeproxy.config.k8s.io"
API_VERSION = f"{GROUP}/v1alpha1"
KIND = "KubeProxyConfiguration"

IPTABLES = "iptables"
IPVS = "ipvs"
NFTABLES = "nftables"
USERSPACE = "userspace"

LOCAL_MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")

# `go` is the type name upstream's decoding errors show; `pointer` marks fields where null means
# "not given" although their type has no null.
_Verbosity = Annotated[int, msgspec.Meta(extra={"go": "v1.VerbosityLevel"})]
_ProxyMode = Annotated[str, msgspec.Meta(extra={"go": "v1alpha1.ProxyMode"})]
_LocalMode = Annotated[str, msgspec.Meta(extra={"go": "v1alpha1.LocalMode"})]
_PointerDuration = Annotated[Duration, msgspec.Meta(extra={"pointer": True})]
# One text in the file, split on commas and not trimmed. An empty flag is a list of one empty text,
# which validation refuses, while an absent one is the empty list.
_CommaList = Annotated[tuple[str, ...], msgspec.Meta(extra={"comma": True})]

_ZERO = Duration(0)
_SECOND = Duration.of_seconds(1)
_HALF_MINUTE = Duration.of_seconds(30)


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Common options of all sections."""


class ClientConnectionConfiguration(_Section, frozen=True):
    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/vnd.kubernetes.protobuf"
    qps: float = 5.0
    burst: int = 10


class VModuleItem(_Section, frozen=True):
    """One `pattern=N` of `--vmodule`."""

    file_pattern: str = ""
    verbosity: _Verbosity = 0


class TextOptions(_Section, frozen=True):
    split_stream: bool = False
    info_buffer_size: Quantity = Quantity()


class JSONOptions(_Section, frozen=True):
    split_stream: bool = False
    info_buffer_size: Quantity = Quantity()


class FormatOptions(_Section, frozen=True):
    text: TextOptions = TextOptions()
    json: JSONOptions = JSONOptions()


class FlushFrequency(msgspec.Struct, frozen=True, gc=False):
    """A duration that remembers being given as a number, because it is written back that way."""

    duration: Duration = Duration.of_seconds(5)
    is_number: bool = False


class LoggingConfiguration(_Section, frozen=True):
    format: str = "text"
    flush_frequency: FlushFrequency = FlushFrequency()
    verbosity: _Verbosity = 0
    vmodule: tuple[VModuleItem, ...] = ()
    options: FormatOptions = FormatOptions()


class KubeProxyIPTablesConfiguration(_Section, frozen=True):
    masquerade_bit: int = 14
    masquerade_all: bool = False
    localhost_node_ports: bool = True
    sync_period: Duration = _HALF_MINUTE
    min_sync_period: Duration = _SECOND


class KubeProxyIPVSConfiguration(_Section, frozen=True):
    sync_period: Duration = _HALF_MINUTE
    min_sync_period: Duration = _ZERO
    scheduler: str = ""
    exclude_cidrs: tuple[str, ...] | None = msgspec.field(default=None, name="excludeCIDRs")
    strict_arp: bool = msgspec.field(default=False, name="strictARP")
    tcp_timeout: Duration = _ZERO
    tcp_fin_timeout: Duration = _ZERO
    udp_timeout: Duration = _ZERO


class KubeProxyNFTablesConfiguration(_Section, frozen=True):
    masquerade_bit: int = 14
    masquerade_all: bool = False
    sync_period: Duration = _HALF_MINUTE
    min_sync_period: Duration = _SECOND


class KubeProxyConntrackConfiguration(_Section, frozen=True):
    max_per_core: int = 32768
    min: int = 131072
    tcp_established_timeout: _PointerDuration = Duration.of_seconds(24 * 3600)
    tcp_close_wait_timeout: _PointerDuration = Duration.of_seconds(3600)
    tcp_be_liberal: bool = False
    udp_timeout: Duration = _ZERO
    udp_stream_timeout: Duration = _ZERO


class KubeProxyWinkernelConfiguration(_Section, frozen=True):
    network_name: str = ""
    source_vip: str = ""
    enable_dsr: bool = msgspec.field(default=False, name="enableDSR")
    root_hns_endpoint_name: str = ""
    forward_health_check_vip: bool = False


class DetectLocalConfiguration(_Section, frozen=True):
    bridge_interface: str = ""
    interface_name_prefix: str = ""


class KubeProxyConfiguration(_Section, frozen=True):
    feature_gates: Mapping[str, bool] = msgspec.field(default_factory=dict)
    client_connection: ClientConnectionConfiguration = ClientConnectionConfiguration()
    logging: LoggingConfiguration = LoggingConfiguration()
    hostname_override: str = ""
    bind_address: str = "0.0.0.0"
    healthz_bind_address: str = "0.0.0.0:10256"
    metrics_bind_address: str = "127.0.0.1:10249"
    bind_address_hard_fail: bool = False
    enable_profiling: bool = False
    show_hidden_metrics_for_version: str = ""
    mode: _ProxyMode = ""
    iptables: KubeProxyIPTablesConfiguration = KubeProxyIPTablesConfiguration()
    ipvs: KubeProxyIPVSConfiguration = KubeProxyIPVSConfiguration()
    nftables: KubeProxyNFTablesConfiguration = KubeProxyNFTablesConfiguration()
    winkernel: KubeProxyWinkernelConfiguration = KubeProxyWinkernelConfiguration()
    detect_local_mode: _LocalMode = ""
    detect_local: DetectLocalConfiguration = DetectLocalConfiguration()
    cluster_cidrs: _CommaList = msgspec.field(default=(), name="clusterCIDR")
    node_port_addresses: tuple[str, ...] | None = None
    oom_score_adj: int = -999
    conntrack: KubeProxyConntrackConfiguration = KubeProxyConntrackConfiguration()
    config_sync_period: Duration = Duration.of_seconds(15 * 60)
    port_range: str = ""
    windows_run_as_service: bool = False

    @property
    def sync_period(self) -> Duration:
        return _selected_section(self).sync_period

    @property
    def min_sync_period(self) -> Duration:
        return _selected_section(self).min_sync_period

    @property
    def sync_period_seconds(self) -> float:
        return self.sync_period.seconds

    @property
    def min_sync_period_seconds(self) -> float:
        return self.min_sync_period.seconds

    @property
    def masquerade_all(self) -> bool:
        nftables = self.mode == NFTABLES
        return self.nftables.masquerade_all if nftables else self.iptables.masquerade_all

    @property
    def masquerade_bit(self) -> int:
        nftables = self.mode == NFTABLES
        return self.nftables.masquerade_bit if nftables else self.iptables.masquerade_bit


_ModeSection = (
    KubeProxyIPTablesConfiguration | KubeProxyIPVSConfiguration | KubeProxyNFTablesConfiguration
)


def _selected_section(config: KubeProxyConfiguration) -> _ModeSection:
    """The section whose periods count. A mode without a section of its own uses iptables'."""
    if config.mode == IPVS:
        return config.ipvs
    return config.nftables if config.mode == NFTABLES else config.iptables


class Selected(msgspec.Struct, frozen=True, gc=False):
    """The values that exist once and belong to the mode that runs."""

    sync_period: Duration
    min_sync_period: Duration
    masquerade_all: bool


def selected(config: KubeProxyConfiguration) -> Selected:
    """Return the values of the chosen mode's sections."""
    return Selected(config.sync_period, config.min_sync_period, config.masquerade_all)


def with_selected(config: KubeProxyConfiguration, chosen: Selected) -> KubeProxyConfiguration:
    """Put these values into the chosen mode's sections, and zeroes into the others."""
    replace = msgspec.structs.replace
    none = {"sync_period": _ZERO, "min_sync_period": _ZERO}
    periods = {"sync_period": chosen.sync_period, "min_sync_period": chosen.min_sync_period}
    ipvs = config.mode == IPVS
    nftables = config.mode == NFTABLES
    return replace(
        config,
        iptables=replace(
            config.iptables,
            masquerade_all=chosen.masquerade_all and not nftables,
            **(none if ipvs or nftables else periods),
        ),
        ipvs=replace(config.ipvs, **(periods if ipvs else none)),
        nftables=replace(
            config.nftables,
            masquerade_all=chosen.masquerade_all and nftables,
            **(periods if nftables else none),
        ),
    )
