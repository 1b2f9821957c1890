"""Whether the mode can run here, what host and tools can do, and the one thing it must change.

All of this happens once, at start.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.sysctl import ensure_sysctl, find_sysctl
from kubeproxy.logs import get_logger
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.options import Features, Options
from kubeproxy.modes.iptables.sinks.counters import are_counters_supported, ensure_counters
from kubeproxy.modes.netfilter.check import require_iptables
from kubeproxy.modes.netfilter.sinks.xtables import Xtables

logger = get_logger(__name__)

_ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
_BE_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"
_IPV6_INTERFACES = Path("/proc/net/if_inet6")
_IPV6_DISABLED = "net/ipv6/conf/all/disable_ipv6"
_NEEDED = (
    "-m statistic --mode random --probability 0.5 -j RETURN",
    "-m recent --name KUBE-PROXY-CHECK --rcheck --seconds 10 --reap -j RETURN",
    "-p tcp -m tcp -j DNAT --to-destination :80",
)
"""Rules that need what this mode needs of the kernel: chance, affinity, translation."""


async def check(families: Collection[Family], options: Options) -> None:
    """Raise Unsupported unless iptables works for every one of these families."""
    for family in families:
        if family is Family.IPV6 and not _has_ipv6():
            raise Unsupported("iptables is not available on this host : IPv6 is switched off")
        await require_iptables(family, options.tools, _NEEDED)


def _has_ipv6() -> bool:
    # ip6tables works on a host that has IPv6 switched off; only no packet would ever arrive.
    return _IPV6_INTERFACES.exists() and find_sysctl(_IPV6_DISABLED) != "1"


async def probe_features(tables: Xtables, *, creates_counters: bool = True) -> Features:
    """Find out the tools' version, accounting objects (created if missing) and TCP liberality.

    Without creating them, accounting objects count as there if they can be.
    """
    version = await tables.probe()
    counters: frozenset[str] = frozenset()
    if are_counters_supported():
        every = frozenset({names.INVALID_COUNTER, names.LOCALHOST_COUNTER})
        counters = ensure_counters() if creates_counters else every
    else:
        logger.info("This kernel has no nfacct: packets are not counted, all else is the same")
    return Features(
        has_random_fully=version.has_random_fully,
        has_invalid_counter=names.INVALID_COUNTER in counters,
        has_localhost_counter=names.LOCALHOST_COUNTER in counters,
        is_tcp_liberal=find_sysctl(_BE_LIBERAL) not in (None, "0"),
    )


def allow_localhost_routing() -> None:
    """Let packets for 127.0.0.0/8 be routed, which node ports at localhost need.

    It is never taken back, since other programs may rely on it by then. Raises Unsupported if it
    cannot be set: a failure is fatal, as it is upstream.
    """
    logger.info(
        "Setting route_localnet=1 to allow node-ports on localhost; to change this either disable"
        " iptables.localhostNodePorts (--iptables-localhost-nodeports) or set nodePortAddresses"
        " (--nodeport-addresses) to filter loopback addresses",
        ipFamily=Family.IPV4.value,
    )
    try:
        ensure_sysctl(_ROUTE_LOCALNET, 1)
    except KernelError as error:
        raise Unsupported(
            f"{error}; node ports at localhost need it: set it beforehand, or use "
            "--iptables-localhost-nodeports=false"
        ) from error
