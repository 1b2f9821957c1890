"""What is due when, in ticks of the clock: constant cost however much waits. Pure.

A heap would do, at twice the cost per check. Nothing here needs to be more exact than a tick.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Wheel(Generic[T]):
    """Items by the tick at which they are due. An item may be there once."""

    def __init__(self) -> None:
        self._items: dict[int, set[T]] = {}
        self._ticks: list[int] = []
        """A heap of the ticks for which there is a set, even if it is empty by now."""

    def put(self, tick: int, item: T) -> None:
        found = self._items.get(tick)
        if found is None:
            found = self._items[tick] = set()
            heappush(self._ticks, tick)
        found.add(item)

    def discard(self, tick: int, item: T) -> None:
        """Take an item out again. One that is not there is none."""
        if tick in self._items:
            self._items[tick].discard(item)

    def take(self, tick: int) -> list[T]:
        """Take out everything that is due at this tick or was before."""
        taken: list[T] = []
        while self._ticks and self._ticks[0] <= tick:
            taken += self._items.pop(heappop(self._ticks))
        return taken

    def next_tick(self) -> int | None:
        """Return the first tick at which something is due, or None."""
        while self._ticks and not self._items[self._ticks[0]]:
            del self._items[heappop(self._ticks)]
        return self._ticks[0] if self._ticks else None
