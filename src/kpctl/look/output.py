"""Data for programs and tables for people, in the form that suits where they go.

A table for a pipe or a file is as wide as it must be and never wrapped, without frame and colour,
so that a line of it can be searched for. In a terminal that is too narrow for it each row becomes a
paragraph: an address that is cut in two could not be copied.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import click

from kubeproxy.go.quoting import harmless, printable_json

FORMATS = ("table", "wide", "json", "yaml")


def columns(stream: TextIO | None = None) -> int:
    """The width of a terminal; 0 for a pipe or file, where a line is as long as it must be."""
    is_terminal = (stream or sys.stdout).isatty()
    return shutil.get_terminal_size().columns if is_terminal else 0


def colored(text: str, color: str | None) -> str:
    """The text in a colour, unless the person wants none (no-color.org)."""
    is_plain = color is None or os.environ.get("NO_COLOR")
    return text if is_plain else click.style(text, fg=color)


def print_data(data: object, form: str) -> None:
    """Print plain data as JSON, or as YAML: a list is then one document per element."""
    if form == "json":
        import msgspec

        text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
        click.echo(printable_json(text))
        return
    import yaml

    documents = data if isinstance(data, list) else [data]
    text = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True)
    if not text.replace("\n", "").isprintable():
        text = yaml.safe_dump_all(documents, sort_keys=False)  # escapes all but ASCII
    click.echo(text, nl=False)


def print_text(
    text: str, *, nl: bool = True, err: bool = False, marked: str = "", color: str | None = None
) -> None:
    """Print lines for people. What would be a command to a terminal is shown as an escape.

    Names, reasons and messages come from objects, other processes and an API server. `marked` is a
    word of ours before the text, in a colour.
    """
    click.echo(colored(marked, color) + harmless(text), nl=nl, err=err)


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None
) -> None:
    """Print rows of cells. A cell may hold several lines in a terminal; a pipe joins them."""
    stream = stream or sys.stdout
    rows = [[harmless(cell) for cell in row] for row in rows]
    if width := columns(stream):
        if _table_width(headings, rows) <= width:
            _print_framed(headings, rows, stream)
        else:
            stream.writelines(f"{line}\n" for line in record_lines(headings, rows, width))
        return
    flat = [[", ".join(cell.split("\n")) for cell in row] for row in rows]
    stream.writelines(f"{line}\n" for line in plain_lines([list(headings), *flat]))


def print_paragraphs(paragraphs: Iterable[tuple[int, str]], stream: TextIO | None = None) -> None:
    """Print texts, each with its indent: wrapped in a terminal, else a line each."""
    stream = stream or sys.stdout
    width = columns(stream)
    for indent, given in paragraphs:
        text = harmless(given)
        lines = wrapped(text, width, indent) if width else [f"{' ' * indent}{text}"]
        stream.writelines(f"{line}\n" for line in lines or [""])


def wrapped(text: str, width: int, indent: int) -> list[str]:
    """The lines of a paragraph; those after the first are indented a little more."""
    margin = " " * indent
    return textwrap.wrap(
        text,
        max(width, indent + 20),
        initial_indent=margin,
        subsequent_indent=margin + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def plain_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as columns that are separated by two spaces."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


_COLUMN_MARGIN = 3


def _table_width(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width of a framed table of which no cell is wrapped."""
    cells = zip(headings, *rows, strict=True)
    widths = (max(len(line) for cell in column for line in cell.split("\n")) for column in cells)
    return sum(width + _COLUMN_MARGIN for width in widths)


def record_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[str]:
    """A paragraph for each row, with its first cell on top. Empty cells are left out."""
    margin = max(map(len, headings[1:])) + 2
    for number, (title, *cells) in enumerate(rows):
        yield from ("", title) if number else (title,)
        for heading, cell in zip(headings[1:], cells, strict=True):
            label = f"  {heading}".ljust(margin + 2)
            for line in cell.split("\n") if cell else ():
                yield from textwrap.wrap(
                    line,
                    max(width, margin + 20),
                    initial_indent=label,
                    subsequent_indent=" " * (margin + 2),
                    break_on_hyphens=False,
                    break_long_words=False,
                )
                label = " " * (margin + 2)


def _print_framed(headings: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_unicode = (stream.encoding or "").lower().startswith("utf")
    table = Table(box=box.SIMPLE_HEAD if is_unicode else box.ASCII, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        # As text, because rich takes the brackets around an IPv6 address for a style.
        table.add_row(*map(Text, row))
    Console(file=stream, width=columns(stream)).print(table)
