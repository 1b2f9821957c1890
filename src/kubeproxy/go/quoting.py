"""Quoted strings as Go's `%q` prints them: in log lines, error texts and field errors.

Only `time` quotes differently in Go; that spelling is private to `duration`.
"""

from __future__ import annotations

_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    '"': '\\"', "\\": "\\\\",
}  # fmt: skip


def quote(text: str) -> str:
    """Put the text in double quotes and escape what is not printable."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_escape, text)) + '"'


def harmless(text: str) -> str:
    """Escape what would move a terminal's cursor or is no character, but keep lines and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else quote(c)[1:-1] for c in text)


def printable_json(text: str) -> str:
    """Escape in a JSON document what is not printable, but keep lines.

    JSON itself demands it below 32 only. Terminals obey characters above 127, too.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _utf16_escapes(c) for c in text)


def _utf16_escapes(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as Python holds it
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
