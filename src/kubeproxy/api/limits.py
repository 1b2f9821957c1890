"""The client's own speed limit: a token bucket, with time as an argument.

One bucket is shared by everything that talks to the API server, so that a proxy in trouble does
not become trouble for the server.
"""

from __future__ import annotations

DEFAULT_QPS = 5.0
DEFAULT_BURST = 10


class TokenBucket:
    """`qps` requests per second on average, `burst` at once; a negative `qps` means no limit.

    Zero means the default, like in Kubernetes' own clients.
    """

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps or DEFAULT_QPS
        self._burst = burst or DEFAULT_BURST
        self._tokens = float(self._burst)
        self._updated: float | None = None

    def reserve(self, now: float) -> float:
        """Take a token; the seconds to wait before using it. Waiters queue in order of asking."""
        if self._qps < 0:
            return 0.0
        if self._updated is not None:
            gained = max(0.0, now - self._updated) * self._qps
            self._tokens = min(float(self._burst), self._tokens + gained)
        self._updated = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)
