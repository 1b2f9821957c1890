"""New connections through Services of the cluster, and a count of those that failed.

A client is a place (a network namespace) and a Service's address. It opens one connection after the
other, asks the HTTP server behind it for its host name and closes. A socket belongs to the network
it was made in, so all clients live in threads of this process.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec

from kpctl.places.netns import enter_namespace, inside_namespace
from kubeproxy.errors import KernelError

_PAUSE_SECONDS = 0.01
ANSWER_SECONDS = 60.0
"""Enough for a busy machine: an answer ends the wait. One that comes later is a failure."""
_ATTEMPT_SECONDS = 10.0
"""What began before the Service was served is lost, and another connection must be made."""
_SERVED_SECONDS = 180.0


class Client(msgspec.Struct, frozen=True):
    """Where connections come from, and where they go to."""

    label: str
    network: Path
    address: str
    port: int


class Counted(msgspec.Struct, frozen=True):
    """Connections that were tried, and why some failed."""

    tried: int
    failures: tuple[str, ...]

    @property
    def failed(self) -> int:
        return len(self.failures)


class Load:
    """All clients at work, from the time that each has been answered once until the block ends."""

    def __init__(self, clients: list[Client]) -> None:
        self.tried: Counter[str] = Counter()
        self.failures: list[str] = []
        self._is_over = threading.Event()
        self._clients = clients
        self._threads = [threading.Thread(target=self._run, args=(c,)) for c in clients]

    def __enter__(self) -> Load:
        for client in self._clients:
            _wait_for_answer(client)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def count(self) -> Counted:
        """What has happened so far."""
        return Counted(sum(self.tried.values()), tuple(self.failures))

    def _run(self, client: Client) -> None:
        with client.network.open() as network:
            enter_namespace(network.fileno())
        while not self._is_over.is_set():
            began = time.strftime("%H:%M:%S")
            try:
                ask(client.address, client.port, "/hostname")
            except OSError as error:
                self.failures.append(f"{began} {client.label}: {error}")
            self.tried[client.label] += 1
            self._is_over.wait(_PAUSE_SECONDS)


def _wait_for_answer(client: Client) -> None:
    """Wait until a Service that was just made is served for this client."""
    deadline = time.monotonic() + _SERVED_SECONDS
    while True:
        try:
            with inside_namespace(client.network):
                ask(client.address, client.port, "/hostname", seconds=_ATTEMPT_SECONDS)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise KernelError(f"{client.label}: no answer at all: {error}") from error
        time.sleep(_PAUSE_SECONDS)


def ask(
    address: str, port: int, path: str, *, source_port: int = 0, seconds: float = ANSWER_SECONDS
) -> str:
    """Ask an HTTP server over a new connection. Return the body. Raises OSError."""
    source = ("", source_port) if source_port else None
    with socket.create_connection((address, port), seconds, source) as connection:
        host = f"[{address}]" if ":" in address else address
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        received = b""
        while part := connection.recv(4096):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise OSError(f"answer {head[:60]!r}")
    return body.decode()
