"""Owners that the kernel refuses: held back, and tried again after a growing pause. Pure.

A refused owner must not be sent again with every event of others: its batch would be refused and
halved each time. It is held back until its pause is over or until it wants something else. Time is
an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from kubeproxy.modes.base import AnyFragment, Owner

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 300.0


class _Refused(Struct):
    """One owner: what it wanted, how often that was refused, and when it is tried again."""

    wanted: AnyFragment
    times: int
    retry_at: float
    reason: str


class RefusedOwners:
    """Who is held back, and until when. None stands for items that have no owner any more."""

    def __init__(self, wanted: Callable[[Owner | None], AnyFragment]) -> None:
        """`wanted` returns what an owner wants now: the same object as long as it is the same."""
        self._wanted = wanted
        self._refused: dict[Owner | None, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def owners(self) -> Collection[Owner | None]:
        """All owners whose last attempt was refused."""
        return self._refused.keys()

    def reasons(self) -> Iterator[tuple[Owner | None, str]]:
        """All owners whose last attempt was refused, each with the reason."""
        return ((owner, held.reason) for owner, held in self._refused.items())

    def add(self, owner: Owner | None, now: float, reason: str) -> None:
        """Record a refusal; each one in a row doubles the pause."""
        wanted, held = self._wanted(owner), self._refused.get(owner)
        times = held.times + 1 if held is not None and held.wanted is wanted else 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(times - 1, 10), LONGEST_PAUSE_SECONDS)
        self._refused[owner] = _Refused(wanted, times, now + pause, reason)

    def keep(self, owners: Collection[Owner | None]) -> None:
        """Forget all but these: the others have nothing that waits to be programmed."""
        for owner in self._refused.keys() - owners:
            del self._refused[owner]

    def held_back(self, now: float) -> Collection[Owner | None]:
        """The owners that want what was refused, and whose pause is not over."""
        return {
            owner
            for owner, held in self._refused.items()
            if held.retry_at > now and held.wanted is self._wanted(owner)
        }

    def next_retry(self) -> float:
        """The time at which the next one is tried again; infinite if there is none."""
        return min((held.retry_at for held in self._refused.values()), default=float("inf"))
