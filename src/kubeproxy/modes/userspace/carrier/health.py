"""Which endpoints of one listener did not answer lately.

Why: round robin comes back to a silent endpoint again and again, and each time a connection waits a
quarter of a second for nothing. State without I/O: time is an argument. Promises: an endpoint that
failed is avoided for 10 s, then tried by one connection, and avoided twice as long each time that
fails, up to 60 s; an answer clears it at once; there is at most one record per endpoint. Leaves to
others: what to do when every endpoint is avoided (`balance`: then all are tried).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)
"""What stands for an endpoint."""

FIRST_SECONDS = 10.0
LONGEST_SECONDS = 60.0
TRIAL_SECONDS = 5.0
"""How long the outcome of a trial is awaited; longer than all attempts of one connection take."""


class _Failure(NamedTuple):
    avoid_until: float
    seconds: float
    is_on_trial: bool = False


class EndpointHealth(Generic[T]):
    """Failures of endpoints, as connections report them.

    (no record) ──failed──▶ avoided ──time is over, picked──▶ on trial ──failed──▶ avoided twice
         ▲                                                       │                   as long
         └──────────────────────── answered ─────────────────────┘
    """

    def __init__(self) -> None:
        self._failures: dict[T, _Failure] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def keep(self, targets: Collection[T]) -> None:
        """Forget endpoints that are not among these: one that comes back has a fresh start."""
        self._failures = {t: found for t, found in self._failures.items() if t in targets}

    def is_avoided(self, target: T, now: float) -> bool:
        found = self._failures.get(target)
        return found is not None and now < found.avoid_until

    def picked(self, target: T, now: float) -> None:
        """Let one connection try an endpoint whose time is over; the others go on avoiding it."""
        found = self._failures.get(target)
        if found is not None and now >= found.avoid_until:
            self._failures[target] = _Failure(now + TRIAL_SECONDS, found.seconds, is_on_trial=True)

    def failed(self, target: T, now: float) -> None:
        """Avoid an endpoint from now on."""
        found = self._failures.get(target)
        if found is None:
            seconds = FIRST_SECONDS
        elif now < found.avoid_until and not found.is_on_trial:
            # An attempt that began before the endpoint was avoided, or one made because all are:
            # it says nothing that is not known.
            return
        else:
            seconds = min(found.seconds * 2, LONGEST_SECONDS)
        self._failures[target] = _Failure(now + seconds, seconds)

    def answered(self, target: T) -> None:
        if self._failures:
            self._failures.pop(target, None)
