"""HTTP to the API server, behind one small protocol.

Promises: connections are kept and reused, a dead peer is noticed within about 45 seconds also on a
silent watch, and every failure is an `Unavailable` whose text names the request and the reason.
Credentials, rate limits and retries are left to `client`.

Why our own client: a library's import was half of the time until the first watch (decision 0104).
"""

from __future__ import annotations

import asyncio
import platform
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Protocol
from urllib.parse import quote, urlencode

import msgspec

from kubeproxy.api.auth.credentials import Login
from kubeproxy.api.dial import Route, dial, parse_endpoint
from kubeproxy.api.exchange import Connection, Exchange, Limits, NoResponse, begin
from kubeproxy.api.observer import Observer
from kubeproxy.api.response_wire import Malformed, format_request
from kubeproxy.errors import Unavailable
from kubeproxy.version import KUBERNETES_VERSION, PACKAGE_VERSION, go_platform

IDLE_CONNECTION_SECONDS = 90.0
MOST_BODY_BYTES = 512 << 20
"""All EndpointSlices of the largest cluster that Kubernetes supports are a tenth of it. What is
larger, compressed or not, is not read into memory."""
MOST_REASON = 500
"""How many characters of a library's message, which may quote the server, are used."""


class Request(msgspec.Struct, frozen=True):
    """One request. `timeout_seconds` bounds all of it, `idle_seconds` the silence between bytes."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    content_type: str = "application/json"
    timeout_seconds: float = 60.0
    idle_seconds: float = 60.0
    is_stream: bool = False
    """A watch: neither the rate limit nor the duration metrics apply to it."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Response(Protocol):
    """The status and headers of an HTTP response, whose body is read as needed."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self, most_bytes: int = MOST_BODY_BYTES) -> bytes:
        """Return the whole body. Raises `TooLarge` if it has more bytes."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces, as they arrive."""


class TooLarge(Unavailable):
    """A response is larger than anything that makes sense."""


class Transport(Protocol):
    """Sends one request. Leaving the context ends the response."""

    def send(self, request: Request, login: Login) -> AbstractAsyncContextManager[Response]: ...

    async def close(self) -> None: ...


def user_agent(program: str = "kube-proxy") -> str:
    """Return the User-Agent header: upstream's, followed by this program's own name."""
    host = go_platform(platform.system(), platform.machine())
    return f"{program}/{KUBERNETES_VERSION} ({host}) kubeproxy/{PACKAGE_VERSION}"


class HttpSettings(msgspec.Struct, frozen=True):
    """What all requests of a transport have in common."""

    server: str
    server_name: str = ""
    proxy: str = ""
    accepts_gzip: bool = True
    user_agent: str = ""


class HttpTransport:
    """The transport over HTTP/1.1. Connections are made as needed and kept for later requests."""

    def __init__(self, settings: HttpSettings, observer: Observer) -> None:
        self._settings = settings
        self._observer = observer
        self._idle: list[Connection] = []

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    @asynccontextmanager
    async def send(self, request: Request, login: Login) -> AsyncIterator[Response]:
        what = f"{request.method} {self._settings.server}{request.path}"
        with _as_unavailable(what):
            exchange = await self._begin(request, login)
        try:
            yield _HttpResponse(exchange, what)
        finally:
            self._release(exchange)

    async def _begin(self, request: Request, login: Login) -> Exchange:
        deadline = asyncio.get_running_loop().time() + request.timeout_seconds
        limits = Limits(deadline, request.idle_seconds)
        route = self._route()
        message = self._message(request, login, route)
        kept = self._take_idle(login.context)
        if kept is not None:
            try:
                return await begin(kept, message, limits)
            except NoResponse:
                # It had ended while it was idle. Whether a POST was done cannot be known.
                if request.method != "GET":
                    raise
        async with asyncio.timeout_at(deadline):
            stream = await dial(route, login.context, self._observer)
        return await begin(Connection(stream, login.context), message, limits)

    def _route(self) -> Route:
        settings = self._settings
        proxy = parse_endpoint(settings.proxy) if settings.proxy else None
        return Route(parse_endpoint(settings.server), proxy, settings.server_name)

    def _message(self, request: Request, login: Login, route: Route) -> bytes:
        query = urlencode(request.query, quote_via=quote)
        target = f"{route.server.prefix}{request.path}{'?' if query else ''}{query}"
        headers = [("Host", route.server.name), *self._headers(request, login)]
        if route.proxy is not None and not route.is_tunnel:
            target = f"http://{route.server.name}{target}"
            headers += route.proxy.authorization
        return format_request(request.method, target, headers, request.body)

    def _headers(self, request: Request, login: Login) -> list[tuple[str, str]]:
        headers = [
            ("Accept", "application/json"),
            ("User-Agent", self._settings.user_agent or user_agent()),
            ("Accept-Encoding", "gzip" if self._settings.accepts_gzip else "identity"),
            *login.headers,
        ]
        if request.body:
            headers.append(("Content-Type", request.content_type))
        return headers

    def _take_idle(self, context: ssl.SSLContext | None) -> Connection | None:
        """Take a kept connection that was made with these credentials."""
        while self._idle:
            found = self._idle.pop()
            if found.is_usable and found.context is context:
                found.use()
                return found
            found.abort()
        return None

    def _release(self, exchange: Exchange) -> None:
        """Keep the connection if another request may follow, and abort it otherwise."""
        if exchange.keeps_connection:
            exchange.connection.keep(IDLE_CONNECTION_SECONDS)
            self._idle.append(exchange.connection)
        else:
            exchange.connection.abort()


class _HttpResponse:
    """A response whose exceptions are `Unavailable`."""

    def __init__(self, exchange: Exchange, what: str) -> None:
        self._exchange = exchange
        self._what = what

    @property
    def status(self) -> int:
        return self._exchange.head.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._exchange.head.headers

    async def read(self, most_bytes: int = MOST_BODY_BYTES) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in self.chunks():
            pieces.append(piece)
            size += len(piece)
            if size > most_bytes:
                raise TooLarge(f"{self._what}: the response has more than {most_bytes} bytes")
        return b"".join(pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        pieces = self._exchange.pieces()
        while True:
            with _as_unavailable(self._what):
                piece = await anext(pieces, None)
            if piece is None:
                return
            if piece:
                yield piece


@contextmanager
def _as_unavailable(what: str) -> Iterator[None]:
    """Turn exceptions into `Unavailable`.

    All of them, since a server's bytes and a header's value reach code that is not ours.
    """
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        raise Unavailable(f"{what}: {explain(error)}") from error


def explain(error: BaseException) -> str:
    """Return why there was no response, and what to do where that is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error)
    if isinstance(error, TimeoutError):
        return f"no answer in time ({error or 'time-out'})"
    if isinstance(error, Malformed):
        return f"malformed response: {error}"
    return " ".join(str(error).split())[:MOST_REASON] or type(error).__name__


def _explain_certificate(error: BaseException) -> str:
    message = getattr(error, "verify_message", "") or str(error)
    if "ostname mismatch" in message or "IP address mismatch" in message:
        return f"the server's certificate is for another name ({message}); set tls-server-name"
    return (
        f"the server's certificate is not trusted ({message}); "
        "set certificate-authority to the authority that signed it"
    )
