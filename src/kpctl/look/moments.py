"""Moments as a person and as a program read them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def instant(seconds: float) -> datetime:
    """Return wall clock seconds as a moment, which encodes as RFC 3339."""
    return datetime.fromtimestamp(round(seconds, 3), UTC)


def moment(seconds: float | None) -> datetime | None:
    """The same, where there may be none."""
    return None if seconds is None else instant(seconds)


def duration_text(seconds: float) -> str:
    """Format as `3 d`, `5 h`, `7 min`, `12 s` or `40 ms`: the largest unit that holds one."""
    for size, name in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {name}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{max(seconds, 0) * 1000:.0f} ms"


def ago(at: datetime, now: datetime) -> str:
    """Format as `7 min ago`."""
    seconds = (now - at).total_seconds()
    return f"{duration_text(seconds)} ago" if seconds >= 1 else "just now"


def clock_text(at: datetime, now: datetime) -> str:
    """Format as `2026-05-04 12:00:01 UTC, 7 min ago`."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC, {ago(at, now)}"
