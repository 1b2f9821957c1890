"""Durations as operators write them: `1h30m`, `100ms`, `0s`.

Flags, the configuration file and log lines all use this one syntax (Go's), so that a value copied
from one place is accepted in another. `parse_duration` and `format_duration` are a pair: what
is formatted parses back to the same number of nanoseconds. Whether a duration makes sense where it
stands (negative, too long) is left to validation.
"""

from __future__ import annotations

import re
from typing import Self

import msgspec

from kubeproxy.go.text import parse_digits

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, the micro sign
    "μs": 1_000,  # U+03BC, the Greek letter
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_LIMIT = 1 << 63
_TERM = re.compile(r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<unit>[^0-9.]*)")


class Duration(msgspec.Struct, frozen=True, order=True, gc=False):
    """A span of time in whole nanoseconds. It may be negative until it is validated."""

    nanoseconds: int = 0

    @classmethod
    def of_seconds(cls, seconds: float) -> Self:
        return cls(round(seconds * 1_000_000_000))

    @property
    def seconds(self) -> float:
        return self.nanoseconds / 1_000_000_000

    def __bool__(self) -> bool:
        return self.nanoseconds != 0

    def __str__(self) -> str:
        return format_duration(self)


def parse_duration(text: str) -> Duration:
    """Parse a duration. Raises ValueError with Go's wording."""
    sign = -1 if text.startswith("-") else 1
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return Duration(0)
    if not body:
        raise ValueError(f"time: invalid duration {_quote(text)}")
    total = sign * _sum_terms(text, body)
    if not -_LIMIT <= total < _LIMIT:
        raise ValueError(f"time: invalid duration {_quote(text)}")
    return Duration(total)


def _sum_terms(text: str, body: str) -> int:
    total = 0
    position = 0
    while position < len(body):
        term = _TERM.match(body, position)
        if term is None or not (term["whole"] or term["fraction"]):
            raise ValueError(f"time: invalid duration {_quote(text)}")
        total += _term_nanoseconds(text, term)
        position = term.end()
    return total


def _term_nanoseconds(text: str, term: re.Match[str]) -> int:
    unit = term["unit"]
    if not unit:
        raise ValueError(f"time: missing unit in duration {_quote(text)}")
    scale = _NANOSECONDS.get(unit)
    if scale is None:
        raise ValueError(f"time: unknown unit {_quote(unit)} in duration {_quote(text)}")
    return parse_digits(term["whole"]) * scale + _fraction(term["fraction"] or "", scale)


def _fraction(digits: str, unit: int) -> int:
    """Return the nanoseconds of a fraction, rounded as Go rounds: in floating point.

    Digits after those that fit an int64 do not count.
    """
    value, scale = 0, 1.0
    for digit in digits:
        if value * 10 + int(digit) > _LIMIT:
            break
        value = value * 10 + int(digit)
        scale *= 10
    return int(float(value) * (float(unit) / scale))


def _quote(text: str) -> str:
    """Quote as Go's time package does, by a rule of its own: it escapes bytes, not characters."""
    return '"' + "".join(map(_quote_byte, text.encode(errors="surrogateescape"))) + '"'


def _quote_byte(byte: int) -> str:
    char = chr(byte)
    if not 0x20 <= byte < 0x80:
        return f"\\x{byte:02x}"
    return f"\\{char}" if char in '"\\' else char


def format_duration(duration: Duration) -> str:
    """Format in Go's canonical form: `1h0m0s`, `1.5s`, `100ms`, `0s`."""
    nanoseconds = abs(duration.nanoseconds)
    sign = "-" if duration.nanoseconds < 0 else ""
    if nanoseconds < 1_000_000_000:
        return sign + _format_below_a_second(nanoseconds)
    minutes, rest = divmod(nanoseconds, 60_000_000_000)
    seconds = _format_decimal(rest, 1_000_000_000) + "s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else sign + seconds


def _format_below_a_second(nanoseconds: int) -> str:
    if nanoseconds == 0:
        return "0s"
    for unit in ("ms", "µs"):
        if nanoseconds >= _NANOSECONDS[unit]:
            return _format_decimal(nanoseconds, _NANOSECONDS[unit]) + unit
    return f"{nanoseconds}ns"


def _format_decimal(value: int, scale: int) -> str:
    whole, fraction = divmod(value, scale)
    if not fraction:
        return str(whole)
    digits = str(fraction).rjust(len(str(scale)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}"
