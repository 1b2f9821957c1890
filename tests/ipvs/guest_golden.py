"""Runs inside the user-mode kernel: one captured case, from the host's state before the start
through every step, and what the kernel's own tools show after each."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.ipvs_golden import GoldenProxy, Step, load_case, normalise_saved
from tests.support.pod_server import Clients, start_pods
from tests.support.waiting import wait_until

from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import SERVICE_LINK
from kubeproxy.kernel.ipvs import wire as ipvs
from kubeproxy.kernel.ipvs.table import Ipvs
from kubeproxy.kernel.ipvs.wire import Service
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.generic import find_family
from kubeproxy.kernel.netlink.socket import NETLINK_GENERIC, NetlinkSocket
from kubeproxy.kernel.route.table import Route
from kubeproxy.kernel.sysctl import find_sysctl
from kubeproxy.modes.ipvs.check import open_ipvs, probe_scheduler
from kubeproxy.modes.ipvs.cleanup import cleanup

SYSCTLS = (
    "net/ipv4/vs/conntrack",
    "net/ipv4/vs/conn_reuse_mode",
    "net/ipv4/vs/expire_nodest_conn",
    "net/ipv4/vs/expire_quiescent_template",
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/arp_announce",
)

PROTOCOLS = {6: "-t", 17: "-u", 132: "--sctp-service"}


class Clock:
    """Runs only when a step waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def say(*argv: str, stdin: str = "") -> str:
    done = subprocess.run(argv, check=True, capture_output=True, text=True, input=stdin)
    return done.stdout


def run_case(folder: str) -> object:
    """The states after the first sync and after each step, by the names of the captured files."""
    return asyncio.run(_run_case(Path(folder)))


async def _run_case(folder: Path) -> list[dict[str, object]]:
    case = load_case(folder)
    (await open_ipvs()).close()
    _prepare_host(case.config.host.interface_addresses)
    _prepare_initial(case.config.host.initial)
    before = {name: find_sysctl(name) for name in SYSCTLS}
    pods = [(str(pod["ip"]), int(str(pod["port"]))) for pod in case.config.host.pods]
    with tempfile.TemporaryDirectory() as scratch, start_pods(pods), Clients() as clients:
        run = Run(GoldenProxy(case, Path(scratch), Clock()), clients)
        await run.start()
        states = [capture(run.proxy, before)]
        for step in case.steps:
            await run.step(step)
            states.append(capture(run.proxy, before))
        return states


class Run:
    """A case on its way."""

    def __init__(self, proxy: GoldenProxy, clients: Clients) -> None:
        self.proxy = proxy
        self._clients = clients

    async def start(self) -> None:
        with await open_ipvs() as table:
            probe_scheduler(table, self.proxy.options.scheduler)
        for family, backend in self.proxy.backends.items():
            await backend.start(self.proxy.engines[family].pipeline.node)
        await self._rounds()

    async def _rounds(self) -> None:
        """Two rounds; the second reads the kernel, and must find nothing to do."""
        for engine in self.proxy.engines.values():
            report = await engine.round()
            assert report.is_success, report.failure_text
            engine.request(full=True)
            again = await engine.round()
            assert again.is_success, again.failure_text
            assert again.changes == 0, f"a second round changed {again.changes} items"

    async def step(self, step: Step) -> None:
        for action in step.actions:
            ((verb, argument),) = action.items()
            if verb == "cleanup":
                assert await cleanup() == []
                return
            await self._act(verb, argument)
        self.proxy.change(step.changes)
        await self._rounds()

    async def _act(self, verb: str, argument: object) -> None:
        details: dict[str, Any] = argument if isinstance(argument, dict) else {}
        if verb == "connect":
            address, _, port = details["to"].rpartition(":")
            place = (address, int(port))
            reached = self._clients.connect(details["name"], details["protocol"], place)
            assert reached == details["reaches"]
        elif verb == "close":
            self._clients.close(details["names"], is_reset=details.get("reset", False))
        elif verb == "wait":
            _wait_until_forgotten()
            self.proxy.clock.now += argument  # type: ignore[attr-defined]
        elif verb == "restart":
            await self._restart(details)
        elif verb == "interfaceAddresses":
            self._move_addresses(details.get("add", ()), details.get("remove", ()))
        else:
            raise ValueError(f"unknown action {verb}")

    async def _restart(self, details: dict[str, Any]) -> None:
        for backend in self.proxy.backends.values():
            await backend.close()
        self.proxy.change(details.get("whileStopped", {}).get("changes", ()), is_running=False)
        self.proxy.configure(details.get("kubeProxyConfig", {}))
        self.proxy.start()
        await self.start()

    def _move_addresses(self, added: list[str], removed: list[str]) -> None:
        for address in added:
            say("ip", "address", "add", address, "dev", "eth0")
        for address in removed:
            say("ip", "address", "delete", address, "dev", "eth0")
        self.proxy.move_addresses(added, removed)


