"""Durations: Go's syntax, and parse and format as a pair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.go.duration import Duration, format_duration, parse_duration

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("+5s", 5 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1.5s", SECOND + SECOND // 2),
        (".5s", SECOND // 2),
        ("1.s", SECOND),
        ("-1s", -SECOND),
        ("100ms", SECOND // 10),
        ("3us", 3000),
        ("3µs", 3000),
        ("3μs", 3000),
        ("7ns", 7),
        ("2540400h10m10.000000001s", 9145440610 * SECOND + 1),
        ("-9223372036854775808ns", -(1 << 63)),
    ],
)
def test_go_syntax_is_read(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == Duration(nanoseconds)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", 'time: invalid duration ""'),
        ("abc", 'time: invalid duration "abc"'),
        ("-", 'time: invalid duration "-"'),
        ('"é\\', r'time: invalid duration "\"\xc3\xa9\\"'),
        (".s", 'time: invalid duration ".s"'),
        ("5", 'time: missing unit in duration "5"'),
        ("1h5", 'time: missing unit in duration "1h5"'),
        ("5x", 'time: unknown unit "x" in duration "5x"'),
        ("5 s", 'time: unknown unit " s" in duration "5 s"'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
    ],
)
def test_errors_have_gos_words(text: str, error: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (SECOND, "1s"),
        (30 * SECOND, "30s"),
        (900 * SECOND, "15m0s"),
        (3600 * SECOND, "1h0m0s"),
        (86400 * SECOND, "24h0m0s"),
        (SECOND // 10, "100ms"),
        (SECOND * 3 // 2, "1.5s"),
        (1500, "1.5µs"),
        (-7, "-7ns"),
        (61 * SECOND + 1, "1m1.000000001s"),
    ],
)
def test_the_canonical_form_is_written(nanoseconds: int, text: str) -> None:
    assert format_duration(Duration(nanoseconds)) == text


@given(st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1))
def test_what_is_formatted_parses_back(nanoseconds: int) -> None:
    assert parse_duration(format_duration(Duration(nanoseconds))) == Duration(nanoseconds)


def test_seconds_and_truth() -> None:
    assert Duration.of_seconds(1.5).seconds == 1.5
    assert not Duration(0) and Duration(1)
    assert Duration(1) < Duration(2)
