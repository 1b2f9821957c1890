"""The userspace mode's entry in the registry, and whether it can run here."""

from __future__ import annotations

from collections.abc import Collection

from kubeproxy.backends.base import Mode, ModeOptions
from kubeproxy.backends.netfilter.support import require_iptables
from kubeproxy.backends.userspace.backend import UserspaceBackend
from kubeproxy.backends.userspace.cleanup import cleanup
from kubeproxy.backends.userspace.ports import parse_port_range
from kubeproxy.errors import ConfigError, Unsupported
from kubeproxy.facts.address import is_loopback
from kubeproxy.facts.ids import Family


async def check(families: Collection[Family], options: ModeOptions) -> None:
    """Raise Unsupported unless every one of these families can be proxied."""
    if is_loopback(options.bind_address):
        raise Unsupported("cannot proxy on localhost")
    try:
        parse_port_range(options.userspace_port_range)
    except ConfigError as error:
        raise Unsupported(str(error)) from error
    if options.userspace_udp_idle_seconds <= 0:
        raise Unsupported("the UDP idle time-out must be more than 0: set --udp-timeout")
    for family in families:
        await require_iptables(family, options)


MODE = Mode(
    name="userspace",
    create=UserspaceBackend,
    check=check,
    cleanup=cleanup,
    leftovers_of=("iptables", "nftables", "ipvs"),
)
