"""What health checks cost: a real daemon that checks 10,000 endpoints every 10 s.

The daemon runs in one network namespace, the endpoints are addresses of another one. Both are on
this machine, so that most of what the kernel does for the endpoints counts as the daemon's
processor time, too: on a real network it is less. Whether the loop that syncs suffers is seen from
outside, by how long the health port takes to answer meanwhile.

    kpctl bench --part health
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct
from rich.table import Table

from kpctl.apiserver.pki import make_authority
from kpctl.bench.cluster import POD_PORT
from kpctl.bench.program import RunningProxy, proxy_flags
from kpctl.bench.world import Site, ip
from kubeproxy.facts.ids import Family

MOST_PERCENT = 5.0
"""The aim: of one core, for 10,000 endpoints every 10 s."""
_PER_SERVICE = 100
_FIRST = int(ipaddress.ip_address("10.128.0.0"))
_FIRST_SILENT = int(ipaddress.ip_address("10.192.0.0"))
_TLS_PORT = 8443
_SETTLE_SECONDS = 15.0
"""More than one interval: every endpoint has been checked once."""
_SILENT_SETTLE_SECONDS = 45.0
"""More than three: every endpoint has fallen, and the rounds about that are over."""
_ASK_SECONDS = 0.25
"""Between two questions to the health port: answering them is processor time of the daemon, too."""
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
_ENDED = re.compile(rb"^kubeproxy_health_checks_total\{([^}]*)\} (\d+)", re.MULTILINE)
_SYNCED_SECONDS = 120.0
_IP_PKTINFO = 8
"""Of linux/in.h; Python 3.11 does not have it."""


class Case(Struct, frozen=True):
    """What is measured: a check as the annotation has it, or none, of so many endpoints."""

    name: str
    check: str
    endpoints: int = 10_000
    is_silent: bool = False
    has_aim: bool = False


CASES = (
    Case("no checks", ""),
    Case("tcp", "tcp", has_aim=True),
    Case("http", "http /healthz", has_aim=True),
    Case("udp", "udp send=ping expect=pong", has_aim=True),
    Case("tcp, none answers", "tcp", is_silent=True, has_aim=True),
    Case("https", f"https /healthz port={_TLS_PORT}", endpoints=1_000),
)


class Figure(Struct, frozen=True):
    """What one case has cost. Answers are those of the health port, in milliseconds."""

    case: Case
    checks_per_second: float
    percent: float
    failures: int
    median_answer_ms: float
    worst_answer_ms: float

    @property
    def is_met(self) -> bool:
        return not self.case.has_aim or self.percent < MOST_PERCENT

    @property
    def microseconds(self) -> float:
        """Processor time per check, with everything else the daemon does."""
        return self.percent * 10_000 / self.checks_per_second if self.checks_per_second else 0.0


def measure(case: Case, seconds: float) -> Figure:
    """Run a daemon with this case, and look at it for so many seconds."""
    with tempfile.TemporaryDirectory() as folder, _site() as site:
        place = Path(folder)
        objects = msgspec.json.encode({"kind": "List", "items": list(manifests(case))})
        (place / "objects.json").write_bytes(objects)
        with _servers(site, place), _proxy(site, place) as proxy:
            time.sleep(_SILENT_SETTLE_SECONDS if case.is_silent else _SETTLE_SECONDS)
            before, used = _ended(proxy), proxy.usage().cpu_seconds
            began = time.monotonic()
            answers = list(_answers(site, began + seconds))
            took = time.monotonic() - began
            after = _ended(proxy)
            return Figure(
                case=case,
                checks_per_second=(sum(after.values()) - sum(before.values())) / took,
                percent=100 * (proxy.usage().cpu_seconds - used) / took,
                failures=sum(n for kind, n in after.items() if b"success" not in kind),
                median_answer_ms=1000 * median(answers),
                worst_answer_ms=1000 * max(answers),
            )


def manifests(case: Case) -> Iterator[Mapping[str, object]]:
    """Services of 100 endpoints each."""
    first = _FIRST_SILENT if case.is_silent else _FIRST
    annotations = {"kubeproxy/health-check": case.check} if case.check else {}
    for number in range(case.endpoints // _PER_SERVICE):
        name = f"web-{number}"
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "clusterIP": f"10.96.{number // 250}.{number % 250 + 1}",
                "ports": [
                    {"name": "tcp", "port": 80},
                    {"name": "udp", "port": 80, "protocol": "UDP"},
                ],
            },
        }
        start = first + number * _PER_SERVICE
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": Family.IPV4.value,
            "ports": [
                {"name": "tcp", "port": POD_PORT},
                {"name": "udp", "port": POD_PORT, "protocol": "UDP"},
            ],
            "endpoints": [
                {"addresses": [str(ipaddress.ip_address(start + offset))]}
                for offset in range(_PER_SERVICE)
            ],
        }


@contextlib.contextmanager
def _site() -> Iterator[Site]:
    site = Site()
    try:
        site.wire()
        with site.node.inside():
            ip("route add 10.192.0.0/10 via 10.254.0.2")
        with site.pods.inside():
            ip("route add blackhole 10.192.0.0/10")
        yield site
    finally:
        site.close()


@contextlib.contextmanager
def _servers(site: Site, folder: Path) -> Iterator[None]:
    """Answer at every address of the endpoint network."""
    certificate, key = make_authority(folder).sign("server", "/CN=server")
    program = [sys.executable, "-m", "kpctl.bench.health", str(certificate), str(key)]
    with site.pods.inside():
        process = subprocess.Popen(program, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        yield
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def _proxy(site: Site, folder: Path) -> Iterator[RunningProxy]:
    flags = (*proxy_flags("nftables"), f"--manifests={folder / 'objects.json'}")
    command = (sys.executable, "-m", "kubeproxy", "--inspection-socket=", *flags)
    proxy = RunningProxy(command, network=site.node, environment={}, log=folder / "log")
    try:
        deadline = time.monotonic() + _SYNCED_SECONDS
        while not proxy.is_synced() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield proxy
    finally:
        proxy.stop()


def _ended(proxy: RunningProxy) -> Mapping[bytes, int]:
    return {found[1]: int(found[2]) for found in _ENDED.finditer(proxy.metrics())}


def _answers(site: Site, until: float) -> Iterator[float]:
    """How long the health port takes to answer, again and again."""
    while time.monotonic() < until:
        with site.node.inside():
            sock = socket.socket()
        began = time.monotonic()
        with sock:
            sock.settimeout(60)
            sock.connect(("127.0.0.1", 10256))
            sock.sendall(b"GET /healthz HTTP/1.0\r\nHost: node\r\n\r\n")
            sock.recv(4096)
        yield time.monotonic() - began
        time.sleep(_ASK_SECONDS)


def figures_table(figures: Sequence[Figure]) -> Table:
    """The figures for people."""
    table = Table(title=f"health checks every 10 s; the aim is {MOST_PERCENT:g} % of one core")
    for heading in ("check", "endpoints", "checks/s", "% of a core", "µs/check", "failed"):
        table.add_column(heading, justify="right" if heading != "check" else "left")
    table.add_column("health port: median, worst", justify="right")
    for each in figures:
        table.add_row(
            each.case.name,
            f"{each.case.endpoints:,}",
            f"{each.checks_per_second:,.0f}",
            f"{each.percent:.2f}" + ("" if each.is_met else " (aim missed)"),
            f"{each.microseconds:.0f}" if each.checks_per_second else "",
            f"{each.failures:,}",
            f"{each.median_answer_ms:.1f} ms, {each.worst_answer_ms:.1f} ms",
        )
    return table


# --- the servers, in a process of their own ---


def serve(certificate: str, key: str) -> None:
    """Answer HTTP, HTTPS and UDP at every address. Never returns."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    plain = socket.create_server(("0.0.0.0", POD_PORT), backlog=4096)
    secure = socket.create_server(("0.0.0.0", _TLS_PORT), backlog=4096)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    datagrams.bind(("0.0.0.0", POD_PORT))
    poll = select.epoll()
    for sock in (plain, secure, datagrams):
        sock.setblocking(False)
        poll.register(sock, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    print("listening", flush=True)
    while True:
        for number, _ in poll.poll():
            with contextlib.suppress(OSError):  # the client has disconnected already
                if number in (plain.fileno(), secure.fileno()):
                    sock, _ = (plain if number == plain.fileno() else secure).accept()
                    sock.setblocking(False)
                    if number == secure.fileno():
                        sock = context.wrap_socket(
                            sock, server_side=True, do_handshake_on_connect=False
                        )
                    connections[sock.fileno()] = sock
                    poll.register(sock, select.EPOLLIN)
                elif number == datagrams.fileno():
                    _, packet_info, _, peer = datagrams.recvmsg(2048, 64)
                    # From the address that was asked.
                    datagrams.sendmsg(
                        [b"pong"], [(*packet_info[0][:2], _sender(packet_info))], 0, peer
                    )
                else:
                    _answer(connections, number, ssl.SSLWantReadError)


def _sender(packet_info: Sequence[tuple[int, int, bytes]]) -> bytes:
    return b"\0\0\0\0" + packet_info[0][2][8:12] + b"\0\0\0\0"


def _answer(connections: dict[int, socket.socket], number: int, not_yet: type[Exception]) -> None:
    sock = connections[number]
    try:
        if not sock.recv(4096):
            raise ConnectionResetError
        sock.send(_ANSWER)
    except not_yet:
        return
    except OSError:
        pass
    del connections[number]
    sock.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
