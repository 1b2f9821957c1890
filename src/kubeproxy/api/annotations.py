"""The values of our annotations as text: parsed and formatted. Pure.

Each annotation has one `parse_` function, which raises `ValueError` with what is wrong and what is
possible, and one `format_` function: what is formatted parses back to the same value. Which
annotation is read from which object is left to `decode`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from kubeproxy.facts.address import parse_cidr, parse_ip
from kubeproxy.facts.policy import Algorithm, CheckKind, HealthCheck
from kubeproxy.go.duration import Duration, format_duration, parse_duration

Value = TypeVar("Value")

HEAVIEST = 256
LONGEST_SECONDS = 3600.0
"""The limit of intervals, time-outs and drain times."""
SHORTEST_INTERVAL = 0.1
"""An interval below it would be a load test."""
SHORTEST_TIMEOUT = 0.1
"""Checks are looked at twenty times per second: a shorter time would be over unseen."""
NO_CHECK = "none"
MOST_BYTES = 512
"""The limit of what a UDP check sends or expects."""
MOST_SOURCES = 1000
"""The limit of a list of sources: most modes have a rule for each."""
MOST_WEIGHTS = 2000
"""The limit of a list of weights: a slice has at most 1,000 endpoints."""
MOST_CHARACTERS = 4096
"""The limit of a check. Its path is sent to every endpoint, and kept while that is under way."""

_LONGEST_DURATION = 40
"""Twice as much as any duration needs."""
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")


def parse_algorithm(text: str) -> Algorithm:
    try:
        return Algorithm(text.strip())
    except ValueError:
        raise ValueError(f"{_short(text)} is none of {', '.join(Algorithm)}") from None


# --- weights ---


def parse_weights(text: str) -> Mapping[str, int]:
    """Weights by address (its canonical text) or by zone: what is no address is a zone."""
    if text.count(",") >= MOST_WEIGHTS:
        raise ValueError(f"{text.count(',') + 1} entries are more than {MOST_WEIGHTS}")
    weights: dict[str, int] = {}
    for entry in _listed(text):
        name, separator, number = entry.rpartition("=")
        parsed = parse_ip(name.strip())
        key = parsed[1] if parsed else name.strip()
        if not separator or not (parsed or _LABEL_VALUE.fullmatch(key)):
            raise ValueError(f"{_short(entry)} is not of the form ADDRESS=WEIGHT or ZONE=WEIGHT")
        if key in weights:
            raise ValueError(f"{_short(key)} is there twice")
        weights[key] = _whole_number(number, 0, HEAVIEST)
    return weights


def format_weights(weights: Mapping[str, int]) -> str:
    return ",".join(f"{name}={weight}" for name, weight in weights.items())


# --- sources ---


def readable_sources(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The networks that can be read, and what is wrong with the other entries.

    They are canonical, in order, each once; an address is a network of one. A list of sources is
    worth more with one entry missing than not at all (`api/policy`).
    """
    found: dict[str, None] = {}
    wrong: list[str] = []
    entries = text.split(",", MOST_SOURCES)
    for entry in (each.strip() for each in entries[:MOST_SOURCES]):
        network, address = parse_cidr(entry), parse_ip(entry)
        if network is not None:
            found[network[1]] = None
        elif address is not None:
            found[f"{address[1]}/{address[0].bits}"] = None
        else:
            wrong.append(f"{_short(entry)} is no address and no network like 192.0.2.0/24")
    if len(entries) > MOST_SOURCES:
        count = text.count(",") + 1
        wrong.append(f"{count} entries are more than {MOST_SOURCES}: those beyond are left out")
    return tuple(found), tuple(wrong)


def format_sources(cidrs: Sequence[str]) -> str:
    return ",".join(cidrs)


# --- draining ---


def parse_draining(text: str) -> float | None:
    """`keep` is None, `reset` is 0, and `drain limit=30s` the limit in seconds."""
    word, *words = text.split() or [""]
    if word == _DRAIN:
        if len(words) != 1 or not words[0].startswith(_LIMIT):
            raise ValueError(f"{_DRAIN} is not followed by a limit, as in: {_DRAIN} {_LIMIT}30s")
        limit = words[0].removeprefix(_LIMIT)
        return _of_word("limit", lambda value: _seconds(value, 1.0, LONGEST_SECONDS), limit)
    if word not in _WITHOUT_LIMIT or words:
        known = ", ".join((*_WITHOUT_LIMIT, f"{_DRAIN} {_LIMIT}30s"))
        raise ValueError(f"{_short(text.strip())} is none of {known}")
    return _WITHOUT_LIMIT[word]


def format_draining(drain_seconds: float | None) -> str:
    for word, value in _WITHOUT_LIMIT.items():
        if value == drain_seconds:
            return word
    return f"{_DRAIN} {_LIMIT}{_duration(drain_seconds or 0)}"


_WITHOUT_LIMIT: Mapping[str, float | None] = {"keep": None, "reset": 0.0}
_DRAIN = "drain"
_LIMIT = "limit="


# --- health checks ---


