"""A connection to the API server: name, socket, TLS, and the tunnel of a proxy.

Of several addresses the next one is tried beside the first after a moment, as RFC 8305 has it: one
family may lead nowhere. Whatever is opened is closed again when a step fails or is cancelled.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from kubeproxy.api.observer import Observer
from kubeproxy.api.response_wire import Malformed, format_request, parse_head

CONNECT_TIMEOUT_SECONDS = 30.0
NEXT_ADDRESS_SECONDS = 0.25
READ_BUFFER_BYTES = 1 << 20

_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 45_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""Upstream's HTTP/2 connection sends a ping after 30 silent seconds. HTTP/1.1 has no ping, so the
kernel's keep-alive probes take its place."""

Stream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[object, ...]]


class Unreachable(Exception):
    """There is no connection; the text names host, port and reason."""


class Endpoint(Struct, frozen=True):
    """One end that can be connected to."""

    host: str
    port: int
    is_tls: bool
    prefix: str = ""
    """The path of its URL, in front of all other paths."""
    authorization: tuple[tuple[str, str], ...] = ()
    """The header with the user and password of its URL, of a proxy."""

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """Return the endpoint of an http or https URL. Raises ValueError."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    return Endpoint(parts.hostname or "", port, is_tls, parts.path.rstrip("/"), _login_of(parts))


def _login_of(parts: SplitResult) -> tuple[tuple[str, str], ...]:
    if not parts.username:
        return ()
    text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return (("Proxy-Authorization", f"Basic {b64encode(text.encode()).decode()}"),)


class Route(Struct, frozen=True):
    """The way to a server. `server_name` is what its certificate is for, if not the host."""

    server: Endpoint
    proxy: Endpoint | None = None
    server_name: str = ""

    @property
    def is_tunnel(self) -> bool:
        """Does the proxy only pass bytes on? A server without TLS is asked for by the proxy."""
        return self.proxy is not None and self.server.is_tls


async def dial(route: Route, context: ssl.SSLContext | None, observer: Observer) -> Stream:
    """Connect to the server, through the proxy if there is one.

    Raises Unreachable, Malformed, OSError, TimeoutError.
    """
    first = route.proxy or route.server
    name = (route.server_name if route.proxy is None else "") or first.host
    # The authority of a kubeconfig has not signed the certificate of a proxy.
    outer = context if route.proxy is None else None
    async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
        stream = await asyncio.open_connection(
            sock=await _connect(first, observer),
            ssl=(outer or True) if first.is_tls else None,
            server_hostname=name if first.is_tls else None,
            limit=READ_BUFFER_BYTES,
        )
        if route.proxy is not None and route.is_tunnel:
            await _open_tunnel(stream, route, route.proxy, context)
        return stream


async def _open_tunnel(
    stream: Stream, route: Route, proxy: Endpoint, context: ssl.SSLContext | None
) -> None:
    (reader, writer), server = stream, route.server
    headers = [("Host", server.name), *proxy.authorization]
    try:
        writer.write(format_request("CONNECT", server.name, headers))
        head = parse_head(await reader.readuntil(b"\r\n\r\n"))
        if head.status != 200:
            raise Unreachable(f"the proxy {proxy.name} refuses a tunnel (status {head.status})")
        await writer.start_tls(
            context or ssl.create_default_context(),
            server_hostname=route.server_name or server.host,
        )
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        writer.transport.abort()
        raise Malformed(f"the proxy {proxy.name} does not answer with a head") from None
    except BaseException:
        writer.transport.abort()
        raise


async def _connect(endpoint: Endpoint, observer: Observer) -> socket.socket:
    try:
        return await _connect_any(await _resolve(endpoint, observer))
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unreachable(f"cannot connect to {endpoint.name}: {reason}") from error


async def _resolve(endpoint: Endpoint, observer: Observer) -> Sequence[_AddressInfo]:
    host, port = endpoint.host, endpoint.port
    try:
        numeric = socket.AI_NUMERICHOST
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    except socket.gaierror:
        started = time.monotonic()
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    observer.resolved(host=host, seconds=time.monotonic() - started)
    return found


async def _connect_any(addresses: Sequence[_AddressInfo]) -> socket.socket:
    """Return a socket connected to the first address that answers. Raises OSError."""
    waiting = list(addresses)
    running: set[asyncio.Task[socket.socket]] = set()
    failure = OSError("the name has no address")
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.create_task(_connect_socket(waiting.pop(0))))
            pause = NEXT_ADDRESS_SECONDS if waiting else None
            done, running = await asyncio.wait(
                running, timeout=pause, return_when=asyncio.FIRST_COMPLETED
            )
            connected = [task.result() for task in done if task.exception() is None]
            for surplus in connected[1:]:
                surplus.close()
            if connected:
                return connected[0]
            failure = next((e for t in done if isinstance(e := t.exception(), OSError)), failure)
    finally:
        for task in running:
            task.cancel()
    raise failure


async def _connect_socket(info: _AddressInfo) -> socket.socket:
    made = socket.socket(info[0], info[1], info[2])
    try:
        made.setblocking(False)
        for level, option, value in _KEEPALIVE:
            made.setsockopt(level, option, value)
        await asyncio.get_running_loop().sock_connect(made, info[4])
    except BaseException:
        made.close()
        raise
    return made
