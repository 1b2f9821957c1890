"""One log message as a value, and its two formats: klog's text line and a JSON line.

Operators and log pipelines parse these lines, so the formats are upstream's: the header, the order
of keys and the quoting. Time, process and caller are fields of the entry. Writing lines is left to
`handler`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from enum import Enum

import msgspec

from kubeproxy.go.quoting import harmless, printable_json, quote

_NO_CHARACTERS = re.compile("[\ud800-\udfff]")


class Severity(Enum):
    """The letter a text line starts with."""

    INFO = "I"
    WARNING = "W"
    ERROR = "E"
    FATAL = "F"

    @property
    def is_error(self) -> bool:
        return self in (Severity.ERROR, Severity.FATAL)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one line."""

    message: str
    severity: Severity = Severity.INFO
    values: Mapping[str, object] = msgspec.field(default_factory=dict)
    error: str | None = None
    verbosity: int = 0
    is_structured: bool = True
    """Quote the message and follow it with pairs? Otherwise the message is printed as it is."""
    caller: str = "unknown:0"
    """`dir/file.py:line`, of which the text format shows only the file."""
    timestamp: float = 0.0
    process: int = 0


def format_text(entry: Entry) -> str:
    """Format as `I1115 20:30:00.000000    1234 app.py:12] "message" key="value"` and a newline."""
    moment = time.localtime(entry.timestamp)
    micros = int(entry.timestamp % 1 * 1_000_000)
    header = (
        f"{entry.severity.value}{moment.tm_mon:02d}{moment.tm_mday:02d} "
        f"{moment.tm_hour:02d}:{moment.tm_min:02d}:{moment.tm_sec:02d}.{micros:06d} "
        f"{entry.process:7d} {entry.caller.rpartition('/')[2]}] "
    )
    if not entry.is_structured:
        # Other lines than the first must not look like one of ours.
        return f"{header}{harmless(entry.message)}".replace("\n", "\n\t") + "\n"
    pairs = "".join(f" {key}={_text_value(value)}" for key, value in _pairs(entry).items())
    return f"{header}{quote(entry.message)}{pairs}\n"


def _pairs(entry: Entry) -> Mapping[str, object]:
    return entry.values if entry.error is None else {"err": entry.error, **entry.values}


def _text_value(value: object) -> str:
    plain = _plain(value)
    if isinstance(plain, str):
        return quote(plain) if "\n" not in plain else _indented(plain)
    return _json(plain)


def _indented(text: str) -> str:
    """Keep several lines readable as klog does: each on its own line, between `<` and `>`."""
    lines = harmless(text).removesuffix("\n").split("\n")
    return "<\n" + "".join(f"\t{line}\n" for line in lines) + " >"


def _json(value: object) -> str:
    return printable_json(_json_text(value))


def _json_text(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:  # a byte that is not UTF-8, as Python holds it
        import json  # rarely needed, and it takes a while

        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=str)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        return _NO_CHARACTERS.sub("\ufffd", text)


def format_json(entry: Entry) -> str:
    """Format as a JSON object in one line. `ts` is in milliseconds."""
    head: dict[str, object] = {
        "ts": entry.timestamp * 1000,
        "caller": entry.caller,
        "msg": entry.message,
    }
    if not entry.severity.is_error:
        head["v"] = entry.verbosity
    pairs = {key: _plain(value) for key, value in _pairs(entry).items()}
    return _json({**head, **pairs}) + "\n"


def _plain(value: object) -> object:
    """Return what a JSON encoder can show: names and errors as their text, collections as is."""
    if value is None or isinstance(value, str | bool | int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, dict | list | set | frozenset) or type(value) is tuple:
        return value
    return str(value)
