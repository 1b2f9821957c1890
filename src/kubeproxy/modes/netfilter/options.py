"""What every mode that runs the iptables tools reads of configuration and extension flags."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.config.flags import Extensions
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.modes.netfilter.rules.variant import AUTO


class ToolOptions(Struct, frozen=True, gc=False):
    """How the iptables tools are run; the defaults are the configuration's defaults."""

    lock_timeout_seconds: float = 5.0
    """How long a tool waits for another program that holds the xtables lock."""
    variant: str = ""
    """`legacy` or `nft` insists on one variant of the tools; empty takes what PATH offers."""


VARIANT_FLAG = "iptables-variant"


def tool_options_of(extensions: Extensions) -> ToolOptions:
    """How to run the tools. A variant that was not looked for yet is what PATH offers."""
    variant = extensions.text(VARIANT_FLAG)
    return ToolOptions(
        lock_timeout_seconds=extensions.seconds("xtables-lock-timeout"),
        variant="" if variant == AUTO else variant,
    )


def mark_text_of(config: KubeProxyConfiguration) -> str:
    """The mark of packets that need masquerading, as iptables rules spell it."""
    return f"0x{1 << config.masquerade_bit:08x}"
