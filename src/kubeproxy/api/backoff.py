"""How long to wait before a retry. Pure: time and randomness are arguments."""

from __future__ import annotations

import msgspec


class BackoffPolicy(msgspec.Struct, frozen=True, gc=False):
    """Waits grow by `factor` up to `cap_seconds`, each plus up to `jitter` of itself.

    After `reset_seconds` without a failure they start from `initial_seconds` again.
    """

    initial_seconds: float = 0.8
    cap_seconds: float = 30.0
    factor: float = 2.0
    jitter: float = 1.0
    reset_seconds: float = 120.0


class Backoff:
    """One series of failures."""

    def __init__(self, policy: BackoffPolicy) -> None:
        self._policy = policy
        self._next = policy.initial_seconds
        self._failed_at: float | None = None

    def fail(self, now: float, random: float) -> float:
        """Record a failure. Return the seconds to wait. `random` is from 0 to 1."""
        policy = self._policy
        if self._failed_at is not None and now - self._failed_at > policy.reset_seconds:
            self._next = policy.initial_seconds
        self._failed_at = now
        base, self._next = self._next, min(self._next * policy.factor, policy.cap_seconds)
        return base * (1 + policy.jitter * random)
