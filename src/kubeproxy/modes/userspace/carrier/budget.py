"""File descriptors are finite: which listener may take another one.

Promise: one service that takes all it can get never takes the last descriptors from the others.
"""

from __future__ import annotations

RESERVED = 256
"""Kept for pipes, the control socket and listeners that are still to come."""


class Budget:
    """Shares descriptors between listeners.

    A listener may hold at most as many as are still free. So one greedy listener ends at half of
    them, two at a third each, and a new one always finds some.
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
