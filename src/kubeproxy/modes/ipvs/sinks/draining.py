"""Real servers that are draining: kept at weight 0 until their connections have ended. Pure.

A removed TCP endpoint may still be finishing its connections, so it is only excluded from new
scheduling, and deleted once it is idle. There is a limit: a connection that is never closed must
not keep it for ever. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kubeproxy.modes.ipvs.items import Place, VirtualServer

PASS_SECONDS = 60.0
"""The interval at which draining real servers are checked for connections."""


class Draining:
    """Which real servers are draining, and since when."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        # None until the first pass fills it in: a sink that applies a batch has no clock.
        self._since: dict[VirtualServer, dict[Place, float | None]] = {}
        self._next_pass = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._since.values()))

    def places(self, server: VirtualServer) -> Collection[Place]:
        return self._since.get(server, {}).keys()

    def servers(self) -> tuple[VirtualServer, ...]:
        return tuple(self._since)

    def add(self, server: VirtualServer, places: Iterable[Place]) -> None:
        """Record that these drain; those that already do keep their time."""
        waiting = self._since.setdefault(server, {})
        for place in places:
            waiting.setdefault(place, None)
        if not waiting:
            del self._since[server]

    def discard(self, server: VirtualServer, places: Iterable[Place]) -> None:
        """Record that these no longer drain: they are wanted again, or gone."""
        waiting = self._since.get(server)
        if waiting is None:
            return
        for place in places:
            waiting.pop(place, None)
        if not waiting:
            del self._since[server]

    def forget(self, server: VirtualServer) -> None:
        """Record that the virtual server is gone, and its real servers with it."""
        self._since.pop(server, None)

    def is_due(self, now: float) -> bool:
        return bool(self._since) and now >= self._next_pass

    def begin_pass(self, now: float) -> None:
        """Start the time of those added since the last pass, and plan the next pass."""
        self._next_pass = now + PASS_SECONDS
        for waiting in self._since.values():
            for place, since in waiting.items():
                waiting[place] = now if since is None else since

    def seconds_left(self, now: float) -> float | None:
        """Seconds until the next pass; None while no real server drains."""
        return max(self._next_pass - now, 0.0) if self._since else None

    def expired(self, server: VirtualServer, now: float) -> frozenset[Place]:
        """Those whose time is up, whether they have connections or not."""
        waiting = self._since.get(server, {})
        return frozenset(
            place
            for place, since in waiting.items()
            if since is not None and now - since >= self._limit_seconds
        )
