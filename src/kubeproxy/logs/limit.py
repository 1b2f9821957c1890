"""A limit on repeated log messages: one line, or a few, per key and interval.

For failures that outsiders or the host can cause many times per second. What the message is, and
whether suppressed repeats are counted, is left to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable

INTERVAL_SECONDS = 60.0
MOST_KEYS = 100
"""Keys may come from outsiders, so their number is bounded. Beyond it, all share one."""
MOST_OBJECTS = 1000
"""The number where keys are names of objects, and each name is worth a line."""


class LogLimit:
    """Decides whether a message is logged."""

    def __init__(
        self,
        interval_seconds: float = INTERVAL_SECONDS,
        *,
        burst: int = 1,
        most_keys: int = MOST_KEYS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allow `burst` messages per key and interval."""
        self._interval_seconds = interval_seconds
        self._burst = burst
        self._most_keys = most_keys
        self._monotonic = monotonic
        self._logged: dict[str, tuple[float, int]] = {}
        """When the interval of a key began, and how many messages it has had."""
        self._tidied_at = monotonic()

    def is_due(self, key: str = "") -> bool:
        """May a message of this key be logged? If so, it counts as logged now."""
        now = self._monotonic()
        if now - self._tidied_at >= self._interval_seconds:
            self._forget_old(now)
        if key not in self._logged and len(self._logged) >= self._most_keys:
            key = ""
        began, count = self._logged.get(key, (now, 0))
        if now - began >= self._interval_seconds:
            began, count = now, 0
        if count >= self._burst:
            return False
        self._logged[key] = began, count + 1
        return True

    def _forget_old(self, now: float) -> None:
        """Once per interval: not at every message of a flood, and not only when there is one."""
        self._tidied_at = now
        self._logged = {
            key: found
            for key, found in self._logged.items()
            if now - found[0] < self._interval_seconds
        }
