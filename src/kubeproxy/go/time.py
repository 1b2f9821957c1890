"""Times as Go prints them in JSON, in HTTP headers and on status pages.

Times are nanoseconds since 1970, as `time.time_ns` returns them, so that nothing is lost to
floating point. Pure: reading a clock is left to the caller. Durations are in `duration`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

NANO = 1_000_000_000
ZERO_TIME = "0001-01-01T00:00:00Z"
"""How Go prints a time that was never set."""


def format_rfc3339_nano(unix_ns: int, offset_seconds: int = 0) -> str:
    """Format as RFC 3339 with up to nine fractional digits, without trailing zeros."""
    fraction = f"{unix_ns % NANO:09d}".rstrip("0")
    return (
        _seconds(unix_ns, offset_seconds)
        + (f".{fraction}" if fraction else "")
        + _zone(offset_seconds)
    )


def format_rfc3339_micro(unix_ns: int) -> str:
    """Format as Kubernetes' MicroTime: UTC with exactly six fractional digits."""
    return f"{_seconds(unix_ns, 0)}.{unix_ns % NANO // 1000:06d}Z"


def format_rfc3339(unix_ns: int) -> str:
    """Format as Kubernetes' Time: UTC, whole seconds."""
    return _seconds(unix_ns, 0) + "Z"


def format_unix_date(unix_ns: int) -> str:
    """Format as Go's time.UnixDate, in UTC: `Sun Nov 15 18:22:05 UTC 2026`.

    The day of the month is padded with a blank.
    """
    moment = datetime.fromtimestamp(unix_ns // NANO, UTC)
    day, month = _DAYS[moment.weekday()], _MONTHS[moment.month - 1]
    return f"{day} {month} {moment.day:2d} {moment:%H:%M:%S} UTC {moment.year}"


def format_uptime(seconds: int) -> str:
    """Format the seconds since a start as `/statusz` does: `0 hr 00 min 15 sec`."""
    return f"{seconds // 3600} hr {seconds // 60 % 60:02d} min {seconds % 60:02d} sec"


def format_http_date(unix_ns: int) -> str:
    """Format the Date header of HTTP."""
    moment = datetime.fromtimestamp(unix_ns // NANO, UTC)
    day, month = _DAYS[moment.weekday()], _MONTHS[moment.month - 1]
    return f"{day}, {moment.day:02d} {month} {moment:%Y %H:%M:%S} GMT"


# strftime's names follow the locale; these do not.
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip


def _seconds(unix_ns: int, offset_seconds: int) -> str:
    zone = timezone(timedelta(seconds=offset_seconds))
    return f"{datetime.fromtimestamp(unix_ns // NANO, zone):%Y-%m-%dT%H:%M:%S}"


def _zone(offset_seconds: int) -> str:
    if offset_seconds == 0:
        return "Z"
    hours, minutes = divmod(abs(offset_seconds) // 60, 60)
    return f"{'-' if offset_seconds < 0 else '+'}{hours:02d}:{minutes:02d}"
