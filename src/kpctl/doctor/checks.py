"""Every check of `kpctl doctor`: from what was read to findings. Pure.

A check is a generator over a `Case`. It yields nothing where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from kpctl.doctor.findings import Finding, failure, ok, warning
from kpctl.doctor.host import Host
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.ids import Family
from kubeproxy.plan.types import FrontendKind, ServicePlan

NEARLY_FULL, FULL = 0.8, 0.95
_SHOWN = 3


class Case(Struct, frozen=True):
    """What is examined: the host, and the proxy's snapshot if one answers."""

    host: Host
    snapshot: Snapshot | None = None
    proxy_problem: str = ""
    unsupported: str = ""

    @property
    def mode(self) -> str:
        return self.snapshot.mode if self.snapshot else ""

    def plans(self) -> list[tuple[Family, ServicePlan]]:
        return list(self.snapshot.plans()) if self.snapshot else []


Check = Callable[[Case], Iterator[Finding]]


def examine(case: Case) -> list[Finding]:
    """Return the findings of all checks, in their order."""
    return [finding for check in CHECKS for finding in check(case)]


def check_proxy(case: Case) -> Iterator[Finding]:
    if case.snapshot is None or case.snapshot.status is None:
        yield failure(
            "proxy", case.proxy_problem, "start kube-proxy, or look at why it ended: its log"
        )
        return
    status = case.snapshot.status
    late = [each.family.value for each in status.families if not each.is_healthy]
    if late:
        text = f"changes of {' and '.join(late)} wait longer than twice the sync period"
        yield failure("proxy", text, "kpctl status shows the last rounds and their errors")
    refused = sum(len(each.refused) for each in status.families)
    if refused:
        text = f"{refused} service ports are refused by the kernel"
        yield failure("proxy", text, "kpctl status names them with the kernel's reason")
    if not late and not refused:
        yield ok("proxy", f"kube-proxy {status.version} runs in {status.mode} mode and keeps up")


def check_other_proxies(case: Case) -> Iterator[Finding]:
    if len(case.host.proxies) > 1:
        text = f"more than one runs in this network namespace: {', '.join(case.host.proxies)}"
        yield failure(
            "other proxies",
            text,
            "stop all but one: the others wait for its end, or each undoes what the other does",
        )
    others = [r for r in case.host.rule_sets if case.mode and r.mode != case.mode]
    for found in dict.fromkeys((r.mode, r.place) for r in others):
        mode, place = found
        yield failure(
            "other proxies",
            f"rules of {mode} mode are still there ({place})",
            "kube-proxy removes them after its first sync; if they stay, its log has the reason",
        )
    if len(case.host.proxies) <= 1 and not others:
        yield ok("other proxies", "no other kube-proxy, and no rules of another mode")


def check_api(case: Case) -> Iterator[Finding]:
    if case.snapshot is None or case.snapshot.status is None:
        return
    status = case.snapshot.status
    failing = [each for each in status.collections if each.state == "failing"]
    for each in failing:
        yield failure(
            "objects",
            f"{each.name} are not followed for {each.seconds:.0f} s: {each.problem}",
            "rules stay as they are until this works again; look at the network to the API server,"
            " its certificate and the role of this user",
        )
    if not failing and status.collections:
        yield ok("objects", f"changes are followed from {status.source}")
    for problem in status.problems[:_SHOWN]:
        yield warning(
            "objects",
            f"{problem.kind} {problem.name} is left out, wholly or in part: {problem.reason}",
            "mend the object; kpctl status lists all",
        )


def check_support(case: Case) -> Iterator[Finding]:
    if case.unsupported:
        yield failure("kernel and tools", case.unsupported, "see docs: supported kernels and modes")
    elif case.mode:
        yield ok("kernel and tools", f"this host has what {case.mode} mode needs")


def check_forwarding(case: Case) -> Iterator[Finding]:
    served = {family for family, plan in case.plans() if plan.reachable}
    names = {
        Family.IPV4: "net/ipv4/ip_forward",
        Family.IPV6: "net/ipv6/conf/all/forwarding",
    }
    for family in (f for f in Family if f in served or case.snapshot is None):
        name = names[family]
        if case.host.sysctls.get(name) == "0":
            yield failure(
                "forwarding",
                f"{family.value} packets are not forwarded: {_dotted(name)} is 0",
                f"sysctl -w {_dotted(name)}=1, and in /etc/sysctl.d for the next boot",
            )
        elif name in case.host.sysctls:
            yield ok("forwarding", f"{family.value} packets are forwarded")


def check_routes(case: Case) -> Iterator[Finding]:
    """A packet to a virtual address needs a route before its address is translated, and after."""
    if case.snapshot is None:
        return
    endpoints = {e.address for _, plan in case.plans() for e in plan.reachable}
    for address, reason in list(case.host.unreachable.items())[:_SHOWN]:
        what = "endpoint" if address in endpoints else "virtual address"
        remedy = (
            "the pod network of that node is not known here: look at the CNI's routes"
            if what == "endpoint"
            else "add a default route, or one for the service network, through any interface"
        )
        yield failure("routes", f"no route leads to the {what} {address}: {reason}", remedy)
    if not case.host.unreachable and case.plans():
        yield ok("routes", "a route leads to every virtual address and endpoint that was tried")


def check_rp_filter(case: Case) -> Iterator[Finding]:
    links = [link for link in case.host.links if link.has_address and link.name != "lo"]
    everywhere = case.host.sysctls.get("net/ipv4/conf/all/rp_filter") == "1"
    strict = [link.name for link in links if link.rp_filter == "1" or everywhere]
    outer = [link for link in links if link.kind not in ("veth", "bridge", "dummy")]
    if strict and len(outer) > 1:
        yield warning(
            "source checks",
            f"rp_filter is strict on {_some(strict)}, and this host has {len(outer)} networks:"
            " answers that come in by another way are dropped",
            "sysctl -w net.ipv4.conf.all.rp_filter=2 (loose)",
        )
    elif links:
        yield ok("source checks", "rp_filter does not stand in the way")


