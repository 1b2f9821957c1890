"""Keeps one collection of objects in step with the API server, until cancelled.

List, then watch from there. When a watch ends, watch again from the last version. List again only
when the server no longer has that version, was away for long, or a response made no sense. An
outage costs nothing but waiting: announced objects stay until a complete list omits them.

A streaming list (the server sends existing objects as watch events) is tried first where that was
asked for. Otherwise, and where it is refused or stalls, pages are fetched: they are compressed, and
cost the server less (decision 0103). What the bytes mean is decided in `watch`.

A failure is logged with what it means for the rules, once per reason and minute. A response that
breaks off is none: load balancers end connections all the time, and the watch goes on.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from kubeproxy.api.backoff import Backoff, BackoffPolicy
from kubeproxy.api.client import ApiClient
from kubeproxy.api.json_text import MOST_LEVELS
from kubeproxy.api.problems import BAD_REQUEST, NOT_FOUND, Refused, ServerFailed, api_error
from kubeproxy.api.resources import Resource
from kubeproxy.api.source import CollectionState, Inbox, Kind, Seen, Synced
from kubeproxy.api.transport import Request, Response
from kubeproxy.api.watch import (
    Failed,
    Garbled,
    Ignored,
    Progress,
    Shortened,
    Status,
    Tracker,
    WatchEvent,
)
from kubeproxy.errors import ApiError, Expired, Unavailable
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import MOST_OBJECTS, LogLimit

logger = get_logger(__name__)


class ReflectorSettings(msgspec.Struct, frozen=True, gc=False):
    """Times and sizes. The defaults are upstream's, except where it has none."""

    page_size: int = 500
    watch_seconds: float = 300.0
    """The server ends a watch after this time to twice this time."""
    grace_seconds: float = 30.0
    """How much longer to wait for that end before ending the watch from this side."""
    stall_seconds: float = 60.0
    """After so long without a byte a streaming list is given up, and pages are fetched."""
    list_seconds: float = 300.0
    short_watch_seconds: float = 1.0
    """A watch that ends sooner, without an event, counts as a failure."""
    outage_seconds: float = 300.0
    """After a longer outage a list comes first. Servers forget versions in that time, and one whose
    storage was restored from a backup would be silent in a watch from a version it never had."""
    absent_seconds: float = 600.0
    """How long to wait before asking again for a collection that the server does not have."""
    backoff: BackoffPolicy = BackoffPolicy()
    streams: bool = True


DEFAULTS = ReflectorSettings()

MOST_PAGES = 10_000
"""A server that has still more pages repeats itself."""


