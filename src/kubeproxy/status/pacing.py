"""How much of the event loop's time the requests of one server may take: half.

Why: hundreds of clients that send request after request, each of which takes some milliseconds,
would leave no time for rules and for the probes of the kubelet. After some work all connections of
a server rest for as long as they worked. What arrives meanwhile waits in a queue, one entry per
connection, so that a client with many requests is served no sooner than one with a single request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

WORK_SECONDS = 0.01
"""After so much work there is a rest."""

MOST_REST_SECONDS = 0.1


class Worker(Protocol):
    """A connection that has something to do."""

    def take_turn(self) -> None: ...


class Pacing:
    """Work and rest of one server."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._waiting: dict[Worker, None] = {}
        self._worked = 0.0
        self._is_resting = False
        self._next: asyncio.Handle | None = None

    @property
    def is_resting(self) -> bool:
        return self._is_resting

    def work(self, step: Callable[[], None]) -> None:
        """Do something and count the time it takes."""
        started = self._monotonic()
        try:
            step()
        finally:
            self._worked += self._monotonic() - started
            if self._worked >= WORK_SECONDS and not self._is_resting:
                self._rest(min(self._worked, MOST_REST_SECONDS))

    def wait(self, worker: Worker) -> None:
        """Give this worker a turn after the others that wait."""
        self._waiting[worker] = None
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._serve)

    def leave(self, worker: Worker) -> None:
        """Forget a worker."""
        self._waiting.pop(worker, None)

    def _rest(self, seconds: float) -> None:
        self._is_resting = True
        if self._next is not None:
            self._next.cancel()
        self._next = asyncio.get_running_loop().call_later(seconds, self._serve)

    def _serve(self) -> None:
        """Give a turn to those that wait now, until it is time to rest."""
        self._next, self._worked, self._is_resting = None, 0.0, False
        for worker in tuple(self._waiting):
            if self._is_resting:
                return
            if self._waiting.pop(worker, worker) is None:
                worker.take_turn()
