"""Everything that listens, attacked in every way, while the kubelet asks and Services change.

Idle connections are in `tests/run/test_exhaustion.py` with few descriptors. Here are thousands of
them beside clients that send heads byte by byte, endless heads, requests whose answers they do not
read, rubbish, and resets; on the inspection socket, too.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.host import Host
from tests.support.served import BALANCED, WEB, write

pytestmark = pytest.mark.kernel

HEALTH, METRICS, SERVICE_HEALTH = 10256, 10249, 32123
IDLE = 1000
EACH = 40
ROUNDS = 8
_NO_LINGER = struct.pack("ii", 1, 0)

Step = Callable[[socket.socket, int], None]
Connect = Callable[[], socket.socket]


def silent(_: socket.socket, __: int) -> None:
    """Say nothing."""


def trickle(client: socket.socket, turn: int) -> None:
    """Send a head that never ends, slowly enough to look alive."""
    client.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: aaaaaaaaaaaaaaaaa"[turn : turn + 1])


def endless_head(client: socket.socket, turn: int) -> None:
    client.send(
        (b"GET / HTTP/1.1\r\n" if not turn else b"") + b"X-Header: " + b"y" * 60000 + b"\r\n"
    )


def never_reads(client: socket.socket, _: int) -> None:
    """Ask for more and more, and take nothing."""
    client.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)


def endless_body(client: socket.socket, turn: int) -> None:
    head = b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
    client.send((head if not turn else b"") + b"z" * 60000)


def rubbish(client: socket.socket, turn: int) -> None:
    client.send(bytes((turn * 37 + number) % 256 for number in range(5000)))


def reset(client: socket.socket, turn: int) -> None:
    """Ask and be gone before the answer."""
    if turn == 0:
        client.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        client.close()


WAYS: tuple[Step, ...] = (trickle, endless_head, never_reads, endless_body, rubbish, reset)


class Attack:
    """Clients of one server. One that the server has closed comes back."""

    def __init__(self, connect: Connect, idle: int) -> None:
        self._connect = connect
        self._clients: list[tuple[socket.socket, Step, int]] = []
        self._idle = idle

    def begin(self) -> None:
        steps = [silent] * self._idle + [way for way in WAYS for _ in range(EACH)]
        self._clients = [(self._connect(), step, 0) for step in steps]

    def go_on(self) -> None:
        self._clients = [self._stepped(*each) for each in self._clients]

    def _stepped(
        self, client: socket.socket, step: Step, turn: int
    ) -> tuple[socket.socket, Step, int]:
        try:
            step(client, turn)
        except BlockingIOError:
            return client, step, turn  # the server does not take more, as it should
        except OSError:
            client.close()
            return self._connect(), step, 0
        return client, step, turn + 1

    def end(self) -> None:
        for client, _, _ in self._clients:
            client.close()


def tcp(port: int) -> Connect:
    def connect() -> socket.socket:
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
        return client

    return connect


def unix(path: Path) -> Connect:
    def connect() -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        client.connect_ex(str(path))
        return client

    return connect


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("mode", ["nftables", "userspace"])
def test_the_kubelet_is_answered_and_services_are_served_under_attack(
    host: Host, mode: str
) -> None:
    write(host, "lb.yaml", BALANCED)
    process = host.start(f"--proxy-mode={mode}", "--nodeport-addresses=0.0.0.0/0")
    host.until(lambda: host.get(HEALTH, "/healthz")[0] == 200, "health")
    host.until(lambda: host.get(SERVICE_HEALTH, "/")[0] == 200, "the health of a Service")
    before = resident_kib(process.pid)
    with contextlib.ExitStack() as stack, host.network.inside():
        attacks = [Attack(tcp(port), IDLE) for port in (HEALTH, METRICS, SERVICE_HEALTH)]
        attacks.append(Attack(unix(host.socket), 100))
        for attack in attacks:
            attack.begin()
            stack.callback(attack.end)
        for turn in range(ROUNDS):
            for attack in attacks:
                attack.go_on()
            assert host.get(HEALTH, "/healthz")[0] == 200, f"turn {turn}"
            assert host.get(HEALTH, "/livez")[0] == 200, f"turn {turn}"
            assert host.get(SERVICE_HEALTH, "/")[0] == 200, f"turn {turn}"
        assert host.get(METRICS, "/metrics")[0] == 200
        write(host, "web.yaml", WEB)
        host.until(lambda: "10.96.0.10" in host.tables(), "a new Service")
        shown = host.run("kpctl", "status", "--socket", host.socket)
        assert shown.returncode == 0, shown.stdout + shown.stderr
    assert process.poll() is None
    # Four servers may hold 8 MiB each, and the interpreter some of what it once had.
    assert resident_kib(process.pid) - before < 64 * 1024
    assert "Traceback" not in host.log
    assert len(host.log) < 50_000
    host.until(lambda: descriptors(process.pid) < 200, "closing what is left of the attack")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
