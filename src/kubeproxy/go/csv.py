"""One line of comma-separated values as Go's `encoding/csv` reads and writes it: list flags.

Python's reader is more forgiving (a quote inside of an unquoted field) and words its errors
differently. `parse_record` raises ValueError with Go's error text, which counts columns in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_BARE = 'bare " in non-quoted-field'
_UNBALANCED = 'extraneous or missing " in quoted-field'
# White space by Unicode's definition; Python's `isspace` has four control characters more.
_SPACES = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | frozenset(
    map(chr, range(0x2000, 0x200B))
)


def parse_record(text: str) -> tuple[str, ...]:
    """Parse the first record that is not an empty line. Raises ValueError."""
    return _Record(text).fields()


def format_record(fields: Sequence[str]) -> str:
    """Format fields, each in quotes only if it needs them."""
    return ",".join(map(_format_field, fields))


def _format_field(field: str) -> str:
    is_plain = not field or not (
        field == "\\." or field[0] in _SPACES or any(char in field for char in ',"\r\n')
    )
    return field if is_plain else '"' + field.replace('"', '""') + '"'


class _Record:
    """Reads one record; remembers where, for errors."""

    def __init__(self, text: str) -> None:
        self._lines = _lines(text)
        self._line_number = 0
        self._line = ""
        self._column = 1
        self._first_line = 0

    def fields(self) -> tuple[str, ...]:
        while self._line in ("", "\n"):
            if not self._next_line():
                raise ValueError("EOF")
        self._first_line = self._line_number
        found: list[str] = []
        is_more = True
        while is_more:
            is_quoted = self._line.startswith('"')
            field, is_more = self._quoted() if is_quoted else self._unquoted()
            found.append(field)
        return tuple(found)

    def _next_line(self) -> bool:
        self._line, self._column = next(self._lines, ""), 1
        self._line_number += bool(self._line)
        return bool(self._line)

    def _take(self, count: int) -> str:
        taken, self._line = self._line[:count], self._line[count:]
        self._column += len(taken.encode(errors="surrogateescape"))
        return taken

    def _unquoted(self) -> tuple[str, bool]:
        """Take a field up to the comma. Return it, and whether another one follows."""
        end = self._line.find(",")
        field = self._line[:end] if end >= 0 else self._line.removesuffix("\n")
        quote = field.find('"')
        if quote >= 0:
            self._take(quote)
            raise self._error(_BARE, self._column)
        self._take(len(field) + 1)
        return field, end >= 0

    def _quoted(self) -> tuple[str, bool]:
        """Take a field in quotes, perhaps over several lines."""
        self._take(1)
        parts: list[str] = []
        while True:
            end = self._line.find('"')
            if end < 0:
                parts.append(self._take(len(self._line)))
                before = self._column
                if not self._next_line():
                    raise self._error(_UNBALANCED, before)
                continue
            parts.append(self._take(end))
            self._take(1)
            if self._line.startswith('"'):
                parts.append(self._take(1))
            elif self._line.startswith(","):
                self._take(1)
                return "".join(parts), True
            elif self._line in ("", "\n"):
                return "".join(parts), False
            else:
                raise self._error(_UNBALANCED, self._column - 1)

    def _error(self, reason: str, column: int) -> ValueError:
        where = f"parse error on line {self._line_number}, column {column}: {reason}"
        if self._line_number != self._first_line:
            where = f"record on line {self._first_line}; {where}"
        return ValueError(where)


def _lines(text: str) -> Iterator[str]:
    """Yield the lines, each with its end: `\\r\\n` is an end of line, as is a `\\r` at the end."""
    lines = text.split("\n")
    for line in lines[:-1]:
        yield line.removesuffix("\r") + "\n"
    if lines[-1].removesuffix("\r"):
        yield lines[-1].removesuffix("\r")
