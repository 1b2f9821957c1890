"""What this mode reads of configuration and extension flags."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.config.flags import Extensions
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family
from kubeproxy.modes.netfilter.options import ToolOptions, tool_options_of


class Options(Struct, frozen=True, gc=False):
    """The defaults are the configuration's defaults."""

    bind_address: str = "0.0.0.0"
    port_range: str = ""
    """Ports for the proxy's own listeners; empty lets the kernel choose."""
    udp_idle_seconds: float = 0.25
    localhost_node_ports: bool = True
    sync_period_seconds: float = 30.0
    tools: ToolOptions = ToolOptions()

    def listen_address(self, family: Family) -> str:
        """The address of proxy ports: the bind address, or all if that is of the other family."""
        if self.bind_address and family_of(self.bind_address) is family:
            return self.bind_address
        return family.wildcard

    def serves_localhost(self, family: Family) -> bool:
        """Are node ports served at the loopback address? The option is about IPv4 alone."""
        return family is Family.IPV6 or self.localhost_node_ports


def options_of(config: KubeProxyConfiguration, extensions: Extensions) -> Options:
    return Options(
        bind_address=config.bind_address,
        port_range=extensions.text("proxy-port-range") or config.port_range,
        udp_idle_seconds=extensions.seconds("udp-timeout"),
        localhost_node_ports=config.iptables.localhost_node_ports,
        sync_period_seconds=config.sync_period_seconds,
        tools=tool_options_of(extensions),
    )
