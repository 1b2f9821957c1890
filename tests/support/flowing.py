"""Real flows to Services within one network namespace: endpoints here, and clients here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.host import Host
from tests.support.objects_text import service_text, slice_text
from tests.support.served import write

PORTS = "{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}"
TARGETS = "{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}"
ADDRESSES = {
    "IPv4": ("10.96.0.10", "10.244.1.5", "10.244.1.6"),
    "IPv6": ("fd00:96::10", "fd00:244::5", "fd00:244::6"),
}


def prepare(host: Host) -> None:
    """Give the namespace a route to everything, and the addresses of the endpoints."""
    for command in (
        "link add outside type veth peer name away",
        "link set away up",
        "link set outside up",
        "link set lo up",
        "addr add 192.0.2.1/24 dev outside",
        "-6 addr add 2001:db8::1/64 dev outside nodad",
        "route add default dev outside",
        "-6 route add default dev outside",
        *(f"addr add {a}/32 dev lo" for a in ADDRESSES["IPv4"][1:]),
        *(f"-6 addr add {a}/128 dev lo nodad" for a in ADDRESSES["IPv6"][1:]),
    ):
        done = host.run("ip", *command.split())
        assert not done.returncode, done.stderr


def serve(host: Host, family: str, ready: dict[str, bool], name: str = "web") -> None:
    """Write the Service with these endpoints."""
    endpoints = (
        f'{{addresses: ["{address}"], conditions: {{ready: {str(is_ready).lower()}}}}}'
        for address, is_ready in ready.items()
    )
    text = service_text(ADDRESSES[family][0], name, ports=PORTS)
    if ready:
        text += slice_text(*endpoints, name=name, ports=TARGETS)
    write(host, f"{name}-{family}.yaml", text)


@contextmanager
def listening(host: Host, family: str) -> Iterator[None]:
    """Both endpoints accept TCP and take UDP."""
    af = socket.AF_INET if family == "IPv4" else socket.AF_INET6
    sockets = []
    with host.network.inside():
        for address in ADDRESSES[family][1:]:
            sockets.append(socket.create_server((address, 8080), family=af, backlog=1000))
            udp = socket.socket(af, socket.SOCK_DGRAM)
            udp.bind((address, 5353))
            sockets.append(udp)
    try:
        yield
    finally:
        for each in sockets:
            each.close()


def connect(host: Host, address: str, port: int = 80) -> socket.socket:
    """A connection from this namespace, made after as many attempts as it takes."""
    made: list[socket.socket] = []

    def attempt() -> bool:
        with host.network.inside():
            try:
                made.append(socket.create_connection((address, port), timeout=2))
            except OSError:
                return False
        return True

    host.until(attempt, f"connecting to {address}")
    return made[0]


def refused(host: Host, address: str, port: int = 80) -> None:
    """Try to connect once; it is expected to fail."""
    with host.network.inside():
        try:
            socket.create_connection((address, port), timeout=0.5).close()
        except OSError:
            return
    raise AssertionError("this should have been refused")


@contextmanager
def repeating(act: Callable[[], None]) -> Iterator[None]:
    """Do this in a thread, over and over, while the body runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.02):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def send(host: Host, address: str, port: int = 53) -> socket.socket:
    """A UDP socket that has sent one datagram."""
    af = socket.AF_INET6 if ":" in address else socket.AF_INET
    with host.network.inside():
        udp = socket.socket(af, socket.SOCK_DGRAM)
        udp.connect((address, port))
        udp.send(b"?")
    return udp
