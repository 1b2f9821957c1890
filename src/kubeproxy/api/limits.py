"""The client's rate limit: a token bucket, with time as an argument.

One bucket is shared by everything that sends requests to the API server, so that a proxy that
fails and retries does not overload the server.
"""

from __future__ import annotations

DEFAULT_QPS = 5.0
DEFAULT_BURST = 10


class TokenBucket:
    """Allows `qps` requests per second on average and `burst` at once.

    As in Kubernetes' own clients, a negative `qps` means no limit and zero means the default.
    """

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps or DEFAULT_QPS
        self._burst = burst or DEFAULT_BURST
        self._tokens = float(self._burst)
        self._updated: float | None = None

    def reserve(self, now: float) -> float:
        """Take a token, in the order of calls. Return the seconds to wait before using it."""
        if self._qps < 0:
            return 0.0
        if self._updated is not None:
            gained = max(0.0, now - self._updated) * self._qps
            self._tokens = min(float(self._burst), self._tokens + gained)
        self._updated = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)
