"""Keeps one collection of objects in step with the API server, for ever.

List, then watch from there; watch again from the last version when a watch ends; list again only
when the server no longer knows that version or an answer made no sense. An outage, however long,
costs nothing but waiting: what was announced stays announced until a complete list says otherwise.

A streaming list (the server sends existing objects as watch events) is tried first; where it is
refused or gets stuck, pages are fetched. What the bytes mean is decided in `watch`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

import msgspec

from kubeproxy.api.backoff import Backoff, BackoffPolicy
from kubeproxy.api.problems import Refused, ServerFailed, problem
from kubeproxy.api.resources import Resource
from kubeproxy.api.transport import Answer, Request
from kubeproxy.api.watch import Event, Failed, Garbled, Ignored, Status, Tracked, Tracker
from kubeproxy.errors import ApiError, Expired, Unavailable
from kubeproxy.logs import get_logger

T = TypeVar("T", bound=Tracked)
logger = get_logger(__name__)


class Opener(Protocol):
    """The part of the client that is used here."""

    def open(self, request: Request) -> AbstractAsyncContextManager[Answer]: ...

    async def read(self, request: Request) -> bytes: ...


class ReflectorSettings(msgspec.Struct, frozen=True, gc=False):
    """Times and sizes; the defaults are upstream's, except where it has none."""

    page_size: int = 500
    watch_seconds: float = 300.0
    """The server ends a watch after this time to twice this time."""
    grace_seconds: float = 30.0
    """How much longer we wait for that end before we end it ourselves."""
    stall_seconds: float = 60.0
    """A streaming list that is silent for so long is given up for pages."""
    list_seconds: float = 300.0
    short_watch_seconds: float = 1.0
    """A watch that ends sooner, without a word, counts as a failure."""
    backoff: BackoffPolicy = BackoffPolicy()
    streams: bool = True


DEFAULTS = ReflectorSettings()