def parse_health_check(text: str) -> HealthCheck | None:
    """`tcp`, `udp`, `http /path` or `https /path`, then words of the form `key=value`.

    `none` is None: no check, also where a flag asks for one.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{len(text)} characters are more than {MOST_CHARACTERS}")
    kind_text, *words = text.split() or [""]
    if [kind_text, *words] == [NO_CHECK]:
        return None
    try:
        kind = CheckKind(kind_text)
    except ValueError:
        known = ", ".join((*CheckKind, NO_CHECK))
        raise ValueError(f"{_short(kind_text)} is none of {known}") from None
    check = HealthCheck(kind)
    if kind in (CheckKind.HTTP, CheckKind.HTTPS):
        if not words or not words[0].startswith("/"):
            raise ValueError(
                f"{kind.value} is not followed by a path, as in: {kind.value} /healthz"
            )
        check = replace(check, path=_printable(words.pop(0)))
    seen: set[str] = set()
    for word in words:
        key, _, value = word.partition("=")
        if key not in _WORDS or kind not in _WORDS[key][0]:
            possible = ", ".join(f"{name}=" for name, row in _WORDS.items() if kind in row[0])
            raise ValueError(f"{_short(word)} is none of {possible} of a {kind.value} check")
        if key in seen:
            raise ValueError(f"{key}= is there twice")
        seen.add(key)
        field, parse = _WORDS[key][1:]
        check = replace(check, **{field: _of_word(key, parse, value)})
    if check.timeout_seconds > check.interval_seconds:
        raise ValueError("timeout= is longer than interval=")
    return check


def _of_word(key: str, parse: Callable[[str], Value], value: str) -> Value:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{key}=: {error}") from None


def format_health_check(check: HealthCheck | None) -> str:
    """What differs from the default."""
    if check is None:
        return NO_CHECK
    words = [check.kind.value, check.path] if check.path else [check.kind.value]
    default = HealthCheck(check.kind)
    for key, (_, field, _parse) in _WORDS.items():
        value = getattr(check, field)
        if value != getattr(default, field):
            words.append(f"{key}={_FORMATS.get(key, str)(value)}")
    return " ".join(words)


def _host(text: str) -> str:
    if not text or len(text) > 253 or not re.fullmatch(r"[-_.:\[\]A-Za-z0-9]+", text):
        raise ValueError(f"{_short(text)} is no host name")
    return text


def _statuses(text: str) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for entry in text.split(","):
        first, separator, last = entry.partition("-")
        low = _whole_number(first, 100, 599)
        high = _whole_number(last, 100, 599) if separator else low
        if low > high:
            raise ValueError(f"{_short(entry)} ends before it begins")
        ranges.append((low, high))
    return tuple(ranges)


def _format_statuses(ranges: tuple[tuple[int, int], ...]) -> str:
    return ",".join(f"{low}-{high}" if low != high else str(low) for low, high in ranges)


def _payload(text: str) -> bytes:
    """Text as it is, or bytes in hexadecimal after `0x`."""
    if text.startswith("0x"):
        try:
            found = bytes.fromhex(text[2:])
        except ValueError:
            raise ValueError(f"{_short(text)} is not hexadecimal") from None
    else:
        found = text.encode()
    if not 0 < len(found) <= MOST_BYTES:
        raise ValueError(f"{len(found)} bytes are not within 1 to {MOST_BYTES}")
    return found


def _format_payload(payload: bytes) -> str:
    text = payload.decode("ascii", errors="replace")
    is_plain = text.isascii() and text.isprintable() and " " not in text
    return text if is_plain and not text.startswith("0x") else f"0x{payload.hex()}"


_ALL = frozenset(CheckKind)
_WEB = frozenset({CheckKind.HTTP, CheckKind.HTTPS})
_UDP = frozenset({CheckKind.UDP})

_WORDS: Mapping[str, tuple[frozenset[CheckKind], str, Callable[[str], object]]] = {
    "port": (_ALL, "port", lambda text: _whole_number(text, 1, 65535)),
    "host": (_WEB, "host", _host),
    "status": (_WEB, "statuses", _statuses),
    "interval": (
        _ALL,
        "interval_seconds",
        lambda text: _seconds(text, SHORTEST_INTERVAL, LONGEST_SECONDS),
    ),
    "timeout": (
        _ALL,
        "timeout_seconds",
        lambda text: _seconds(text, SHORTEST_TIMEOUT, LONGEST_SECONDS),
    ),
    "rise": (_ALL, "rise", lambda text: _whole_number(text, 1, 100)),
    "fall": (_ALL, "fall", lambda text: _whole_number(text, 1, 100)),
    "jitter": (
        _ALL,
        "jitter_percent",
        lambda text: _whole_number(text.removesuffix("%"), 0, 100),
    ),
    "send": (_UDP, "send", _payload),
    "expect": (_UDP, "expect", _payload),
}
"""The words of a check: for which kinds, which field, and how its value is parsed."""

_FORMATS: Mapping[str, Callable[..., str]] = {
    "status": _format_statuses,
    "interval": lambda seconds: _duration(seconds),
    "timeout": lambda seconds: _duration(seconds),
    "jitter": lambda percent: f"{percent}%",
    "send": _format_payload,
    "expect": _format_payload,
}


# --- shared ---


def _short(text: str) -> str:
    """Quote for a message, cut short: an annotation may hold 256 kB, a log line should not."""
    return repr(text[:80])


def _listed(text: str) -> list[str]:
    """The entries between commas. Raises ValueError if there is none, or one is empty."""
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise ValueError("an entry is empty")
    return entries


def _printable(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise ValueError(f"{_short(text)} has characters that must be percent-encoded")
    return text


def _whole_number(text: str, least: int, most: int) -> int:
    text = text.strip()
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
    if number is None or not least <= number <= most:
        raise ValueError(f"{_short(text)} is not a number within {least} to {most}")
    return number


def _seconds(text: str, least: float, most: float) -> float:
    if len(text) > _LONGEST_DURATION:  # Go's wording would repeat all of it
        raise ValueError(f"{_short(text)} is too long for a duration")
    seconds = parse_duration(text).seconds
    if not least <= seconds <= most:
        span = f"{_duration(least)} to {_duration(most)}"
        raise ValueError(f"{_short(text)} is not within {span}")
    return seconds


def _duration(seconds: float) -> str:
    return format_duration(Duration.of_seconds(seconds))