class Reflector:
    """Sends every event of one collection to the inbox, in order."""

    def __init__(
        self,
        client: ApiClient,
        resource: Resource,
        inbox: Inbox,
        *,
        settings: ReflectorSettings = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._resource = resource
        self._inbox = inbox
        self._settings = settings
        self._clock = clock
        self._rand = rand
        self._sleep = sleep
        self._tracker = Tracker(resource.kind)
        self._backoff = Backoff(settings.backoff)
        self._trusts_version = True
        self._has_listed = False
        self._seen = Seen.LISTING
        self._seen_since = clock()
        self._problem = ""
        self._limit = LogLimit(monotonic=clock)
        self._once = LogLimit(math.inf, monotonic=clock)
        self._shortened = LogLimit(monotonic=clock, most_keys=MOST_OBJECTS)

    def state(self) -> CollectionState:
        """Whether changes are seen now, and since when."""
        seconds = self._clock() - self._seen_since
        return CollectionState(self._resource.name, self._seen, seconds, self._problem)

    def _note(self, seen: Seen, problem: str = "") -> None:
        if seen is not self._seen:
            self._seen, self._seen_since = seen, self._clock()
        self._problem = problem

    async def run(self) -> None:
        """List and watch until cancelled."""
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
                if self._does_without_selector(error):
                    continue
                self._report(error)
                if self._is_absent(error):
                    await self._sleep(self._settings.absent_seconds)
                    continue
            await self._pause()

    async def _list_and_watch(self) -> None:
        try:
            if not (self._settings.streams and await self._streaming_list()):
                await self._paged_list()
        except Expired:
            # The server does not even have "at least as new as what we saw", for example after
            # its storage was restored from a backup: take any version.
            self._trusts_version = False
            raise
        self._trusts_version = True
        while True:
            await self._watch()

    async def _streaming_list(self) -> bool:
        """List and watch in one response. Return False where pages must be fetched instead."""
        version = self._tracker.resource_version if self._trusts_version else ""
        query = (
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
            ("resourceVersion", version),
        )
        self._tracker.begin_list()
        try:
            await self._follow(query)
        except (Refused, ServerFailed, _StreamBroken, _StreamUnusable) as error:
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
            # The list took longer than the server keeps versions: fetch all in one page.
            await self._fetch_pages("", 0)

    async def _fetch_pages(self, version: str, page_size: int) -> None:
        self._tracker.begin_list()
        token = ""
        for _ in range(MOST_PAGES):
            try:
                body = await self._client.read(self._page_request(version, page_size, token))
            except Expired as error:
                raise _PagesExpired(str(error)) if token else error from error
            page = self._tracker.feed_page(body)
            for event in page.events:
                self._handle(event)
            if not page.continue_token:
                return
            if page.continue_token == token:
                break
            token = page.continue_token
        raise _StreamUnusable(f"{self._resource.path}: the list has no last page")

    def _page_request(self, version: str, page_size: int, token: str) -> Request:
        # A token contains its version. The server refuses a request that has both.
        where = ("continue", token) if token else ("resourceVersion", version)
        limit = (("limit", str(page_size)),) if page_size else ()
        return Request(
            "GET",
            self._resource.path,
            query=(*self._resource.selectors, *limit, where),
            timeout_seconds=self._settings.list_seconds,
        )

    async def _watch(self) -> None:
        """Watch once from the last version. Pause after a watch that failed or was very short.

        One that brought something is followed by another at once, but not more often than each
        `short_watch_seconds`, however it ended.
        """
        self._tracker.begin_stream()
        started, version = self._clock(), self._tracker.resource_version
        try:
            await self._follow((("resourceVersion", version),))
        except _StreamBroken as error:
            logger.v(2).info("Watch ended, trying again", type=self._resource.name, err=str(error))
        except Unavailable as error:
            self._report(error)
            await self._pause()
            if self.state().seconds > self._settings.outage_seconds:
                raise Expired(f"no watch for {self.state().seconds:.0f} seconds") from error
            return
        missing = self._settings.short_watch_seconds - (self._clock() - started)
        if missing <= 0:
            return
        if self._tracker.resource_version == version:
            logger.v(2).info("Very short watch, waiting", type=self._resource.name)
            await self._pause()
        else:
            await self._sleep(missing)

    async def _follow(self, query: tuple[tuple[str, str], ...]) -> None:
        """Deliver the events of one watch response until it ends."""
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
        async with self._client.open(request) as response:
            if not self._tracker.is_listing:
                self._note(Seen.WATCHING)
            async for chunk in self._chunks(response):
                for event in self._tracker.feed(chunk):
                    self._handle(event)
        if self._tracker.is_listing:
            raise _StreamBroken("the stream ended before all objects were sent")

    async def _chunks(self, response: Response) -> AsyncIterator[bytes]:
        """Yield the pieces of a stream. While it lists, silence is a failure."""
        pieces = response.chunks()
        while True:
            limit = self._settings.stall_seconds if self._tracker.is_listing else None
            try:
                async with asyncio.timeout(limit):
                    piece = await anext(pieces, b"")
            except TimeoutError:
                raise _StreamBroken(f"no byte for {limit:g} seconds") from None
            except Unavailable as error:
                raise _StreamBroken(str(error)) from error
            if not piece:
                return
            yield piece

    def _handle(self, event: WatchEvent) -> None:
        match event:
            case Failed():
                raise self._failure(event.status)
            case Garbled():
                raise _StreamUnusable(f"{self._resource.path}: {event.reason}")
            case Ignored():
                logger.v(1).info(
                    "Unknown watch event is ignored", type=self._resource.name, event=event.type
                )
            case Shortened() if self._shortened.is_due(event.name):
                logger.error(
                    f"a field is nested too deeply, more than {MOST_LEVELS} levels; it is ignored,"
                    " the object is used without it",
                    "Part of an object is left out",
                    kind=self._resource.name,
                    name=event.name,
                    resourceVersion=event.resource_version,
                )
            case Progress() | Shortened():
                pass  # The tracker has noted the version, and the log has the name.
            case Synced():
                self._has_listed = True
                self._note(Seen.WATCHING)
                logger.v(2).info("Caches populated", type=self._resource.name)
                self._inbox.send(event)
            case _:
                self._inbox.send(event)

    def _failure(self, status: Status) -> ApiError:
        """Return why the server ended a stream. After a failure of its own only a list helps."""
        found = api_error(f"watch {self._resource.path}", status.code or 500, status)
        return _StreamUnusable(str(found)) if isinstance(found, ServerFailed) else found

    def _does_without_selector(self, error: ApiError) -> bool:
        """Give up selecting Services by field where the server refuses it, as v1.30 does.

        Headless Services, which it leaves out, are then left out by `decode`.
        """
        is_refused = isinstance(error, Refused) and error.code == BAD_REQUEST
        is_selecting = self._resource.kind is Kind.SERVICE and self._resource.field_selector
        if not (is_refused and is_selecting):
            return False
        logger.info("The server cannot select Services by field, asking for all", err=str(error))
        self._resource = msgspec.structs.replace(self._resource, field_selector="")
        return True

    def _report(self, error: ApiError) -> None:
        """Log why there is no list or watch, and what that means, if it was not logged lately."""
        name, reason = self._resource.name, str(error)
        self._note(Seen.FAILING, reason)
        if not self._limit_for(error).is_due(reason):
            logger.v(2).info("Failed to watch, again", type=name, err=reason)
            return
        logger.error(error, "Failed to watch", type=name, effect=self._effect())

    def _limit_for(self, error: ApiError) -> LogLimit:
        return self._once if self._is_absent(error) else self._limit

    def _is_absent(self, error: ApiError) -> bool:
        """Is it a collection that older servers do not have? Only an upgrade brings it."""
        # Servers before v1.33 have no ServiceCIDRs.
        is_optional = self._resource.kind is Kind.SERVICE_CIDR
        return is_optional and isinstance(error, Refused) and error.code == NOT_FOUND

    def _effect(self) -> str:
        if self._resource.kind is Kind.SERVICE_CIDR:
            return "the networks of Services are not known; all else goes on"
        if self._has_listed or self._resource.kind is Kind.NODE:
            return "rules stay as they are; changes are not seen until this works again"
        return "nothing is programmed before the first list; rules of an earlier run stay"

    async def _pause(self) -> None:
        await self._sleep(self._backoff.fail(self._clock(), self._rand()))


class _StreamBroken(Unavailable):
    """A stream ended early or stalled. A watch may continue from the last version."""


class _StreamUnusable(ApiError):
    """A stream cannot be continued and its missing part is unknown, so that a list is needed."""


class _PagesExpired(Exception):
    """The server dropped the version of a paged list before its last page."""
