"""The rows of a plan as text: a table, or a list where a terminal is too narrow for one.

A table for a pipe or a file is as wide as it must be and never wrapped, so that a line of it can
be searched for. In a terminal long reasons are wrapped.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from kpctl.look.output import columns, wrapped
from kpctl.look.planview import Row
from kubeproxy.go.quoting import harmless

if TYPE_CHECKING:
    from rich.table import Table

_HEADINGS = ("service port", "arrives at", "is", "goes to", "because")
_FEWEST_COLUMNS = 110
_NO_LIMIT = 100_000


def print_rows(rows: Sequence[Row], stream: TextIO) -> None:
    """Write the rows in the form that suits the stream."""
    rows = [_harmless(row) for row in rows]
    width = columns(stream)
    if not width:
        stream.write(table_text(rows, is_unicode=_is_unicode(stream)))
        return
    if width < _FEWEST_COLUMNS:
        stream.writelines(f"{line}\n" for line in list_lines(rows, width))
        return
    from rich.console import Console

    Console(file=stream, width=width).print(_table(rows, is_unicode=_is_unicode(stream)))


def _harmless(row: Row) -> Row:
    return Row(
        harmless(row.service),
        tuple(map(harmless, row.places)),
        row.fate,
        tuple(map(harmless, row.targets)),
        harmless(row.why),
    )


def table_text(rows: Sequence[Row], *, is_unicode: bool = True) -> str:
    """The table without colours, each row in full."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=_NO_LIMIT, force_terminal=False, color_system=None)
    console.print(_table(rows, is_unicode=is_unicode))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().startswith("utf")


def _table(rows: Sequence[Row], *, is_unicode: bool) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.HEAVY_HEAD if is_unicode else box.ASCII)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold", no_wrap=heading in ("is", "goes to"))
    for cells in _cells(rows):
        # As text, because rich takes the brackets around an IPv6 address for a style.
        table.add_row(*map(Text, cells))
    return table


def _cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """The cells of each row; what the row above says too is not repeated."""
    service, places = "", tuple[str, ...]()
    for row in rows:
        yield (
            row.service if row.service != service else "",
            "\n".join(row.places) if row.places != places or row.service != service else "",
            row.fate,
            "\n".join(row.targets),
            row.why,
        )
        service, places = row.service, row.places


def list_lines(rows: Sequence[Row], columns: int) -> Iterator[str]:
    """A paragraph for each service port, in lines of at most this many columns if possible."""
    before = Row("", (), "", (), "")
    for row in rows:
        if row.service != before.service:
            yield from ("", row.service) if before.service else (row.service,)
        if (row.service, row.places) != (before.service, before.places):
            yield from (f"  {place}" for place in row.places)
        before = row
        link = " to " if row.fate == "forward" else " "
        yield from wrapped(f"{row.fate}{link}{', '.join(row.targets)}", columns, 4)
        yield from wrapped(row.why, columns, 6)
