"""What this mode reads of configuration and extension flags, and what it finds at start."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.config.flags import Extensions
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.facts.address import canonical_cidrs
from kubeproxy.modes.netfilter.options import ToolOptions, mark_text_of, tool_options_of

DEFAULT_SCHEDULER = "rr"


class Options(Struct, frozen=True, gc=False):
    """The defaults are the configuration's defaults; a timeout of 0 leaves the kernel's."""

    mark: str = "0x00004000"
    scheduler: str = DEFAULT_SCHEDULER
    exclude_cidrs: tuple[str, ...] = ()
    strict_arp: bool = False
    tcp_timeout_seconds: int = 0
    tcp_fin_timeout_seconds: int = 0
    udp_timeout_seconds: int = 0
    host_ports_on_cluster_ips: bool = False
    """Do the host's own ports answer on service addresses?"""
    drain_limit_seconds: float = 86400.0
    """How long a removed real server may keep its connections."""
    counts_refused: bool = False
    """Are packets counted that are refused?"""
    tools: ToolOptions = ToolOptions()
    has_random_fully: bool = True
    """Does the tool know `--random-fully`? Replaced by what is probed."""


def options_of(config: KubeProxyConfiguration, extensions: Extensions) -> Options:
    section = config.ipvs
    return Options(
        mark=mark_text_of(config),
        scheduler=section.scheduler or DEFAULT_SCHEDULER,
        exclude_cidrs=canonical_cidrs(section.exclude_cidrs or ()),
        strict_arp=section.strict_arp,
        tcp_timeout_seconds=int(section.tcp_timeout.seconds),
        tcp_fin_timeout_seconds=int(section.tcp_fin_timeout.seconds),
        udp_timeout_seconds=int(section.udp_timeout.seconds),
        host_ports_on_cluster_ips=extensions.is_on("ipvs-hostports-on-clusterips"),
        counts_refused=extensions.number("service-metrics") > 0,
        tools=tool_options_of(extensions),
    )
