"""What happens to open connections when an endpoint goes. Pure.

By default TCP connections are kept until they end by themselves, and UDP flows move as soon as
their endpoint serves no more, both as upstream has it. A Service may limit that by annotation:

    reset          an endpoint keeps its connections as long as it serves or is ready, also without
                   taking new ones (terminating, weight 0); when it is gone, neither of both or
                   fails its check, they are reset at once
    drain limit=   an endpoint that takes no new connections, for whatever reason, keeps those it
                   has until the limit; then they are reset

Which endpoints may keep connections is decided here; what time it is, elsewhere (`Leaving` and
`Deadlines` are the memory for that).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Protocol
from kubeproxy.facts.service import ServiceFacts

NOT_DRAINED = "draining is not possible for"
"""Marks the note about that."""

_Left = TypeVar("_Left")
_Waiting = TypeVar("_Waiting")

_MOST_OUTDATED = 64
"""Entries of a heap that may be outdated, whatever it holds."""


def drain_seconds_of(service: ServiceFacts, protocol: Protocol) -> float | None:
    """How long connections to an endpoint that goes may go on; None is the default."""
    if protocol is Protocol.SCTP:
        return None
    return service.policy.drain_seconds if service.policy else None


def draining_notes(service: ServiceFacts, protocol: Protocol) -> tuple[str, ...]:
    """What cannot be done of what the Service asks for."""
    if protocol is not Protocol.SCTP or service.policy is None:
        return ()
    if service.policy.drain_seconds is None:
        return ()
    # Nothing would end an association at once: packets of an unknown one are invalid to the
    # kernel's connection tracking, and sockets of SCTP cannot be closed from outside.
    return (f"{NOT_DRAINED} SCTP: open associations are kept",)


def flow_endpoints(
    protocol: Protocol,
    drain_seconds: float | None,
    endpoints: tuple[Endpoint, ...],
    taking: Iterable[Endpoint],
    failing: Mapping[str, str],
) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
    """Return the endpoints that keep their flows, and all that exist if none of UDP serves.

    `taking` are those that may get new connections, whatever traffic policies make of them. Without
    an annotation only UDP flows are ever cut: TCP peers notice a dead endpoint by themselves.
    """
    if drain_seconds is None and protocol is not Protocol.UDP:
        return (), ()
    if drain_seconds:
        taken = {id(endpoint) for endpoint in taking}
        return tuple(e for e in endpoints if id(e) in taken), ()
    is_asked = drain_seconds is not None
    # An endpoint that is ready without serving is published before its pod is ready. It is in the
    # pool, so its connections go on; upstream deletes UDP flows to it all the same.
    serving = tuple(
        e
        for e in endpoints
        if (e.is_serving or (is_asked and e.is_ready)) and e.text not in failing
    )
    return serving, () if serving or is_asked else endpoints


class Leaving(Generic[_Left]):
    """What is about to go, and since when. Time is an argument."""

    def __init__(self) -> None:
        self._since: dict[_Left, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, one: _Left) -> bool:
        return one in self._since

    def add(self, those: Iterable[_Left], now: float) -> None:
        """These go from now on; those that already do keep their time."""
        for one in those:
            self._since.setdefault(one, now)

    def discard(self, those: Iterable[_Left]) -> None:
        """These no longer go: they are back, or gone."""
        for one in those:
            self._since.pop(one, None)

    def expired(self, limit_seconds: float, now: float) -> frozenset[_Left]:
        """Those whose time is up."""
        return frozenset(o for o, since in self._since.items() if since + limit_seconds <= now)

    def left(self, limit_seconds: float, now: float) -> frozenset[_Left]:
        """Those that have time left."""
        return frozenset(self._since) - self.expired(limit_seconds, now)

    def next_due(self, limit_seconds: float) -> float:
        """When the next one's time is up; infinite if nothing goes."""
        return min(self._since.values(), default=float("inf")) + limit_seconds


class Deadlines(Generic[_Waiting]):
    """The first of many times, each of which may change. Nothing walks over all of them.

    A heap in which outdated entries stay until they come first, or are too many.
    """

    def __init__(self) -> None:
        # The number tells which entry is valid, and keeps the heap from comparing what waits.
        self._heap: list[tuple[float, int, _Waiting]] = []
        self._valid: dict[_Waiting, int] = {}
        self._number = 0

    def set(self, one: _Waiting, at: float) -> None:
        """This one's time is up then, and no more when it was before."""
        self._number += 1
        self._valid[one] = self._number
        heappush(self._heap, (at, self._number, one))
        if len(self._heap) > 2 * len(self._valid) + _MOST_OUTDATED:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapify(self._heap)

    def discard(self, one: _Waiting) -> None:
        """This one waits no more."""
        self._valid.pop(one, None)

    def first(self) -> float:
        """When the next time is up; infinite if nothing waits."""
        while self._heap and not self._is_valid(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def take(self, now: float) -> list[_Waiting]:
        """Those whose time is up, in its order. They wait no more."""
        taken: list[_Waiting] = []
        while self.first() <= now:
            _, _, one = heappop(self._heap)
            del self._valid[one]
            taken.append(one)
        return taken

    def _is_valid(self, entry: tuple[float, int, _Waiting]) -> bool:
        return self._valid.get(entry[2]) == entry[1]
