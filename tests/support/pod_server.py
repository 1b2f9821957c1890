"""A few pods behind one link, and clients on the node that keep connections open.

Why: what happens to real connections when endpoints come and go is only seen with real ones. The
pods live in a network namespace of a child process; they answer with their address. Everything
goes with the context that made it. To be used inside a namespace of the test's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence

from tests.support.waiting import LIMIT_SECONDS, wait_until

from kpctl.places.netns import leave_namespace

_LINK = "pods0"
_PEER = "pods1"


@contextlib.contextmanager
def start_pods(places: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Serve TCP and UDP at these addresses and ports, reachable through a link of their own."""
    if not places:
        yield
        return
    child, ready = _fork_server(places)
    try:
        _ip("link", "add", _LINK, "type", "veth", "peer", "name", _PEER)
        _ip("link", "set", _PEER, "netns", str(child))
        _ip("link", "set", _LINK, "up")
        for address, _ in places:
            _ip("route", "add", address, "dev", _LINK)
        os.write(ready, b"go")
        _wait_until_served(places[0])
        yield
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _fork_server(places: Sequence[tuple[str, int]]) -> tuple[int, int]:
    """Start a child in a namespace of its own, which serves once it reads from a pipe.

    Return its process id, and the end of the pipe to write to when the link has been moved in.
    """
    made_read, made_write = os.pipe()
    go_read, go_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            leave_namespace()
            os.write(made_write, b"made")
            os.close(go_write)
            os.read(go_read, 2)
            _serve(places)
        finally:
            os._exit(1)
    os.close(made_write)
    os.close(go_read)
    os.read(made_read, 4)
    os.close(made_read)
    return child, go_write


def _serve(places: Sequence[tuple[str, int]]) -> None:
    _ip("link", "set", "lo", "up")
    _ip("link", "set", _PEER, "up")
    for address in dict.fromkeys(address for address, _ in places):
        _ip("address", "add", f"{address}/32", "dev", _PEER)
    _ip("route", "add", "default", "dev", _PEER)
    for address, port in places:
        threading.Thread(target=_serve_udp, args=(address, port), daemon=True).start()
        threading.Thread(target=_serve_tcp, args=(address, port), daemon=True).start()
    signal.pause()


def _serve_udp(address: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, port))
        while True:
            _, client = server.recvfrom(100)
            server.sendto(address.encode(), client)


def _serve_tcp(address: str, port: int) -> None:
    with socket.create_server((address, port)) as server:
        held = []
        while True:
            client, _ = server.accept()
            client.sendall(address.encode())
            held.append(client)


def _wait_until_served(place: tuple[str, int]) -> None:
    def is_served() -> bool:
        try:
            socket.create_connection(place, timeout=LIMIT_SECONDS).close()
        except OSError:
            return False
        return True

    wait_until(is_served, lambda: f"no pod answers at {place}")


class Clients:
    """Named connections from the node, open until they are closed."""

    def __init__(self) -> None:
        self._open: dict[str, socket.socket] = {}

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close(tuple(self._open))

    def connect(self, name: str, protocol: str, place: tuple[str, int]) -> str:
        """Open a connection and exchange data; the address of the pod that answered."""
        kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
        client = socket.socket(socket.AF_INET, kind)
        client.settimeout(LIMIT_SECONDS)
        client.connect(place)
        self._open[name] = client
        if kind == socket.SOCK_DGRAM:
            client.send(b"hello")
        return client.recv(100).decode()

    def close(self, names: Sequence[str], *, is_reset: bool = False) -> None:
        for name in names:
            client = self._open.pop(name)
            if is_reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