class Reflector(Generic[T]):
    """One collection; `deliver` gets every event, in order, and must not wait."""

    def __init__(
        self,
        client: Opener,
        resource: Resource[T],
        deliver: Callable[[Event[T]], None],
        *,
        settings: ReflectorSettings = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._resource = resource
        self._deliver = deliver
        self._settings = settings
        self._clock = clock
        self._rand = rand
        self._sleep = sleep
        self._tracker: Tracker[T] = Tracker(resource.decoder())
        self._backoff = Backoff(settings.backoff)
        self._trusts_version = True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._list_and_watch()
            except Expired as error:
                logger.v(4).info(
                    "Resource version is gone, listing again",
                    type=self._resource.name,
                    err=str(error),
                )
            except ApiError as error:
                logger.error(error, "Failed to watch", type=self._resource.name)
            await self._pause()

    async def _list_and_watch(self) -> None:
        try:
            if not (self._settings.streams and await self._streaming_list()):
                await self._paged_list()
        except Expired:
            # Not even "at least as new as what we saw" can be had: take what there is.
            self._trusts_version = False
            raise
        self._trusts_version = True
        while True:
            await self._watch()

    async def _streaming_list(self) -> bool:
        """List and go on watching in one answer; False where pages must be fetched instead."""
        version = self._tracker.resource_version if self._trusts_version else ""
        query = (
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
            ("resourceVersion", version),
        )
        self._tracker.begin_list()
        try:
            await self._follow(query)
        except (Refused, ServerFailed, _BrokenOff, _Useless) as error:
            if self._tracker.is_listing:
                logger.v(2).info(
                    "No streaming list, fetching pages", type=self._resource.name, err=str(error)
                )
        return not self._tracker.is_listing

    async def _paged_list(self) -> None:
        version = (self._tracker.resource_version or "0") if self._trusts_version else ""
        try:
            await self._fetch_pages(version, self._settings.page_size)
        except _PagesExpired:
            # The list took longer than the server keeps versions: take all at once.
            await self._fetch_pages("", 0)

    async def _fetch_pages(self, version: str, page_size: int) -> None:
        self._tracker.begin_list()
        token = ""
        while True:
            try:
                body = await self._client.read(self._page_request(version, page_size, token))
            except Expired as error:
                raise _PagesExpired(str(error)) if token else error from error
            page = self._tracker.feed_page(body)
            for event in page.events:
                self._handle(event)
            token = page.continue_token
            if not token:
                return

    def _page_request(self, version: str, page_size: int, token: str) -> Request:
        # A token carries its version; sending both is an error.
        where = ("continue", token) if token else ("resourceVersion", version)
        limit = (("limit", str(page_size)),) if page_size else ()
        return Request(
            "GET",
            self._resource.path,
            query=(*self._resource.selectors, *limit, where),
            timeout_seconds=self._settings.list_seconds,
        )

    async def _watch(self) -> None:
        """One watch from the last version; troubles on the way are waited out here."""
        self._tracker.begin_stream()
        started, version = self._clock(), self._tracker.resource_version
        try:
            await self._follow((("resourceVersion", version),))
        except Unavailable as error:
            logger.v(2).info("Watch ended, trying again", type=self._resource.name, err=str(error))
            await self._pause()
            return
        is_short = self._clock() - started < self._settings.short_watch_seconds
        if is_short and self._tracker.resource_version == version:
            logger.v(2).info("Very short watch, waiting", type=self._resource.name)
            await self._pause()

    async def _follow(self, query: tuple[tuple[str, str], ...]) -> None:
        """Deliver the events of one watch answer until it ends."""
        seconds = self._settings.watch_seconds * (1 + self._rand())
        request = Request(
            "GET",
            self._resource.path,
            query=(
                *self._resource.selectors,
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("timeoutSeconds", str(int(seconds))),
                *query,
            ),
            is_stream=True,
            timeout_seconds=seconds + self._settings.grace_seconds,
            idle_seconds=seconds + self._settings.grace_seconds,
        )
        async with self._client.open(request) as answer:
            async for chunk in self._chunks(answer):
                for event in self._tracker.feed(chunk):
                    self._handle(event)
        if self._tracker.is_listing:
            raise _BrokenOff("the stream ended before all objects were sent")

    async def _chunks(self, answer: Answer) -> AsyncIterator[bytes]:
        """The pieces of a stream; while it lists, silence is a failure."""
        pieces = answer.chunks()
        while True:
            limit = self._settings.stall_seconds if self._tracker.is_listing else None
            try:
                async with asyncio.timeout(limit):
                    piece = await anext(pieces, b"")
            except TimeoutError:
                raise _BrokenOff(f"no byte for {limit:g} seconds") from None
            except Unavailable as error:
                raise _BrokenOff(str(error)) from error
            if not piece:
                return
            yield piece

    def _handle(self, event: Event[T]) -> None:
        if isinstance(event, Failed):
            raise self._failure(event.status)
        if isinstance(event, Garbled):
            raise _Useless(f"{self._resource.path}: {event.reason}")
        if isinstance(event, Ignored):
            logger.v(1).info(
                "Unknown watch event is ignored", type=self._resource.name, event=event.type
            )
            return
        self._deliver(event)

    def _failure(self, status: Status) -> ApiError:
        """Why the server ended a stream; where it is to blame itself, a new list is the way on."""
        found = problem(f"watch {self._resource.path}", status.code or 500, status)
        return _Useless(str(found)) if isinstance(found, ServerFailed) else found

    async def _pause(self) -> None:
        await self._sleep(self._backoff.fail(self._clock(), self._rand()))


class _BrokenOff(Unavailable):
    """A stream began and did not end well."""


class _Useless(ApiError):
    """A stream that cannot be gone on with, and whose missing part is unknown."""


class _PagesExpired(Exception):
    """The versions of a paged list were forgotten before its last page."""
