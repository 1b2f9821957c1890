"""What is finite in a carrier (file descriptors, affinity records): who may take another one.

Promise: one service that takes all it can get never takes the last of it from the others, nor one
client of a service from the other clients.
"""

from __future__ import annotations

RESERVED = 256
"""Kept for pipes, the control socket and listeners that are still to come."""
LISTENER_ROOM = 64
"""How many must be free for a new listener and its first connections, or others end for them."""


class Budget:
    """Shares something between listeners, and between the clients of each.

    A listener may hold at most as many as are still free. So one greedy listener ends at half of
    them, two at a third each, and a new one always finds some. Likewise a client may hold at most
    as many as its listener may still take.
    """

    def __init__(self, limit: int, *, reserved: int = RESERVED) -> None:
        self.limit = max(limit - reserved, 0)
        self.used = 0

    def allows(self, held: int, cost: int, *, closing: int = 0) -> bool:
        """May a listener that holds this many take `cost` more?

        `closing` are given up already, but not free before the end of the iteration.
        """
        free = self.limit - self.used - closing
        return cost <= free and held <= free

    def allows_client(self, held_by_client: int, held: int) -> bool:
        """May one client of a listener take more?

        With each one the listener takes, one more is held and one fewer is free, so half of the
        difference is what it may still take.
        """
        return held_by_client * 2 <= self.limit - self.used - held

    def is_crowded(self, *, closing: int = 0) -> bool:
        """Must others end before there is room for a new listener?"""
        return self.limit - self.used - closing < LISTENER_ROOM

    def take(self, cost: int) -> None:
        self.used += cost

    def release(self, cost: int) -> None:
        self.used -= cost
