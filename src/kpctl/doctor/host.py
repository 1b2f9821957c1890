"""What an examination reads of the host: everything that the checks look at, as one value.

Nothing is changed, and what cannot be read is left empty: a check then has nothing to say about it.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from kpctl.snapshot.sockets import open_sockets
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.nftables.table import Nftables
from kubeproxy.kernel.route.table import Route
from kubeproxy.kernel.sysctl import find_sysctl
from kubeproxy.modes.netfilter.rules.variant import count_rules
from kubeproxy.modes.netfilter.sinks.variant import saved_rules
from kubeproxy.run.presence import running_proxies

_NET = Path("/proc/thread-self/net")
_STA_UNSYNC = 0x40
_TIMEX_BYTES = 256
_TIMEX_STATUS = 40
"""Where `status` stands in the kernel's struct timex on 64-bit machines."""

SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/arp_announce",
    "net/ipv4/conf/all/rp_filter",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
)


class Link(Struct, frozen=True):
    """A network device: its kind, whether it has an address, and how it checks sources."""

    name: str
    kind: str
    has_address: bool
    rp_filter: str


class RuleSet(Struct, frozen=True):
    """Rules that a kube-proxy has left somewhere: of which mode, and where."""

    mode: str
    place: str


class Host(Struct, frozen=True):
    """One look at the host."""

    sysctls: Mapping[str, str] = {}
    links: tuple[Link, ...] = ()
    conntrack_drops: Mapping[str, int] = {}
    listening: Mapping[int, str] = {}
    """TCP ports on which something listens, with the address."""
    unreachable: Mapping[str, str] = {}
    """Addresses to which no route leads, with the reason."""
    proxies: tuple[str, ...] = ()
    rule_counts: Mapping[str, int] = {}
    """Rules in each variant of iptables."""
    rule_sets: tuple[RuleSet, ...] = ()
    is_clock_synchronized: bool | None = None


async def read_host(destinations: Iterable[str]) -> Host:
    """Look at the host once. `destinations` are the addresses to which a route must lead."""
    saved = await saved_rules()
    return Host(
        sysctls={name: value for name in SYSCTLS if (value := find_sysctl(name)) is not None},
        links=tuple(_links()),
        conntrack_drops=_conntrack_drops(),
        listening=_listening(),
        unreachable={a: reason for a in destinations if (reason := _route_problem(a))},
        proxies=tuple(running_proxies()),
        rule_counts={variant: count_rules(text) for variant, text in saved.items()},
        rule_sets=tuple(_rule_sets(saved)),
        is_clock_synchronized=_is_clock_synchronized(),
    )


def _links() -> Iterable[Link]:
    with contextlib.suppress(KernelError), Route() as route:
        addressed = {address.link for address in route.addresses()}
        for link in route.links():
            value = find_sysctl(f"net/ipv4/conf/{link.name}/rp_filter") or ""
            yield Link(link.name, link.kind, link.index in addressed, value)


def _conntrack_drops() -> dict[str, int]:
    """Sum the counters of all processors. The file has one line each, in hexadecimal."""
    try:
        heading, *lines = (_NET / "stat/nf_conntrack").read_text().splitlines()
    except (OSError, ValueError):
        return {}
    names = heading.split()
    totals = dict.fromkeys(("drop", "early_drop", "insert_failed"), 0)
    for line in lines:
        values = dict(zip(names, line.split(), strict=False))
        for name in totals:
            totals[name] += int(values.get(name, "0"), 16)
    return totals


def _listening() -> dict[int, str]:
    return {
        place.port: place.address
        for family in Family
        for place in open_sockets(family).found
        if place.protocol is Protocol.TCP
    }


def _route_problem(address: str) -> str:
    """Ask the kernel for a route. Connecting a UDP socket sends nothing."""
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _rule_sets(saved: Mapping[str, str]) -> Iterable[RuleSet]:
    for variant, text in saved.items():
        if ":KUBE-PORTALS-CONTAINER " in text:
            yield RuleSet("userspace", f"iptables-{variant}")
        if ":KUBE-SEP-" in text or ":KUBE-SVC-" in text:
            yield RuleSet("iptables", f"iptables-{variant}")
        if ":KUBE-LOAD-BALANCER " in text:
            yield RuleSet("ipvs", f"iptables-{variant}")
    for family in Family:
        with contextlib.suppress(KernelError), Nftables(family.af) as nftables:
            if any(table.name == "kube-proxy" for table in nftables.tables()):
                yield RuleSet("nftables", f"nftables table of {family.value}")


def _is_clock_synchronized() -> bool | None:
    """Ask the kernel whether something keeps its clock right (adjtimex)."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        if ctypes.CDLL(None).adjtimex(buffer) < 0:
            return None
    except (OSError, AttributeError):
        return None
    status = int.from_bytes(buffer.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], "little")
    return not status & _STA_UNSYNC
