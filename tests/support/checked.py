"""Endpoints at loopback that behave well or badly, and a checker that watches them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from msgspec.structs import replace
from tests.support.waiting import LIMIT_SECONDS, until

from kubeproxy.api.annotations import parse_health_check
from kubeproxy.checks.checker import Checker
from kubeproxy.checks.schedule import Target

HERE = "127.0.0.1"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Endpoints:
    """Servers that live as long as a test."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._transports: list[asyncio.DatagramTransport] = []
        self.requests: list[bytes] = []

    async def tcp(
        self, serve: Serve, *, tls: ssl.SSLContext | None = None, host: str = HERE, port: int = 0
    ) -> int:
        """Serve each connection with a function. Return the port."""

        async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                await serve(reader, writer)
            writer.close()

        server = await asyncio.start_server(guarded, host, port, ssl=tls)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def http(self, answer: bytes = OK, **options: ssl.SSLContext | str | int | None) -> int:
        """Answer each request with these bytes, and close. Return the port."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()

        return await self.tcp(serve, **options)  # type: ignore[arg-type]

    async def udp(self, answer: bytes | None) -> int:
        """Answer each datagram with these bytes, or with nothing. Return the port."""
        requests = self.requests

        class Protocol(asyncio.DatagramProtocol):
            def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
                self.transport = transport

            def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
                requests.append(data)
                if answer is not None:
                    self.transport.sendto(answer, peer)

        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Protocol, local_addr=(HERE, 0))
        self._transports.append(transport)
        return int(transport.get_extra_info("sockname")[1])

    def refusing(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
        """A port that is held, and on which nothing listens. Return it."""
        sock = socket.socket(socket.AF_INET, kind)
        sock.bind((HERE, 0))
        port = int(sock.getsockname()[1])
        if kind is socket.SOCK_STREAM:
            self._sockets.append(sock)
        else:
            sock.close()
        return port

    def silent(self) -> int:
        """A port whose queue of connections is full: the kernel drops further ones."""
        listener = socket.socket()
        listener.bind((HERE, 0))
        listener.listen(0)
        self._sockets.append(listener)
        for _ in range(3):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            self._sockets.append(client)
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        for transport in self._transports:
            transport.close()
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()


class Watched:
    """A checker and what it reports."""

    def __init__(self, most_at_once: int = 100) -> None:
        self.changes: list[tuple[Target, str]] = []
        self.ended_by_change: list[int] = []
        """How many checks had ended when each change was reported."""
        self.checker = Checker(self._changed, most_at_once=most_at_once)

    def _changed(self, targets: Sequence[Target]) -> None:
        for target in targets:
            failure = target.condition.failure
            self.changes.append((target, failure.reason if failure else ""))
            self.ended_by_change.append(self.ended)

    def add(self, text: str, port: int, address: str = HERE) -> Target:
        """Check a port as often as possible. `text` is a check as annotations have it.

        Without a time-out it waits as long as tests do: the machine may be busy.
        """
        check = parse_health_check(text)
        assert check is not None
        timeout = check.timeout_seconds if "timeout=" in text else LIMIT_SECONDS
        quick = replace(check, interval_seconds=0.1, timeout_seconds=timeout)
        return self.checker.add(quick, address, port)

    async def reason(self, text: str, port: int, address: str = HERE) -> str:
        """Check a port until it fails. Return why."""
        target = self.add(text, port, address)
        await until(lambda: any(found is target for found, _ in self.changes))
        return next(reason for found, reason in self.changes if found is target)

    async def passes(self, text: str, port: int, address: str = HERE, times: int = 4) -> bool:
        """Check a port so many times. Return whether it passed every time."""
        target = self.add(text, port, address)
        before = self.ended
        await until(lambda: self.ended >= before + times)
        return target.condition.failure is None and target.condition.streak == 0

    @property
    def ended(self) -> int:
        return sum(self.checker.outcomes.values())


@contextlib.asynccontextmanager
async def watching(most_at_once: int = 100) -> AsyncIterator[Watched]:
    watched = Watched(most_at_once)
    try:
        yield watched
    finally:
        watched.checker.close()


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
