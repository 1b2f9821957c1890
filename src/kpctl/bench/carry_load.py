"""Load for proxies that carry bytes: the servers behind and the clients in front, one per process.

    python -m kpctl.bench.carry_load serve-short PORT       answers a request and disconnects
    python -m kpctl.bench.carry_load serve-bulk PORT        sends without end
    python -m kpctl.bench.carry_load connect ADDRESS PORT SECONDS    new connections a second
    python -m kpctl.bench.carry_load receive ADDRESS PORT SECONDS    gigabits a second

Servers print "listening" once they are; clients print one number.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import time

_REQUEST = b"x" * 64
_AT_ONCE = 32
_STREAMS = 4
_CHUNK_BYTES = 1 << 20
_BACKLOG = 4096


def serve_short(port: int) -> None:
    """Send one answer of the request's size on each connection. Never returns."""
    listener = socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    print("listening", flush=True)
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                _accept(listener, poll, connections)
            else:
                _answer(connections.pop(number))


def _accept(
    listener: socket.socket, poll: select.epoll, connections: dict[int, socket.socket]
) -> None:
    for _ in range(_AT_ONCE):
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        connections[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)


def _answer(connection: socket.socket) -> None:
    with connection:
        try:
            connection.send(connection.recv(4096))
        except OSError:
            return  # the client has disconnected already


def serve_bulk(port: int) -> None:
    """Send as much as each connection takes. Never returns."""
    listener = socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_flood, args=(connection,), daemon=True).start()


def _flood(connection: socket.socket) -> None:
    chunk = bytes(_CHUNK_BYTES)
    with connection:
        try:
            while True:
                connection.sendall(chunk)
        except OSError:
            return


class Connector:
    """Keeps a number of short connections open and counts those that were answered."""

    def __init__(self, address: str, port: int) -> None:
        self._address = (address, port)
        self._poll = select.epoll()
        self._connections: dict[int, socket.socket] = {}
        self._requested: set[int] = set()
        self.answered = 0

    def run(self, seconds: float) -> float:
        """Connect for so long. Return the answered connections per second."""
        for _ in range(_AT_ONCE):
            self._connect()
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for number, _ in self._poll.poll(1):
                self._step(number)
        return self.answered / (time.monotonic() - began)

    def _connect(self) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(self._address)
        self._connections[connection.fileno()] = connection
        self._poll.register(connection, select.EPOLLOUT)

    def _step(self, number: int) -> None:
        connection = self._connections[number]
        try:
            if number not in self._requested:
                connection.send(_REQUEST)
                self._requested.add(number)
                self._poll.modify(number, select.EPOLLIN)
                return
            self.answered += connection.recv(4096) == _REQUEST
        except OSError:
            pass  # not answered, hence not counted
        self._requested.discard(number)
        del self._connections[number]
        connection.close()
        self._connect()


def receive(address: str, port: int, seconds: float) -> float:
    """Receive over a few connections for so long. Return gigabits per second."""
    totals = [0] * _STREAMS
    until = time.monotonic() + seconds

    def run(index: int) -> None:
        buffer = bytearray(_CHUNK_BYTES)
        with socket.create_connection((address, port)) as connection:
            while time.monotonic() < until:
                totals[index] += connection.recv_into(buffer)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(_STREAMS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(totals) * 8 / 1e9 / (time.monotonic() - began)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["serve-short", port]:
            serve_short(int(port))
        case ["serve-bulk", port]:
            serve_bulk(int(port))
        case ["connect", address, port, seconds]:
            print(Connector(address, int(port)).run(float(seconds)))
        case ["receive", address, port, seconds]:
            print(receive(address, int(port), float(seconds)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
