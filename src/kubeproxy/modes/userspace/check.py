"""Can this mode run here? Checks its options and the iptables tools it needs."""

from __future__ import annotations

from collections.abc import Collection

from kubeproxy.errors import ConfigError, Unsupported
from kubeproxy.facts.address import is_loopback
from kubeproxy.facts.ids import Family
from kubeproxy.modes.netfilter.check import require_iptables
from kubeproxy.modes.userspace.options import Options
from kubeproxy.modes.userspace.sinks.ports import parse_port_range

_NEEDED = (
    "-p tcp -m tcp -j DNAT --to-destination :80",
    "-p tcp -m tcp -j REDIRECT --to-ports 80",
)
"""Rules that need what this mode needs of the kernel: packets led to our own sockets."""


async def check(families: Collection[Family], options: Options) -> None:
    """Raise Unsupported unless every one of these families can be proxied."""
    if is_loopback(options.bind_address):
        raise Unsupported("cannot proxy on localhost")
    try:
        parse_port_range(options.port_range)
    except ConfigError as error:
        raise Unsupported(str(error)) from error
    if options.udp_idle_seconds <= 0:
        raise Unsupported("the UDP idle time-out must be more than 0: set --udp-timeout")
    for family in families:
        await require_iptables(family, options.tools, _NEEDED)