def check_conntrack(case: Case) -> Iterator[Finding]:
    values = case.host.sysctls
    count, most = (_number(values.get(f"net/netfilter/nf_conntrack_{n}")) for n in ("count", "max"))
    if most:
        share, text = count / most, f"{count} of {most} connections are tracked"
        remedy = (
            "raise conntrack.maxPerCore in kube-proxy's configuration; kpctl connections shows"
            " which Service has the most"
        )
        if share >= FULL:
            yield failure("conntrack", f"{text}: new ones are dropped soon", remedy)
        elif share >= NEARLY_FULL:
            yield warning("conntrack", text, remedy)
        else:
            yield ok("conntrack", text)
    dropped = case.host.conntrack_drops.get("drop", 0)
    if dropped:
        yield warning(
            "conntrack",
            f"{dropped} packets were dropped since boot because no entry could be made",
            "raise conntrack.maxPerCore, or shorten conntrack.tcpCloseWaitTimeout",
        )


def check_variant(case: Case) -> Iterator[Finding]:
    used = {name for name, count in case.host.rule_counts.items() if count}
    if len(used) > 1:
        counts = ", ".join(f"{n}: {case.host.rule_counts[n]} rules" for n in sorted(used))
        yield warning(
            "iptables variant",
            f"both variants of iptables hold rules ({counts}); a packet meets both",
            "find the program that uses the other one (kubelet, CNI, firewall) and give it the"
            " same iptables; --iptables-variant forces ours",
        )
    elif used and case.mode in ("iptables", "ipvs", "userspace"):
        yield ok("iptables variant", f"only iptables-{used.pop()} holds rules")


def check_bridges(case: Case) -> Iterator[Finding]:
    """Pods on one bridge reach each other past iptables unless the bridge calls it."""
    if not any(link.kind == "bridge" for link in case.host.links):
        return
    for name in ("net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"):
        if case.host.sysctls.get(name) == "0":
            yield warning(
                "bridges",
                f"{_dotted(name)} is 0: a pod cannot reach another on the same bridge by a Service",
                f"sysctl -w {_dotted(name)}=1",
            )


def check_node_ports(case: Case) -> Iterator[Finding]:
    ports = {
        frontend.port: plan.id
        for _, plan in case.plans()
        for frontend in plan.frontends
        if frontend.kind is FrontendKind.NODE_PORT
    }
    low, high = _port_range(case.host.sysctls.get("net/ipv4/ip_local_port_range", ""))
    reserved = _ranges(case.host.sysctls.get("net/ipv4/ip_local_reserved_ports", ""))
    taken = [p for p in ports if low <= p <= high and not any(a <= p <= b for a, b in reserved)]
    if taken:
        yield warning(
            "node ports",
            f"node port {_some(map(str, sorted(taken)))} lies in the range from which this host"
            f" takes ports for its own connections ({low} to {high})",
            "sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767",
        )
    if case.mode != "userspace":
        for port in sorted(ports.keys() & case.host.listening.keys()):
            yield warning(
                "node ports",
                f"a program of this host listens at {case.host.listening[port]}:{port}, which is"
                f" the node port of {ports[port]}: the Service gets the traffic",
                "let the program listen elsewhere, or give the Service another node port",
            )
    if ports and not taken:
        yield ok("node ports", f"{len(ports)} node ports, none in the range of local ports")


def check_arp(case: Case) -> Iterator[Finding]:
    if case.mode != "ipvs" or case.snapshot is None:
        return
    uses_addresses = any(
        f.kind in (FrontendKind.LOAD_BALANCER, FrontendKind.EXTERNAL_IP)
        for _, plan in case.plans()
        for f in plan.frontends
    )
    if uses_addresses and case.host.sysctls.get("net/ipv4/conf/all/arp_ignore") == "0":
        yield warning(
            "ARP",
            "every node answers ARP for load balancer addresses, which are bound to kube-ipvs0",
            "set ipvs.strictARP: true if MetalLB or the like announces these addresses",
        )


def check_clock(case: Case) -> Iterator[Finding]:
    if case.host.is_clock_synchronized is False:
        yield warning(
            "clock",
            "nothing keeps this host's clock right: certificates, tokens and latencies may be off",
            "run chrony, ntpd or systemd-timesyncd",
        )
    elif case.host.is_clock_synchronized:
        yield ok("clock", "the clock is synchronized")


CHECKS: tuple[Check, ...] = (
    check_proxy,
    check_other_proxies,
    check_api,
    check_support,
    check_forwarding,
    check_routes,
    check_rp_filter,
    check_conntrack,
    check_variant,
    check_bridges,
    check_node_ports,
    check_arp,
    check_clock,
)


def _dotted(name: str) -> str:
    return name.replace("/", ".")


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _some(names: Iterable[str]) -> str:
    found = list(names)
    shown = ", ".join(found[:_SHOWN])
    return shown if len(found) <= _SHOWN else f"{shown} and {len(found) - _SHOWN} more"


def _port_range(text: str) -> tuple[int, int]:
    """Read `32768 60999`. What is not a range holds no port."""
    numbers = [int(word) for word in text.split() if word.isdecimal()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (1, 0)


def _ranges(text: str) -> list[tuple[int, int]]:
    """Read `8080,9148-9150`."""
    found = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found.append((int(first), int(last) if last.isdecimal() else int(first)))
    return found
