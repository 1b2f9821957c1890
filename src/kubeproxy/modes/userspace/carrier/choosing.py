"""Which endpoint of one listener is next, by the algorithm that its Service asks for.

State without I/O: shuffling and drawing are arguments. Promises: each endpoint gets the share of
its weight; with a hash a client meets the same endpoint on every node and after every restart; an
endpoint that may not be used is replaced by the next in the algorithm's own order. Leaves to
others: which endpoints may not be used, and affinity (`balance`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Generic, TypeVar

from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.policy import Algorithm
from kubeproxy.plan.slots import consistent_slots, repeated_slots, rotating_slots

T = TypeVar("T", bound=tuple[str, int])
"""What stands for an endpoint: its address and port."""

Draw = Callable[[int], int]
"""A random number below its argument."""

_HASHES = frozenset({Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH})


class Chooser(Generic[T]):
    """Endpoints in slots, and how one of them is chosen. In turn, unless something else is asked.

    New endpoints are shuffled, so that the proxies of many nodes do not all begin with the same
    one; not for hashes, with which all nodes should choose alike.
    """

    def __init__(self, shuffle: Callable[[list[T]], None], draw: Draw) -> None:
        self._shuffle = shuffle
        self._draw = draw
        self._algorithm: Algorithm | None = None
        self._weights: Mapping[T, int] = {}
        self._slots: list[T] = []
        self._next = 0
        self._open: dict[T, int] = {}

    def update(
        self,
        targets: tuple[T, ...],
        algorithm: Algorithm | None = None,
        weights: tuple[int, ...] = (),
    ) -> bool:
        """Choose among these from now on. Return whether that changes anything."""
        held = dict(zip(targets, weights or (1,) * len(targets), strict=True))
        if held == self._weights and algorithm is self._algorithm:
            return False
        self._algorithm = algorithm
        self._weights = held
        self._slots = self._filled(list(targets))
        self._next = 0
        return True

    def _filled(self, targets: list[T]) -> list[T]:
        if self._algorithm is Algorithm.LEAST_CONNECTIONS:
            return targets
        if self._algorithm not in _HASHES:
            self._shuffle(targets)
        weights = [self._weights[target] for target in targets]
        match self._algorithm:
            case Algorithm.CONSISTENT_HASH if len(targets) > 1:
                slots = consistent_slots([join_host_port(*target) for target in targets], weights)
            case None | Algorithm.ROUND_ROBIN:
                slots = rotating_slots(weights)
            case _:
                slots = repeated_slots(weights)
        return [targets[index] for index in slots]

    def began(self, target: T) -> None:
        """Count a connection that is open, or about to be."""
        self._open[target] = self._open.get(target, 0) + 1

    def ended(self, target: T) -> None:
        left = self._open.get(target, 0) - 1
        if left > 0:
            self._open[target] = left
        else:
            self._open.pop(target, None)

    def choose(self, client: str, is_usable: Callable[[T], bool] | None = None) -> T | None:
        """The endpoint for a client's next connection; None if there is none at all.

        If none is usable, the first in order is chosen.
        """
        slots = self._slots
        if not slots:
            return None
        first = None
        for index in self._order(client, needs_all=is_usable is not None):
            first = index if first is None else first
            if is_usable is None or is_usable(slots[index]):
                break
        else:
            index = first or 0
        self._next = (index + 1) % len(slots)
        return slots[index]

    def _order(self, client: str, *, needs_all: bool) -> Iterable[int]:
        """Slots, the preferred one first."""
        count = len(self._slots)
        match self._algorithm:
            case Algorithm.LEAST_CONNECTIONS:
                return self._by_load()
            case Algorithm.RANDOM if needs_all:
                # Not simply the next one: it would get the whole share of an unusable one.
                return (self._draw(count) for _ in range(4 * count))
            case Algorithm.RANDOM:
                start = self._draw(count)
            case Algorithm.SOURCE_HASH | Algorithm.CONSISTENT_HASH:
                start = _hash(client) % count
            case _:
                start = self._next
        return (place % count for place in range(start, start + count))

    def _by_load(self) -> list[int]:
        """Least loaded for its weight first; of equal ones the next in turn."""
        count = len(self._slots)
        turn = [place % count for place in range(self._next, self._next + count)]
        return sorted(turn, key=self._load)

    def _load(self, index: int) -> float:
        target = self._slots[index]
        return (self._open.get(target, 0) + 1) / self._weights[target]


def _hash(client: str) -> int:
    return int.from_bytes(blake2b(client.encode(), digest_size=8).digest(), "big")
