"""What this mode reads of configuration and extension flags."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.config.flags import Extensions
from kubeproxy.config.types import KubeProxyConfiguration


class Options(Struct, frozen=True, gc=False):
    """The defaults are the configuration's defaults."""

    masquerade_mark: int = 1 << 14
    localhost_node_ports: bool = False
    """Are node ports served on the loopback address, by listeners of our own?"""
    counts_refused: bool = False
    """Are packets counted that are refused?"""


def options_of(config: KubeProxyConfiguration, extensions: Extensions) -> Options:
    return Options(
        masquerade_mark=1 << config.masquerade_bit,
        localhost_node_ports=extensions.is_on("nftables-localhost-nodeports"),
        counts_refused=extensions.number("service-metrics") > 0,
    )
