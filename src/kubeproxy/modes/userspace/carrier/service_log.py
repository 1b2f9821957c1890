"""Log messages about services, limited in rate: traffic must not be able to fill the log."""

from __future__ import annotations

from collections.abc import Callable


class ServiceLog:
    """Logs a message per service and kind at most once per interval.

    The next message after the interval has the number of suppressed ones.
    """

    def __init__(self, write: Callable[[str, str], None], every_seconds: float = 10.0) -> None:
        self._write = write
        self._every_seconds = every_seconds
        self._written: dict[tuple[str, str], tuple[float, int]] = {}

    def log(self, service: str, kind: str, detail: str, now: float) -> None:
        """Log `kind` with `detail`. Messages of one kind count as repeats whatever the detail."""
        written_at, suppressed = self._written.get((service, kind), (float("-inf"), 0))
        if now - written_at < self._every_seconds:
            self._written[service, kind] = (written_at, suppressed + 1)
            return
        self._written[service, kind] = (now, 0)
        more = f" (and {suppressed} times more before)" if suppressed else ""
        self._write(f"{kind}: {detail}{more}", service)

    def forget(self, service: str) -> None:
        """Drop the records of a service that no longer exists."""
        for key in [key for key in self._written if key[0] == service]:
            del self._written[key]
