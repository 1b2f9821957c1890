"""When to run: at most every `min`, at least every `max`, and sooner again after a failure.

A state machine without a clock: every call is given the time. The engine drives it. The rules are
those of upstream's bounded frequency runner since v1.34: at most one request is remembered, the
pause counts from the end of a run, and a retry is nothing but an earlier `next`.

One rule is ours: the pause is each Service's own. Where one changes without end, rounds follow
each other at every `min`, and a change elsewhere would always find a pause that it did not cause.

    noisy   ─█───────── min ────────█──────── min ─────────█─
    quiet                  ▲█       its own last run is longer ago than min: no pause

What keeps many Services from making a round each is a short pause after every run (`_spacing`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from kubeproxy.errors import ConfigError

SPACING = 3.0
"""After a run, so many times its duration pass at least, up to `min`: a quarter of the time is the
most that runs take together."""
MERGED = 0.05
"""After a run, this part of `min` passes at least: what changes meanwhile shares the next one."""


class Runner:
    """Bounded-frequency scheduling of one function."""

    def __init__(
        self,
        name: str,
        *,
        min_seconds: float,
        retry_seconds: float,
        max_seconds: float,
    ) -> None:
        if max_seconds < min_seconds:
            raise ConfigError(
                f"{name}: maxInterval ({max_seconds:g}s) must be >= minInterval ({min_seconds:g}s)"
            )
        self._min = min_seconds
        self._retry = min(retry_seconds, max_seconds)
        self._max = max_seconds
        self._requested: set[Hashable] = set()
        self._running: set[Hashable] = set()
        self._ended: dict[Hashable, float] = {}
        """When the last run for a source of requests ended, if that is less than `min` ago."""
        self._soonest = float("inf")
        """When the first of those that are requested may run."""
        self._began = float("inf")
        self._spaced_until = float("-inf")
        self._cool_until = float("-inf")
        self._next = float("inf")

    def start(self, now: float) -> None:
        """From now on `max` counts; nothing runs by itself before that."""
        self._next = now + self._max

    def request(self, source: Hashable = None) -> None:
        """Ask for a run; asking twice is asking once. The pause is that of the source.

        A source is what changed. Without one the pause is after any run.
        """
        if source not in self._requested:
            self._requested.add(source)
            self._soonest = min(self._soonest, self._rested_at(source))

    @property
    def paused(self) -> Collection[Hashable]:
        """The sources that lately had a run."""
        return self._ended.keys()

    def _rested_at(self, source: Hashable) -> float:
        if source is None:
            return self._cool_until
        return self._ended.get(source, float("-inf")) + self._min

    def due_at(self) -> float:
        """The time of the next run as things stand; it may lie in the past."""
        requested = max(self._soonest, self._spaced_until)
        return min(requested, max(self._next, self._cool_until))

    def begin(self, now: float) -> None:
        """A run begins and takes the remembered requests with it."""
        self._began = now
        self._running, self._requested = self._requested, set()
        self._soonest = float("inf")

    def end(self, now: float, *, is_success: bool) -> None:
        """The run is over; all pauses count from here."""
        self._cool_until = now + self._min
        self._spaced_until = now + (self._spacing(now) if is_success else self._min)
        recent = {source: end for source, end in self._ended.items() if end + self._min > now}
        self._ended = recent | dict.fromkeys(self._running, now)
        self._soonest = min(map(self._rested_at, self._requested), default=float("inf"))
        self._next = now + (self._max if is_success else self._retry)

    def _spacing(self, now: float) -> float:
        """The pause after a run that ends now, for all sources."""
        return min(self._min, max(MERGED * self._min, SPACING * (now - self._began)))
