"""One epoll event loop: events, timers, calls for the next iteration, and delayed closing.

Why not asyncio: carrying one short connection takes about twenty calls here; asyncio's transports,
futures and callbacks would triple that (docs/decisions/0060 has the figures). Promises: a
descriptor closed during an iteration stays reserved until its end, so no event reaches an
unrelated socket that got the same number; a busy handler yields after its share and is called
again.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

EVENTS_PER_ITERATION = 256
Handler = Callable[[int], None]


class TimerSource(Protocol):
    """Something that has deadlines."""

    def next_deadline(self) -> float | None: ...

    def expire(self, now: float) -> None: ...


class Reactor:
    """Runs the handlers of descriptors; `now` is the time of the current iteration."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._closing: list[socket.socket] = []
        self._timers: list[TimerSource] = []
        self.now = clock()

    def close(self) -> None:
        self._close_sockets()
        self._epoll.close()

    @property
    def closing(self) -> int:
        """How many sockets are given up and not closed yet."""
        return len(self._closing)

    def add_timers(self, source: TimerSource) -> None:
        self._timers.append(source)

    def register(self, fd: int, events: int, handler: Handler) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Deliver no more events of this descriptor; it stays open."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close_later(self, handle: socket.socket) -> None:
        """Deliver no more events of a socket, and close it at the end of the iteration.

        Closing takes it out of the epoll set, so that costs no call of its own.
        """
        self._handlers.pop(handle.fileno(), None)
        self._closing.append(handle)

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call this in the next iteration, which then does not wait."""
        self._soon.append(work)

    def run_once(self) -> None:
        """Wait for events or a deadline, and handle what there is."""
        events = self._epoll.poll(self._timeout(), EVENTS_PER_ITERATION)
        self.now = self._clock()
        for fd, mask in events:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(mask)
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        for source in self._timers:
            source.expire(self.now)
        self._close_sockets()

    def _timeout(self) -> float:
        if self._soon:
            return 0
        deadlines = [due for source in self._timers if (due := source.next_deadline()) is not None]
        return max(min(deadlines) - self._clock(), 0) if deadlines else -1

    def _close_sockets(self) -> None:
        for handle in self._closing:
            handle.close()
        self._closing.clear()


class Timeout:
    """One pending call; cancelling it only sets a flag."""

    __slots__ = ("call", "deadline")

    def __init__(self, deadline: float, call: Callable[[], None]) -> None:
        self.deadline = deadline
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Timeouts:
    """Calls that are all due after the same delay, so that the oldest is always the next."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._queue: deque[Timeout] = deque()

    def start(self, now: float, call: Callable[[], None]) -> Timeout:
        timeout = Timeout(now + self._seconds, call)
        self._queue.append(timeout)
        return timeout

    def next_deadline(self) -> float | None:
        queue = self._queue
        while queue and queue[0].call is None:
            queue.popleft()
        return queue[0].deadline if queue else None

    def expire(self, now: float) -> None:
        queue = self._queue
        while queue and (queue[0].call is None or queue[0].deadline <= now):
            call = queue.popleft().call
            if call is not None:
                call()
