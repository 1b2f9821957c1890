"""One client for everything: rate limit, login, request, metrics, and retries.

`open` yields the response to one request or raises an `ApiError`. Where the server asks to come
back later (429, or 5xx with Retry-After) the request is sent again after the time it names, a
limited number of times. Longer outages are left to the caller, who knows what it may miss.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

import msgspec

from kubeproxy.api.auth.access import Access
from kubeproxy.api.auth.credentials import Credentials, Login
from kubeproxy.api.auth.proxy import choose_proxy
from kubeproxy.api.limits import DEFAULT_BURST, DEFAULT_QPS, TokenBucket
from kubeproxy.api.observer import Observer
from kubeproxy.api.problems import TOO_MANY_REQUESTS, Unauthorized, api_error
from kubeproxy.api.transport import (
    HttpSettings,
    HttpTransport,
    Request,
    Response,
    TooLarge,
    Transport,
)
from kubeproxy.api.watch import Status, decode_status
from kubeproxy.errors import ApiError, Expired

MAX_RETRIES = 10
LONGEST_RETRY_SECONDS = 120.0
MOST_STATUS_BYTES = 1 << 20
"""A Status has a few hundred. What is larger is some other program's page."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A response read to its end, while a `Response` of the transport is still to be read."""

    status: int
    body: bytes


class ApiClient(Protocol):
    """Sends requests: the `Client` below, or one that a test puts in its place."""

    def open(self, request: Request) -> AbstractAsyncContextManager[Response]: ...

    async def send(self, request: Request) -> Reply: ...

    async def read(self, request: Request) -> bytes: ...

    async def close(self) -> None: ...


class ClientSettings(msgspec.Struct, frozen=True, gc=False):
    """The part of the `clientConnection` section that matters to a client that speaks JSON."""

    qps: float = DEFAULT_QPS
    burst: int = DEFAULT_BURST


DEFAULT_SETTINGS = ClientSettings()


class Client:
    """Sends requests to one API server."""

    def __init__(
        self,
        credentials: Credentials,
        transport: Transport,
        *,
        observer: Observer,
        settings: ClientSettings = DEFAULT_SETTINGS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._credentials = credentials
        self._transport = transport
        self._bucket = TokenBucket(settings.qps, settings.burst)
        self._observer = observer
        self._clock = clock
        self._sleep = sleep

    @property
    def host(self) -> str:
        return self._credentials.access.host

    async def close(self) -> None:
        await self._transport.close()

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Response]:
        """Yield the successful response to a request, still to be read."""
        retries = 0
        while True:
            try:
                async with self._attempt(request) as response:
                    yield response
                return
            except _RetryLater as retry:
                if retries == retry.allowed:
                    raise retry.reason from None
                retries += 1
                self._observer.retried(code=retry.code, method=request.method, host=self.host)
                await self._sleep(retry.seconds)

    async def send(self, request: Request) -> Reply:
        """Return the successful response to a request, read to its end."""
        async with self.open(request) as response:
            reply = Reply(response.status, await response.read())
        self._observer.received(method=request.method, host=self.host, size=len(reply.body))
        return reply

    async def read(self, request: Request) -> bytes:
        """Return the body of the successful response to a request."""
        return (await self.send(request)).body

    @asynccontextmanager
    async def _attempt(self, request: Request) -> AsyncIterator[Response]:
        await self._wait_for_rate_limit(request)
        login = await self._credentials.login()
        started = self._clock()
        async with AsyncExitStack() as stack:
            try:
                sent = self._transport.send(request, login)
                response = await stack.enter_async_context(sent)
            except ApiError:
                self._observe(request, "<error>", started)
                raise
            self._observe(request, str(response.status), started)
            if not 200 <= response.status < 300:
                await self._raise_error(request, response, login)
            yield response

    async def _wait_for_rate_limit(self, request: Request) -> None:
        if request.is_stream:
            return
        seconds = self._bucket.reserve(self._clock())
        if seconds > 0:
            await self._sleep(seconds)
        self._observer.rate_limited(method=request.method, host=self.host, seconds=seconds)

    def _observe(self, request: Request, code: str, started: float) -> None:
        method, host, seconds = request.method, self.host, self._clock() - started
        self._observer.requested(code=code, method=method, host=host)
        if not request.is_stream:
            sent = len(request.body)
            self._observer.answered(method=method, host=host, seconds=seconds, sent=sent)

    async def _raise_error(self, request: Request, response: Response, login: Login) -> None:
        status = await _read_status(response)
        reason = api_error(str(request), response.status, status)
        if isinstance(reason, Unauthorized):
            self._credentials.discard(login)
            if login.credential is not None:
                raise _RetryLater(reason, str(response.status), 0.0, allowed=1)
        seconds = retry_after(response.status, response.headers, status)
        # Waiting does not bring back a version that the server does not have.
        if seconds is not None and not isinstance(reason, Expired):
            raise _RetryLater(reason, str(response.status), seconds, allowed=MAX_RETRIES)
        raise reason


async def _read_status(response: Response) -> Status:
    """Return the Status in an error response, or an empty one where it has none."""
    try:
        return decode_status(await response.read(MOST_STATUS_BYTES))
    except TooLarge:
        return Status()


class _RetryLater(Exception):
    """The same request may succeed after some seconds."""

    def __init__(self, reason: ApiError, code: str, seconds: float, *, allowed: int) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.code = code
        self.seconds = seconds
        self.allowed = allowed


def retry_after(code: int, headers: Mapping[str, str], status: Status) -> float | None:
    """Return the seconds the server asks to wait before a retry, or None if it does not ask."""
    if code != TOO_MANY_REQUESTS and code < 500:
        return None
    text = headers.get("Retry-After", "")
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_RETRY_SECONDS)
    details = status.details
    if details is not None and details.retry_after_seconds > 0:
        return min(float(details.retry_after_seconds), LONGEST_RETRY_SECONDS)
    return None


def connect(
    access: Access,
    *,
    observer: Observer,
    settings: ClientSettings = DEFAULT_SETTINGS,
    environment: Mapping[str, str] | None = None,
) -> Client:
    """Return a client for this access. Raises `ConfigError` if the credentials are unusable."""
    environment = os.environ if environment is None else environment
    credentials = Credentials(access, observer=observer, environment=environment)
    credentials.check()
    http = HttpSettings(
        server=access.server,
        server_name=access.tls.server_name,
        proxy=choose_proxy(access.server, access.proxy_url, environment),
        accepts_gzip=not access.disables_compression,
    )
    return Client(credentials, HttpTransport(http, observer), settings=settings, observer=observer)