# --- the host before the start ---


def _prepare_host(addresses: Iterable[str]) -> None:
    commands = ["link set lo up", "link add eth0 type dummy", "link set eth0 up"]
    own = (a for a in addresses if not a.startswith(("127.", "::1")))
    commands += [f"address add {address} dev eth0" for address in own]
    say("ip", "-batch", "-", stdin="\n".join(commands))


def _prepare_initial(initial: dict[str, Any]) -> None:
    if "dummyAddresses" in initial:
        say("ip", "link", "add", SERVICE_LINK, "type", "dummy")
    for address in initial.get("dummyAddresses", ()):
        say("ip", "address", "add", address, "dev", SERVICE_LINK)
    if initial.get("ipsets"):
        say("ipset", "restore", stdin="\n".join(initial["ipsets"]) + "\n")
    for name, value in initial.get("sysctls", {}).items():
        (Path("/proc/sys") / name).write_text(str(value))
    for line in initial.get("virtualServers", ()):
        _create_foreign(shlex.split(line))


def _create_foreign(words: list[str]) -> None:
    """What `ipvsadm` would do with these words."""
    value = dict(pairwise(words))
    with NetlinkSocket(NETLINK_GENERIC) as socket:
        family = find_family(socket, ipvs.IPVS_GENL_NAME)
        assert family is not None
        socket.request(family, _foreign_body(words, value), what=" ".join(words))


def _foreign_body(words: list[str], value: dict[str, str]) -> bytes:
    if "-f" in value:
        return _firewall_mark_body(int(value["-f"]), value["-s"])
    option = "-t" if "-t" in value else "-u"
    address, _, port = value[option].rpartition(":")
    place = (6 if option == "-t" else 17, address.strip("[]"), int(port))
    if words[0] == "-a":
        real, _, real_port = value["-r"].rpartition(":")
        key, command = ipvs.format_key(*place), ipvs.IPVS_CMD_NEW_DEST
        weight = int(value.get("-w", 1))
        return ipvs.format_destination(command, key, real.strip("[]"), int(real_port), weight)
    timeout = int(value.get("-p", 0))
    flags = ipvs.IP_VS_SVC_F_PERSISTENT if timeout else 0
    service = Service(*place, value["-s"], flags, timeout)
    return ipvs.format_service(ipvs.IPVS_CMD_NEW_SERVICE, service)


def _firewall_mark_body(mark: int, scheduler: str) -> bytes:
    attrs = (
        codec.attr_u16(ipvs.IPVS_SVC_ATTR_AF, Family.IPV4.af),
        codec.attr_u32(ipvs.IPVS_SVC_ATTR_FWMARK, mark),
        codec.attr_str(ipvs.IPVS_SVC_ATTR_SCHED_NAME, scheduler),
        codec.attr(ipvs.IPVS_SVC_ATTR_FLAGS, bytes(4) + b"\xff" * 4),
        codec.attr_u32(ipvs.IPVS_SVC_ATTR_TIMEOUT, 0),
        codec.attr(ipvs.IPVS_SVC_ATTR_NETMASK, b"\xff" * 4),
    )
    service = codec.attr_nested(ipvs.IPVS_CMD_ATTR_SERVICE, *attrs)
    return codec.genl(ipvs.IPVS_CMD_NEW_SERVICE) + service


# --- what there is now ---


