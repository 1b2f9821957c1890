"""When to run: at most every `min`, at least every `max`, and sooner again after a failure.

A state machine without a clock: every call is given the time. The engine drives it. The rules are
those of upstream's bounded frequency runner since v1.34: at most one request is remembered, the
pause counts from the end of a run, and a retry is nothing but an earlier `next`.
"""

from __future__ import annotations

from kubeproxy.errors import ConfigError


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
        self._is_requested = False
        self._cool_until = float("-inf")
        self._next = float("inf")

    def start(self, now: float) -> None:
        """From now on `max` counts; nothing runs by itself before that."""
        self._next = now + self._max

    def request(self) -> None:
        """Ask for a run; asking twice is asking once."""
        self._is_requested = True

    def due_at(self) -> float:
        """The time of the next run as things stand; it may lie in the past."""
        wanted = float("-inf") if self._is_requested else self._next
        return max(wanted, self._cool_until)

    def begin(self) -> None:
        """A run begins and takes the remembered request with it."""
        self._is_requested = False

    def end(self, now: float, *, is_success: bool) -> None:
        """The run is over; both pauses count from here."""
        self._cool_until = now + self._min
        self._next = now + (self._max if is_success else self._retry)
