"""File descriptors are finite: who may have another one, and what is said when none is left.

Promises: one service that takes all it can get never takes the last descriptors from the others;
the log gets one line in a while, not one per refusal.
"""

from __future__ import annotations

from collections.abc import Callable

RESERVED = 256
"""Kept for pipes, the control socket and listeners that are still to come."""


class Budget:
    """Shares descriptors between listeners.

    A listener may hold at most as many as are still free. So one greedy listener ends at half of
    them, two at a third each, and a newcomer always finds some.
    """

    def __init__(self, limit: int) -> None:
        self.limit = max(limit - RESERVED, 0)
        self.used = 0

    def allows(self, held: int, cost: int) -> bool:
        """May a listener that holds this many take `cost` more?"""
        free = self.limit - self.used
        return cost <= free and held <= free

    def take(self, cost: int) -> None:
        self.used += cost

    def release(self, cost: int) -> None:
        self.used -= cost


class Complaints:
    """Says each thing about each service at most once in a while, with how often it was meant."""

    def __init__(self, say: Callable[[str, str], None], every_seconds: float = 10.0) -> None:
        self._say = say
        self._every_seconds = every_seconds
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def note(self, label: str, kind: str, detail: str, now: float) -> None:
        """`kind` is what repeats; `detail` may differ each time."""
        said_at, suppressed = self._said.get((label, kind), (float("-inf"), 0))
        if now - said_at < self._every_seconds:
            self._said[label, kind] = (said_at, suppressed + 1)
            return
        self._said[label, kind] = (now, 0)
        more = f" (and {suppressed} times more before)" if suppressed else ""
        self._say(f"{kind}: {detail}{more}", label)

    def forget(self, label: str) -> None:
        """The service is gone."""
        for key in [key for key in self._said if key[0] == label]:
            del self._said[key]