def capture(proxy: GoldenProxy, before: dict[str, str | None]) -> dict[str, object]:
    """Every captured file of the corpus, as this kernel has it."""
    state: dict[str, object] = {
        "sysctl": [f"{name} {old} {find_sysctl(name)}" for name, old in before.items()],
        "timeouts": _timeouts(),
    }
    sets = _sets()
    servers, connections = _servers()
    for family in proxy.engines:
        is_ipv6 = family is Family.IPV6
        suffix = "6" if is_ipv6 else ""
        state[f"ipvs{suffix}"] = [s for s in servers if ("[" in s) == is_ipv6]
        state[f"connections{suffix}"] = [c for c in connections if ("[" in c) == is_ipv6]
        state[f"ipset{suffix}"] = [s for s in sets if (" KUBE-6-" in s) == is_ipv6]
        state[f"iptables{suffix}"] = _rules("ip6tables" if is_ipv6 else "iptables")
        state[f"addresses{suffix}"] = _addresses(family)
    return state


def _timeouts() -> str:
    with Ipvs() as table:
        found = table.timeouts()
    return f"{found.tcp} {found.tcp_fin} {found.udp}"


def _sets() -> list[str]:
    lines = say("ipset", "save").splitlines()
    plain = [re.sub(r" (hashsize|bucketsize|initval) \S+", "", line) for line in lines]
    creates = [line for line in plain if line.startswith("create")]
    return sorted(creates) + sorted(line for line in plain if line.startswith("add"))


def _rules(program: str) -> list[str]:
    tables = say(f"{program}-save").split("COMMIT\n")
    found = {text.partition("*")[2].partition("\n")[0]: f"{text}COMMIT\n" for text in tables}
    return [line for name in ("filter", "nat") for line in normalise_saved(found[name])]


def _addresses(family: Family) -> list[str]:
    with Route() as route:
        link = route.link(SERVICE_LINK)
        found = route.addresses(family) if link else ()
        ours = [a for a in found if link and a.link == link.index]
    texts = [f"{a.address}/{a.prefix_length}" for a in ours]
    return sorted(text for text in texts if not text.startswith("fe80:"))


def _servers() -> tuple[list[str], list[str]]:
    """As `ipvsadm -Sn` prints them, and the connections of each real server."""
    lines: list[str] = []
    connections: list[str] = []
    with NetlinkSocket(NETLINK_GENERIC) as socket, Ipvs() as table:
        family = find_family(socket, ipvs.IPVS_GENL_NAME)
        assert family is not None
        for reply in socket.dump(family, ipvs.format_command(ipvs.IPVS_CMD_GET_SERVICE)):
            service = ipvs.parse_service(reply.body)
            if service.firewall_mark:
                lines.append(f"-A -f {service.firewall_mark} -s {service.scheduler}")
                continue
            lines += _server_lines(table, service)
            connections += _connection_lines(table, service)
    return sorted(lines), sorted(connections)


def _server_lines(table: Ipvs, service: Service) -> Iterator[str]:
    place = f"{PROTOCOLS[service.protocol]} {join_host_port(service.address, service.port)}"
    persistence = (
        f" -p {service.timeout_seconds}" if service.flags & ipvs.IP_VS_SVC_F_PERSISTENT else ""
    )
    hashing = " -b mh-port" if service.flags & ipvs.IP_VS_SVC_F_SCHED_MH_PORT else ""
    yield f"-A {place} -s {service.scheduler}{persistence}{hashing}"
    for real in table.destinations(service.protocol, service.address, service.port):
        where = join_host_port(real.address, real.port)
        yield f"-a {place} -r {where} -m -w {real.weight}"


def _connection_lines(table: Ipvs, service: Service) -> Iterator[str]:
    name = {6: "TCP", 17: "UDP", 132: "SCTP"}[service.protocol]
    for real in table.destinations(service.protocol, service.address, service.port):
        if real.connections:
            yield (
                f"{join_host_port(service.address, service.port)}/{name} "
                f"{join_host_port(real.address, real.port)} weight {real.weight} "
                f"active {real.active} inactive {real.inactive}"
            )


def _wait_until_forgotten() -> None:
    """Wait until IPVS has no connection any more that was reset, which takes ten seconds."""
    listed = Path("/proc/net/ip_vs_conn")
    wait_until(lambda: " CLOSE " not in listed.read_text(), listed.read_text)
