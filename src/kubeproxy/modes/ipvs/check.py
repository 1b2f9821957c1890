"""Check whether this host can run the mode, and set what must be set before it does.

Every requirement is tried rather than looked up: a netlink family, a protocol version, a throw-away
virtual server. Errors begin like upstream's and go on with what to do about it.
"""

from __future__ import annotations

import errno
from collections.abc import Collection

from kubeproxy.errors import KernelError, Unsupported
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.node import SERVICE_LINK
from kubeproxy.kernel.ipset.table import Ipset
from kubeproxy.kernel.ipset.wire import SetHead, SetType
from kubeproxy.kernel.ipvs.table import NOT_SUPPORTED, Ipvs
from kubeproxy.kernel.ipvs.wire import Service, Timeouts
from kubeproxy.kernel.modules import load_module
from kubeproxy.kernel.route.table import Route
from kubeproxy.kernel.sysctl import ensure_sysctl, kernel_release
from kubeproxy.logs import get_logger
from kubeproxy.modes.ipvs.names import SET_TYPES
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.netfilter.check import report_missing, require_iptables
from kubeproxy.modes.netfilter.sinks.xtables import Xtables

logger = get_logger(__name__)

PROBE_ADDRESSES = {Family.IPV4: "198.51.100.0", Family.IPV6: "2001:db8:ffff::"}
"""From networks reserved for documentation; no real service may use them."""
PROBE_PORT = 20000
PROBE_LINK = "kube-ipvs-check"

_NEEDED = (
    "-m ipvs --ipvs -j RETURN",
    "-m physdev ! --physdev-is-in -j RETURN",
)
"""Rules that need what this mode needs of the kernel, beside sets."""

_REUSE_MODE_SINCE = (4, 1)
_REUSE_MODE_UNTIL = (5, 9)


async def check(families: Collection[Family], options: Options) -> None:
    """Raise Unsupported unless IPVS, ipset, the scheduler and iptables are all available."""
    try:
        with await open_ipvs() as ipvs:
            check_ipset()
            check_dummy()
            for family in families:
                probe_scheduler(ipvs, options.scheduler, family)
    except (KernelError, Unsupported) as error:
        raise Unsupported(f"can't use the IPVS proxier: {error}") from error
    for family in families:
        await require_iptables(family, options.tools, _NEEDED)
        await _report_set_match(family, options)


async def open_ipvs() -> Ipvs:
    """Open IPVS, after loading its module if necessary. Raises Unsupported, with the reason."""
    try:
        return Ipvs()
    except Unsupported:
        problem = await load_module("ip_vs")
    try:
        return Ipvs()
    except Unsupported as error:
        reason = f" ({problem})" if problem else ""
        raise Unsupported(f"{NOT_SUPPORTED}{reason}") from error


def check_ipset() -> None:
    """Raise Unsupported, with the module's name, unless the kernel has ipset and our set types."""
    try:
        with Ipset() as ipset:
            ipset.check()
            for kind in dict.fromkeys(SET_TYPES.values()):
                _check_set_type(ipset, kind)
    except KernelError as error:
        raise Unsupported(f"the kernel has no ipset (module ip_set): {error}") from error


def _check_set_type(ipset: Ipset, kind: SetType) -> None:
    try:
        ipset.check_type(SetHead(kind, False))
    except KernelError as error:
        # hash:ip,port is the module ip_set_hash_ipport.
        module = f"ip_set_{kind.value.replace(':', '_').replace(',', '')}"
        raise Unsupported(
            f"the kernel has no ipset type {kind.value} (module {module}): {error}"
        ) from error


def check_dummy() -> None:
    """Raise Unsupported unless the kernel has dummy links, on which service addresses are bound."""
    with Route() as route:
        if route.link(SERVICE_LINK) is not None:
            return
        try:
            route.delete_link(route.ensure_dummy(PROBE_LINK))
        except KernelError as error:
            raise Unsupported(f"the kernel has no dummy links (module dummy): {error}") from error


async def _report_set_match(family: Family, options: Options) -> None:
    # A rule could only be tried with a set that exists; the help of the match is enough to ask
    # the kernel for it.
    help_text = await Xtables(family, options.tools).command("-m", "set", "-h")
    report_missing(help_text.output)


def probe_scheduler(ipvs: Ipvs, scheduler: str, family: Family = Family.IPV4) -> None:
    """Try whether the kernel's IPVS has this scheduler and this family. Raises Unsupported."""
    known = (s for s in ipvs.services() if family_of(s.address) is family)
    if any(service.scheduler == scheduler for service in known):
        return
    probe = Service(Protocol.TCP.number, PROBE_ADDRESSES[family], PROBE_PORT, scheduler, 0, 0)
    try:
        ipvs.create(probe)
    except KernelError as error:
        if error.errno == errno.EAFNOSUPPORT:
            raise Unsupported(f"the kernel's IPVS has no {family.value}") from error
        if error.errno == errno.ENOENT:
            raise Unsupported(
                f'no such file or directory: the kernel has no IPVS scheduler "{scheduler}"; '
                f"check ipvs.scheduler, or install the module ip_vs_{scheduler}"
            ) from error
        if error.errno != errno.EEXIST:
            raise
    if not ipvs.services():
        raise Unsupported("ipvs not supported")
    ipvs.delete(probe)


def wanted_sysctls(release: tuple[int, int], *, strict_arp: bool) -> list[tuple[str, int]]:
    """Kernel parameters in upstream's order. Pure."""
    wanted = [("net/ipv4/vs/conntrack", 1)]
    # Before 5.9, IPVS with conntrack drops the first packet of a connection that reuses a port.
    if _REUSE_MODE_SINCE <= release < _REUSE_MODE_UNTIL:
        wanted.append(("net/ipv4/vs/conn_reuse_mode", 0))
    wanted += [
        ("net/ipv4/vs/expire_nodest_conn", 1),
        ("net/ipv4/vs/expire_quiescent_template", 1),
        ("net/ipv4/ip_forward", 1),
    ]
    if strict_arp:
        wanted += [("net/ipv4/conf/all/arp_ignore", 1), ("net/ipv4/conf/all/arp_announce", 2)]
    return wanted


def set_sysctls(options: Options) -> None:
    """Write the kernel parameters that differ. Raises KernelError if one cannot be written."""
    release = kernel_release()
    if release < _REUSE_MODE_SINCE:
        logger.error(
            "can't set sysctl net/ipv4/vs/conn_reuse_mode",
            "Kernel version is too old: connections may be reused wrongly",
            kernel=".".join(map(str, release)),
        )
    for name, value in wanted_sysctls(release, strict_arp=options.strict_arp):
        if ensure_sysctl(name, value):
            logger.info("Set sysctl", entry=name, value=value)


def set_timeouts(options: Options) -> None:
    """Set IPVS's connection timeouts if any is configured. A failure is logged, not raised."""
    timeouts = Timeouts(
        tcp=options.tcp_timeout_seconds,
        tcp_fin=options.tcp_fin_timeout_seconds,
        udp=options.udp_timeout_seconds,
    )
    if timeouts == Timeouts(0, 0, 0):
        return
    try:
        with Ipvs() as ipvs:
            ipvs.set_timeouts(timeouts)
    except (KernelError, Unsupported) as error:
        logger.error(error, "Failed to configure IPVS timeouts")
