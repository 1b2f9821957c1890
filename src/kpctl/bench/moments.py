"""Times at which something happened, in seconds of `time.monotonic`, and waiting for the next."""

from __future__ import annotations

import asyncio
import time


class Moments:
    """The times in order. One task adds them, others wait for them."""

    def __init__(self) -> None:
        self._added = asyncio.Event()
        self._all: list[float] = []

    def __len__(self) -> int:
        return len(self._all)

    def add(self, moment: float, count: int = 1) -> None:
        if count:
            self._all += [moment] * count
            self._added.set()

    def since(self, moment: float) -> list[float]:
        """Those at or after a time."""
        return [m for m in self._all if m >= moment]

    async def first_after(self, moment: float, limit_seconds: float) -> float | None:
        """Wait for the first at or after a time. Return None if the limit passes."""
        deadline = time.monotonic() + limit_seconds
        while True:
            self._added.clear()
            found = self.since(moment)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found[0] if found else None
            try:
                await asyncio.wait_for(self._added.wait(), left)
            except TimeoutError:
                continue
