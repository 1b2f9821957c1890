"""Real servers on their way out: kept at weight 0 until their connections are gone. Pure.

A removed TCP endpoint may still be finishing its connections, so it is only taken out of new
scheduling and deleted once it is idle, at the latest after a limit: a connection that is never
closed must not keep it for ever. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from kubeproxy.modes.ipvs.items import VirtualServer

Place: TypeAlias = tuple[str, int]
"""A real server's address and port."""

PASS_SECONDS = 60.0
"""How often idle ones are looked for."""


class Draining:
    """Who is draining, and since when."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        # Since when is learned in the first pass: whoever adds one knows no clock.
        self._since: dict[VirtualServer, dict[Place, float | None]] = {}
        self._next_pass = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._since.values()))

    def places(self, server: VirtualServer) -> Collection[Place]:
        return self._since.get(server, {}).keys()

    def servers(self) -> tuple[VirtualServer, ...]:
        return tuple(self._since)

    def add(self, server: VirtualServer, places: Iterable[Place]) -> None:
        waiting = self._since.setdefault(server, {})
        for place in places:
            waiting.setdefault(place, None)
        if not waiting:
            del self._since[server]

    def discard(self, server: VirtualServer, places: Iterable[Place]) -> None:
        """These are wanted again, or gone."""
        waiting = self._since.get(server)
        if waiting is None:
            return
        for place in places:
            waiting.pop(place, None)
        if not waiting:
            del self._since[server]

    def forget(self, server: VirtualServer) -> None:
        """The virtual server is gone, and its real servers with it."""
        self._since.pop(server, None)

    def is_due(self, now: float) -> bool:
        return bool(self._since) and now >= self._next_pass

    def begin_pass(self, now: float) -> None:
        self._next_pass = now + PASS_SECONDS
        for waiting in self._since.values():
            for place, since in waiting.items():
                waiting[place] = now if since is None else since

    def seconds_left(self, now: float) -> float | None:
        """Until the next pass; None while nobody waits."""
        return max(self._next_pass - now, 0.0) if self._since else None

    def expired(self, server: VirtualServer, now: float) -> frozenset[Place]:
        """Those that have waited long enough, busy or not."""
        waiting = self._since.get(server, {})
        return frozenset(
            place
            for place, since in waiting.items()
            if since is not None and now - since >= self._limit_seconds
        )
