"""One client for everything: rate limit, login, request, measurement, and the server's wishes.

`open` yields the answer to one request or raises an `ApiError`. Where the server says "later"
(429, or 5xx with Retry-After) the request is sent again after the time it names, a few times;
longer troubles are for the caller, who knows what may be missed meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from kubeproxy.api.auth.access import Access
from kubeproxy.api.auth.credentials import Credentials, Login
from kubeproxy.api.auth.proxy import choose_proxy
from kubeproxy.api.limits import DEFAULT_BURST, DEFAULT_QPS, TokenBucket
from kubeproxy.api.observer import Observer, SilentObserver
from kubeproxy.api.problems import TOO_MANY_REQUESTS, Unauthorized, problem
from kubeproxy.api.transport import Answer, HttpSettings, HttpTransport, Request, Transport
from kubeproxy.api.watch import Status, decode_status
from kubeproxy.errors import ApiError, Expired

MAX_RETRIES = 10
LONGEST_RETRY_SECONDS = 120.0


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A whole answer."""

    status: int
    body: bytes


class ClientSettings(msgspec.Struct, frozen=True, gc=False):
    """The `clientConnection` section, as far as it concerns a client that speaks JSON."""

    qps: float = DEFAULT_QPS
    burst: int = DEFAULT_BURST


DEFAULT_SETTINGS = ClientSettings()


class Client:
    """Requests to one API server."""

    def __init__(
        self,
        credentials: Credentials,
        transport: Transport,
        *,
        settings: ClientSettings = DEFAULT_SETTINGS,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._credentials = credentials
        self._transport = transport
        self._bucket = TokenBucket(settings.qps, settings.burst)
        self._observer = observer or SilentObserver()
        self._clock = clock
        self._sleep = sleep

    @property
    def host(self) -> str:
        return self._credentials.access.host

    async def close(self) -> None:
        await self._transport.close()

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Answer]:
        """The successful answer to a request, still to be read."""
        retries = 0
        while True:
            try:
                async with self._attempt(request) as answer:
                    yield answer
                return
            except _Later as later:
                if retries == later.allowed:
                    raise later.reason from None
                retries += 1
                self._observer.retried(code=later.code, method=request.method, host=self.host)
                await self._sleep(later.seconds)

    async def send(self, request: Request) -> Reply:
        """A successful answer, read to its end."""
        async with self.open(request) as answer:
            reply = Reply(answer.status, await answer.read())
        self._observer.received(method=request.method, host=self.host, size=len(reply.body))
        return reply

    async def read(self, request: Request) -> bytes:
        """The body of a successful answer."""
        return (await self.send(request)).body

    @asynccontextmanager
    async def _attempt(self, request: Request) -> AsyncIterator[Answer]:
        await self._wait_turn(request)
        login = await self._credentials.login()
        started = self._clock()
        async with AsyncExitStack() as stack:
            try:
                sent = self._transport.send(request, login)
                answer = await stack.enter_async_context(sent)
            except ApiError:
                self._observe(request, "<error>", started)
                raise
            self._observe(request, str(answer.status), started)
            if not 200 <= answer.status < 300:
                await self._raise_problem(request, answer, login)
            yield answer

    async def _wait_turn(self, request: Request) -> None:
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

    async def _raise_problem(self, request: Request, answer: Answer, login: Login) -> None:
        status = decode_status(await answer.read())
        reason = problem(str(request), answer.status, status)
        if isinstance(reason, Unauthorized):
            self._credentials.refuse(login)
            if login.credential is not None:
                raise _Later(reason, str(answer.status), 0.0, allowed=1)
        seconds = retry_after(answer.status, answer.headers, status)
        # A version the server does not have will not appear by waiting.
        if seconds is not None and not isinstance(reason, Expired):
            raise _Later(reason, str(answer.status), seconds, allowed=MAX_RETRIES)
        raise reason


class _Later(Exception):
    """The same request may succeed after some seconds."""

    def __init__(self, reason: ApiError, code: str, seconds: float, *, allowed: int) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.code = code
        self.seconds = seconds
        self.allowed = allowed


def retry_after(code: int, headers: Mapping[str, str], status: Status) -> float | None:
    """The seconds the server asks us to wait before the same request again; None if it does not."""
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
    settings: ClientSettings = DEFAULT_SETTINGS,
    observer: Observer | None = None,
    environment: Mapping[str, str] | None = None,
) -> Client:
    """A client for this access; raises `ConfigError` where the credentials cannot be used."""
    environment = os.environ if environment is None else environment
    observer = observer or SilentObserver()
    credentials = Credentials(access, observer=observer, environment=environment)
    credentials.check()
    http = HttpSettings(
        server=access.server,
        server_name=access.tls.server_name,
        proxy=choose_proxy(access.server, access.proxy_url, environment),
        accepts_gzip=not access.disables_compression,
    )
    return Client(credentials, HttpTransport(http, observer), settings=settings, observer=observer)
