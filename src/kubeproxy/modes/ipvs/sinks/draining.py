"""Real servers that are draining: kept at weight 0 until their connections have ended. Pure.

A removed TCP endpoint may still be finishing its connections, so it is only excluded from new
scheduling, and deleted once it is idle. There is a limit: a connection that is never closed must
not keep it for ever. A Service may have a shorter one (`plan.draining`), which holds for other
protocols as well. Connections of a deleted real server end, as `expire_nodest_conn` is set. Time is
an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kubeproxy.modes.ipvs.items import Place, VirtualServer
from kubeproxy.plan.draining import Deadlines

PASS_SECONDS = 60.0
"""The interval at which draining real servers are checked for connections."""

CUT_AFTER_SECONDS = 1.0
"""How long after a Service's own limit a real server is deleted. Conntrack's entries go with it,
and by these the sockets of this node are found that are to be closed (`sync.flows`)."""


class Draining:
    """Which real servers are draining, and since when."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        # None until it is next looked at: a sink that applies a batch has no clock.
        self._since: dict[VirtualServer, dict[Place, float | None]] = {}
        self._added: set[VirtualServer] = set()
        self._next_pass = 0.0
        self.limits: dict[VirtualServer, float] = {}
        """Of virtual servers whose Service has a limit of its own."""
        # When such a limit is up. The others are looked at in a pass.
        self._deadlines = Deadlines[VirtualServer]()

    def __len__(self) -> int:
        return sum(map(len, self._since.values()))

    def places(self, server: VirtualServer) -> Collection[Place]:
        return self._since.get(server, {}).keys()

    def add(self, server: VirtualServer, places: Iterable[Place]) -> None:
        """Record that these drain; those that already do keep their time."""
        waiting = self._since.setdefault(server, {})
        for place in places:
            waiting.setdefault(place, None)
        if not waiting:
            del self._since[server]
        self._added.add(server)

    def discard(self, server: VirtualServer, places: Iterable[Place]) -> None:
        """Record that these no longer drain: they are wanted again, or gone."""
        waiting = self._since.get(server)
        if waiting is None:
            return
        for place in places:
            waiting.pop(place, None)
        if not waiting:
            del self._since[server]
        self._set_deadline(server)

    def forget(self, server: VirtualServer) -> None:
        """Record that the virtual server is gone, and its real servers with it."""
        self._since.pop(server, None)
        self.limits.pop(server, None)
        self._deadlines.discard(server)

    def set_limit(self, server: VirtualServer, limit_seconds: float | None) -> None:
        """Real servers of this one drain so long from now on; None is as long as all others."""
        if limit_seconds is None:
            self.limits.pop(server, None)
        else:
            self.limits[server] = limit_seconds
        self._set_deadline(server)

    def _set_deadline(self, server: VirtualServer) -> None:
        known = [since for since in self._since.get(server, {}).values() if since is not None]
        if known and server in self.limits:
            self._deadlines.set(server, min(known) + self._limit(server))
        else:
            self._deadlines.discard(server)

    def take_due(self, now: float) -> tuple[VirtualServer, ...]:
        """The virtual servers to look at: all in a pass, else those where a time is up."""
        for server in self._added:
            waiting = self._since.get(server, {})
            waiting |= {place: now for place, since in waiting.items() if since is None}
            self._set_deadline(server)
        self._added.clear()
        if self._since and now >= self._next_pass:
            self._next_pass = now + PASS_SECONDS
            return tuple(self._since)
        due = self._deadlines.take(now)
        for server in due:
            self._set_deadline(server)  # until its real servers are gone: the kernel may refuse
        return tuple(due)

    def seconds_left(self, now: float) -> float | None:
        """Seconds until something is due; None while no real server drains."""
        if not self._since:
            return None
        return max(min(self._deadlines.first(), self._next_pass) - now, 0.0)

    def _limit(self, server: VirtualServer) -> float:
        own = self.limits.get(server)
        return self._limit_seconds if own is None else own + CUT_AFTER_SECONDS

    def expired(self, server: VirtualServer, now: float) -> frozenset[Place]:
        """Those whose time is up, whether they have connections or not."""
        limit = self._limit(server)
        return frozenset(
            place
            for place, since in self._since.get(server, {}).items()
            if since is not None and since + limit <= now
        )
