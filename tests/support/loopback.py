"""A plain HTTP client and server over loopback for tests, byte by byte."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from kubeproxy.status.http import Handler, HttpServer, ServerRole

ROLE = ServerRole("server failed", "", "", "Reason")


class Reply(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


async def exchange(port: int, data: bytes, host: str = "127.0.0.1") -> bytes:
    """Send these bytes. Return everything the server sends until it closes."""
    async with asyncio.timeout(10):
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


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nothing listens."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


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
        async with asyncio.timeout(10):
            await server.is_serving.wait()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
