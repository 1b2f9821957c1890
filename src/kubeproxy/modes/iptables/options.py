"""What this mode reads of configuration and extension flags, and what it finds at start."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.config.flags import Extensions
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.netfilter.options import ToolOptions, mark_text_of, tool_options_of


class Features(Struct, frozen=True, gc=False):
    """What tools and kernel can do; the defaults are a current host's."""

    has_random_fully: bool = True
    has_invalid_counter: bool = True
    has_localhost_counter: bool = True
    is_tcp_liberal: bool = False


class Options(Struct, frozen=True, gc=False):
    """The defaults are the configuration's defaults; `features` is replaced by what is probed."""

    mark: str = "0x00004000"
    localhost_node_ports: bool = True
    sync_period_seconds: float = 30.0
    tools: ToolOptions = ToolOptions()
    features: Features = Features()

    def serves_localhost(self, node: NodeFacts) -> bool:
        """Are node ports reachable at 127.0.0.0/8?"""
        return (
            self.localhost_node_ports
            and node.family is Family.IPV4
            and node.node_ports_include_ipv4_loopback
        )


def options_of(config: KubeProxyConfiguration, extensions: Extensions) -> Options:
    return Options(
        mark=mark_text_of(config),
        localhost_node_ports=config.iptables.localhost_node_ports,
        sync_period_seconds=config.sync_period_seconds,
        tools=tool_options_of(extensions),
        features=Features(is_tcp_liberal=config.conntrack.tcp_be_liberal),
    )
