"""Log lines as log pipelines parse them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from enum import Enum

import pytest

from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.logs.entry import Entry, Severity, format_json, format_text

MOMENT = 1794774605.25  # 2026-11-15 20:30:05.25 UTC


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def entry(message: str = "hello", **values: object) -> Entry:
    return Entry(
        message=message, values=values, caller="config/load.py:12", timestamp=MOMENT, process=1234
    )


def text_value(value: object) -> str:
    return format_text(entry(key=value)).partition('"hello" key=')[2].removesuffix("\n")


def test_a_text_line() -> None:
    assert format_text(entry("Set sysctl", name="a/b", value=1)) == (
        'I1115 20:30:05.250000    1234 load.py:12] "Set sysctl" name="a/b" value=1\n'
    )


@pytest.mark.parametrize("severity", Severity)
def test_the_first_letter_is_the_severity(severity: Severity) -> None:
    line = format_text(Entry(message="m", severity=severity))
    assert line[0] == severity.value


def test_the_error_comes_first() -> None:
    line = format_text(Entry(message="m", severity=Severity.ERROR, error="bad", values={"a": 1}))
    assert line.endswith('] "m" err="bad" a=1\n')


def test_an_unstructured_message_is_printed_as_it_is() -> None:
    line = format_text(Entry(message='FLAG: --v="1"', is_structured=False))
    assert line.endswith('] FLAG: --v="1"\n')


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", '"x"'),
        ('a"b', r'"a\"b"'),
        (True, "true"),
        (5, "5"),
        (1.5, "1.5"),
        (None, "null"),
        (["a", 1], '["a",1]'),
        (("a",), '["a"]'),
        ({"a": 1}, '{"a":1}'),
        (Family.IPV4, '"IPv4"'),
        (Colour.RED, '"red"'),
        (ServiceName("ns", "n"), '"ns/n"'),
        (ValueError("bad"), '"bad"'),
        ([ServiceName("ns", "n")], '[["ns","n"]]'),
    ],
)
def test_values_in_text(value: object, text: str) -> None:
    assert text_value(value) == text


@pytest.mark.parametrize("ending", ["", "\n"])
def test_several_lines_are_indented(ending: str) -> None:
    assert text_value(f"one\ntwo{ending}") == "<\n\tone\n\ttwo\n >"


def test_a_json_line() -> None:
    line = format_json(entry("hello", service=ServiceName("ns", "n"), count=2))
    assert line.endswith("}\n") and line.count("\n") == 1
    assert json.loads(line) == {
        "ts": 1794774605250.0,
        "caller": "config/load.py:12",
        "msg": "hello",
        "v": 0,
        "service": "ns/n",
        "count": 2,
    }


def test_a_json_error_has_no_verbosity() -> None:
    line = json.loads(format_json(Entry(message="m", severity=Severity.ERROR, error="bad")))
    assert line["err"] == "bad" and "v" not in line


def test_keys_of_json_come_in_order() -> None:
    line = format_json(Entry(message="m", severity=Severity.ERROR, error="bad", values={"a": 1}))
    assert list(json.loads(line)) == ["ts", "caller", "msg", "err", "a"]


def test_no_text_reaches_a_terminal_as_a_command() -> None:
    """A value of several lines, or a library's message, is not quoted but still harmless."""
    assert text_value("a\n\x1b[2Jb\r\x9b") == "<\n\ta\n\t\\x1b[2Jb\\r\\u009b\n >"
    line = format_text(Entry(message="a\tb\n\x1bc", is_structured=False))
    assert line.endswith("] a\tb\n\t\\x1bc\n")


@pytest.mark.parametrize("formatter", [format_text, format_json])
@pytest.mark.parametrize("value", ["x\udcff", "x\n\udcff", ["x\udcff"], {"x\udcff": ["x\udcff"]}])
def test_bytes_that_are_no_text_lose_no_line(
    value: object, formatter: Callable[[Entry], str]
) -> None:
    """As in the name of a file. Otherwise the line cannot be written at all."""
    line = formatter(entry("hello", file=value))
    assert "hello" in line and "x" in line and line.encode()
