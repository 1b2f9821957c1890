"""Many connections through a proxy in the current network namespace, and whom each of them met.

All endpoints are addresses of the namespace itself, so one process sends and receives: datagrams
from sockets of their own, each a new connection for the kernel.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle

from tests.support.builders import node
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.facts.ids import Family

CLIENTS = {Family.IPV4: "198.18.0.0/16", Family.IPV6: "2001:db8:18::/64"}
"""Addresses from which clients send."""
PORT = 8080
_IPV6_FREEBIND = 78  # in6.h


def client(family: Family, number: int) -> str:
    """The address of a client."""
    if family is Family.IPV4:
        return f"198.18.{number >> 8}.{number & 255}"
    return f"2001:db8:18::{number + 1:x}"


class Receivers:
    """Endpoints, each with a socket."""

    def __init__(self, family: Family, addresses: Sequence[str]) -> None:
        self._af = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        self._ports = cycle(range(20000, 60000))
        self._names: dict[int, str] = {}
        self._sockets: dict[int, socket.socket] = {}
        for address in addresses:
            receiver = self._socket()
            self._names[receiver.fileno()] = address
            self._sockets[receiver.fileno()] = receiver
            receiver.bind((address, PORT))
            receiver.setblocking(False)

    def _socket(self) -> socket.socket:
        """A socket that may be bound to any address: a route alone makes ours local."""
        found = socket.socket(self._af, socket.SOCK_DGRAM)
        if self._af == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        return found

    def close(self) -> None:
        for receiver in self._sockets.values():
            receiver.close()

    def whom(self, place: tuple[str, int], source: str = "") -> str:
        """Send from a new socket, bound to `source` if given. Return who received it."""
        with self._socket() as sender:
            # A port that was used lately would continue the tracked flow of an earlier one.
            sender.bind((source, next(self._ports)))
            sender.connect(place)
            sender.send(b"?")
        ready, _, _ = select.select(self._sockets, [], [], LIMIT_SECONDS)
        assert ready, f"nothing of what was sent to {place} arrived"
        (receiver,) = ready
        self._sockets[receiver].recv(16)
        return self._names[receiver]

    def spread(self, place: tuple[str, int], sources: Iterable[str]) -> Counter[str]:
        """Whom one connection from each of these sources met."""
        return Counter(self.whom(place, source) for source in sources)


@contextlib.contextmanager
def receivers(family: Family, addresses: Sequence[str]) -> Iterator[Receivers]:
    """Endpoints at these addresses, and clients at all addresses of `CLIENTS`."""
    version = "-4" if family is Family.IPV4 else "-6"
    local = (CLIENTS[family], *addresses)
    commands = [f"ip {version} route add local {place} dev lo" for place in local]
    # An address to masquerade with.
    commands.append(f"ip {version} address add {node(family).ip} dev lo")
    commands.append(f"ip {version} route add default dev lo")  # service addresses have a way out
    subprocess.run(" && ".join(commands), shell=True, check=True)
    found = Receivers(family, addresses)
    try:
        yield found
    finally:
        found.close()
