"""A plain HTTP client and server over loopback for tests, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from tests.support.waiting import limit

from kubeproxy.status.http import Handler, HttpServer, ServerRole

_random = random.SystemRandom()
ROLE = ServerRole("server failed", "", "", "Reason")


class Reply(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


async def exchange(port: int, data: bytes, host: str = "127.0.0.1") -> bytes:
    """Send these bytes. Return everything the server sends until it closes."""
    async with limit():
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(data)
            return await reader.read()
        finally:
            writer.close()


def parse_reply(data: bytes) -> Reply:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Reply(int(first.split()[1]), headers, body)


async def ask(
    port: int,
    path: str,
    method: str = "GET",
    body: str = "",
    host: str = "127.0.0.1",
    **headers: str,
) -> Reply:
    """Make one request. Header names are given with underscores."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    data = "\r\n".join(lines) + "\r\n\r\n" + body
    return parse_reply(await exchange(port, data.encode(), host))


def free_port(host: str = "127.0.0.1", *, neighbours: int = 1) -> int:
    """The first of so many ports in a row on which nothing listens.

    They are below those the kernel gives away by itself, also to tests in other processes.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(1000):
        first = _random.randrange(10_000, 30_000)
        with contextlib.suppress(OSError):
            for port in range(first, first + neighbours):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    with socket.socket(family, kind) as sock:
                        sock.bind((host, port))
            return first
    raise AssertionError("no free ports")


@asynccontextmanager
async def serving(handler: Handler, address: str = "127.0.0.1:0") -> AsyncIterator[int]:
    """Run a server with this handler. Gives its port."""
    server = HttpServer(ROLE, address, handler)
    async with running(server):
        yield server.port


@asynccontextmanager
async def running(server: HttpServer) -> AsyncIterator[None]:
    task = asyncio.create_task(server.run())
    try:
        async with limit():
            await server.is_serving.wait()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
