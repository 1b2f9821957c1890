"""Kubernetes events (events.k8s.io/v1): recorded at once, delivered later.

`record` never waits, so any code may call it. A bounded queue holds what is not delivered yet. When
it is full new events are dropped, because reporting a problem must never become one. Which events
are repetitions is decided in `event_series`. How a request reaches the API server is left to an
`EventPoster`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from kubeproxy.api.events import EventPoster
from kubeproxy.errors import ProxyError
from kubeproxy.go.quoting import harmless
from kubeproxy.go.time import NANO
from kubeproxy.logs import get_logger
from kubeproxy.status.event_series import (
    CONTROLLER,
    FINISH_NS,
    REFRESH_NS,
    Event,
    Reference,
    SeriesBook,
    Write,
    create_request,
    write_request,
)

logger = get_logger(__name__)

QUEUE_LENGTH = 1000
MAX_TRIES = 12
RETRY_SECONDS = 10.0
RETRY_JITTER = 0.25


_MOST_NOTE_BYTES = 1024
"""The API server refuses an event with a longer note."""


def _note(text: str) -> str:
    """Return a note that is for reading: it may name processes and objects of others."""
    return harmless(text).encode()[:_MOST_NOTE_BYTES].decode(errors="ignore")


class Recorder:
    """Queues events and delivers them one after the other."""

    def __init__(
        self,
        poster: EventPoster | None,
        *,
        hostname: str,
        now_ns: Callable[[], int],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """With no poster, events are only logged. `random` returns numbers from 0 to 1."""
        self._poster = poster
        self._instance = f"{CONTROLLER}-{hostname}"
        self._now_ns = now_ns
        self._random = random
        self._sleep = sleep
        self._book = SeriesBook()
        self._queue: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._finish_at = now_ns() + FINISH_NS
        self._refresh_at = now_ns() + REFRESH_NS

    def record(
        self, regarding: Reference, *, type: str, reason: str, action: str, note: str = ""
    ) -> None:
        """Log an event that happened now, and queue it for delivery."""
        event = Event(regarding, type, reason, action, _note(note), self._now_ns())
        _log(event)
        if self._poster is None:
            return
        if len(self._queue) >= QUEUE_LENGTH:
            logger.error(None, "Dropped an event, the queue is full", reason=reason)
            return
        self._queue.append(event)
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self.drain()
            await self._wait()

    async def drain(self) -> None:
        """Deliver everything that is due now. Also called just before exit."""
        while self._queue:
            event = self._queue.popleft()
            await self._deliver_all(filter(None, [self._book.observe(event, self._now_ns())]))
        now_ns = self._now_ns()
        if now_ns >= self._refresh_at:
            self._refresh_at = now_ns + REFRESH_NS
            await self._deliver_all(self._book.refresh())
        if now_ns >= self._finish_at:
            self._finish_at = now_ns + FINISH_NS
            await self._deliver_all(self._book.finish(now_ns))

    async def _wait(self) -> None:
        """Wait until an event is recorded or a series is due."""
        due_ns = min(self._finish_at, self._refresh_at) - self._now_ns()
        try:
            async with asyncio.timeout(max(due_ns, 0) / NANO):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _deliver_all(self, writes: Iterable[Write]) -> None:
        for write in writes:
            await self._deliver(write)

    async def _deliver(self, write: Write) -> None:
        for attempt in range(MAX_TRIES):
            if attempt:
                await self._sleep(RETRY_SECONDS * (1 + RETRY_JITTER * self._random()))
            if await self._try(write):
                return
        logger.error(None, "Unable to write event (retry limit exceeded!)", event=write.event.name)

    async def _try(self, write: Write) -> bool:
        """Attempt a delivery. Return False if another attempt may help."""
        assert self._poster is not None
        try:
            status = await self._poster.post_event(write_request(write, self._instance))
            if status == 404 and write.series:
                # The event has expired on the server, so create it again with its series.
                status = await self._poster.post_event(create_request(write, self._instance))
                if status == 409:
                    return False
        except (ProxyError, OSError, TimeoutError) as error:
            logger.error(error, "Unable to write event (may retry after sleeping)")
            return False
        if status >= 400:
            _log_rejection(write.event, status)
        return True


def _log(event: Event) -> None:
    logger.v(3).info(
        "Event occurred",
        object=f"{event.regarding.namespace}/{event.regarding.name}".lstrip("/"),
        kind=event.regarding.kind,
        apiVersion="v1",
        type=event.type,
        reason=event.reason,
        action=event.action,
        note=event.note,
    )


def _log_rejection(event: Event, status: int) -> None:
    logger.error(None, "Server rejected event (will not retry!)", event=event.name, status=status)
