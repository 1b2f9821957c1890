"""HTTP to the API server, behind one small protocol so that the library can be replaced.

Promises: connections are kept and reused, a dead peer is noticed within about 45 seconds also on a
silent watch, and every failure is an `Unavailable` whose text names the request and the reason.
Credentials, rate limits and retries are left to `client`.
"""

from __future__ import annotations

import platform
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, urlencode

import msgspec

from kubeproxy.api.auth.credentials import Login
from kubeproxy.api.observer import Observer
from kubeproxy.errors import Unavailable
from kubeproxy.version import KUBERNETES_VERSION, PACKAGE_VERSION, go_platform

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_SECONDS = 30.0
IDLE_CONNECTION_SECONDS = 90.0
READ_BUFFER_BYTES = 1 << 20
MOST_BODY_BYTES = 512 << 20
"""All EndpointSlices of the largest cluster that Kubernetes supports are a tenth of it. What is
larger, compressed or not, is not read into memory."""
MOST_REASON = 500
"""How many characters of a library's message, which may quote the server, are used."""

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
    """The transport over aiohttp. Its session is created at the first request."""

    def __init__(self, settings: HttpSettings, observer: Observer) -> None:
        self._settings = settings
        self._observer = observer
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def send(self, request: Request, login: Login) -> AsyncIterator[Response]:
        what = f"{request.method} {self._settings.server}{request.path}"
        with _as_unavailable(what):
            response = await self._start(request, login)
        try:
            yield _HttpResponse(response, what)
        finally:
            _release(response)

    async def _start(self, request: Request, login: Login) -> aiohttp.ClientResponse:
        import aiohttp
        from yarl import URL

        settings = self._settings
        query = urlencode(request.query, quote_via=quote)
        url = f"{settings.server}{request.path}{'?' if query else ''}{query}"
        return await self._open_session().request(
            request.method,
            URL(url, encoded=True),
            headers=self._headers(request, login),
            data=request.body or None,
            ssl=login.context if login.context is not None else True,
            server_hostname=settings.server_name or None,
            proxy=settings.proxy or None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=request.timeout_seconds,
                sock_connect=CONNECT_TIMEOUT_SECONDS,
                sock_read=request.idle_seconds,
            ),
        )

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

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    keepalive_timeout=IDLE_CONNECTION_SECONDS, socket_factory=_keepalive_socket
                ),
                trace_configs=[_resolution_trace(self._observer)],
                read_bufsize=READ_BUFFER_BYTES,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


class _HttpResponse:
    """A response of aiohttp, whose exceptions become `Unavailable`."""

    def __init__(self, response: aiohttp.ClientResponse, what: str) -> None:
        self._response = response
        self._what = what

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

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
        pieces = self._response.content.iter_any()
        while True:
            with _as_unavailable(self._what):
                piece = await anext(pieces, b"")
            if not piece:
                return
            yield piece


def _release(response: aiohttp.ClientResponse) -> None:
    """Return the connection to the pool, or abort it if the body was not read to its end."""
    connection = response.connection
    # A response read to its end has no connection any more. Otherwise abort: closing TLS in
    # order would wait for a server that is still sending its stream.
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.release()


@contextmanager
def _as_unavailable(what: str) -> Iterator[None]:
    """Turn exceptions of the library into `Unavailable`.

    All of them, since a server's bytes and a header's value reach code that is not ours.
    """
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        raise Unavailable(f"{what}: {explain(error)}") from error


def _keepalive_socket(info: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    made = socket.socket(info[0], info[1], info[2])
    for level, option, value in _KEEPALIVE:
        made.setsockopt(level, option, value)
    return made


def _resolution_trace(observer: Observer) -> aiohttp.TraceConfig:
    import aiohttp

    trace = aiohttp.TraceConfig()
    started: dict[str, float] = {}

    async def begin(_: object, __: object, found: aiohttp.TraceDnsResolveHostStartParams) -> None:
        started[found.host] = time.monotonic()

    async def end(_: object, __: object, found: aiohttp.TraceDnsResolveHostEndParams) -> None:
        seconds = time.monotonic() - started.pop(found.host, time.monotonic())
        observer.resolved(host=found.host, seconds=seconds)

    trace.on_dns_resolvehost_start.append(begin)
    trace.on_dns_resolvehost_end.append(end)
    return trace


def explain(error: BaseException) -> str:
    """Return why there was no response, and what to do where that is known."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _explain_certificate(error.certificate_error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error)
    if isinstance(error, TimeoutError):
        return f"no answer in time ({error or 'time-out'})"
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error.strerror or str(error.os_error)
        return f"cannot connect to {error.host}:{error.port}: {reason}"
    text = str(error)
    if isinstance(error, aiohttp.ClientResponseError):
        # Without the URL, whose query changes with each request: repeats are to be recognised.
        text = f"malformed response: {error.message}"
    return " ".join(text.split())[:MOST_REASON] or type(error).__name__


def _explain_certificate(error: BaseException) -> str:
    message = getattr(error, "verify_message", "") or str(error)
    if "ostname mismatch" in message or "IP address mismatch" in message:
        return f"the server's certificate is for another name ({message}); set tls-server-name"
    return (
        f"the server's certificate is not trusted ({message}); "
        "set certificate-authority to the authority that signed it"
    )
