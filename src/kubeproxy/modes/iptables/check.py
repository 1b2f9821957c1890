"""What host and tools can do, found out once at start; and the one thing the host must allow."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nfacct import table as nfacct
from kubeproxy.kernel.sysctl import ensure_sysctl, find_sysctl
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import ModeOptions
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.options import Features
from kubeproxy.modes.netfilter.check import require_iptables
from kubeproxy.modes.netfilter.sinks.xtables import Xtables

logger = get_logger(__name__)

_ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
_BE_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"
_IPV6_INTERFACES = Path("/proc/net/if_inet6")
_IPV6_DISABLED = "net/ipv6/conf/all/disable_ipv6"


async def probe_features(tables: Xtables) -> Features:
    """Version of the tools, accounting objects (made if missing), TCP liberality."""
    version = await tables.probe()
    counters: frozenset[str] = frozenset()
    if nfacct.is_supported():
        counters = make_counters()
    else:
        logger.info("This kernel has no nfacct: packets are not counted, all else is the same")
    return Features(
        has_random_fully=version.has_random_fully,
        has_invalid_counter=names.INVALID_COUNTER in counters,
        has_localhost_counter=names.LOCALHOST_COUNTER in counters,
        is_tcp_liberal=find_sysctl(_BE_LIBERAL) not in (None, "0"),
    )


def allow_localhost_routing() -> None:
    """Packets for 127.0.0.0/8 may be routed, which node ports at localhost need.

    Never taken back, since others may rely on it by then. Failing is fatal, as it is upstream.
    """
    try:
        ensure_sysctl(_ROUTE_LOCALNET, 1)
    except KernelError as error:
        raise Unsupported(
            f"{error}; node ports at localhost need it: set it beforehand, or use "
            "--iptables-localhost-nodeports=false"
        ) from error


def make_counters() -> frozenset[str]:
    """Make those of our accounting objects that are missing; which there are now."""
    made = set()
    for name in (names.INVALID_COUNTER, names.LOCALHOST_COUNTER):
        try:
            nfacct.ensure_counter(name)
            made.add(name)
        except KernelError as error:
            logger.error(error, "Failed to ensure nfacct counter", counter=name)
    return frozenset(made)


def packets_of(counter: str) -> int | None:
    """Packets counted so far; None if that cannot be read now."""
    try:
        found = nfacct.find_counter(counter)
    except KernelError:
        return None
    return None if found is None else found.packets


async def check_families(families: Collection[Family], options: ModeOptions) -> None:
    """Raise Unsupported unless iptables works for every one of these families."""
    for family in families:
        if family is Family.IPV6 and not _has_ipv6():
            raise Unsupported("iptables is not available on this host : IPv6 is switched off")
        await require_iptables(family, options)


def _has_ipv6() -> bool:
    return _IPV6_INTERFACES.exists() and find_sysctl(_IPV6_DISABLED) != "1"
