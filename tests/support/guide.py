"""Commands of a guide: read from its Markdown, and typed into shells on hosts of a small network.

A fenced block of commands begins with one of three words after `console`:

    run     a test runs it and compares the output that is shown
    norun   no test runs it (it needs a cluster, or takes too long)
    flow    `kpctl lab --flow NAME`; the tests of flows run what it names

`$ ` is the prompt of the host, `client$ ` that of another machine. Output follows its command; a
line of three dots stands for any lines, and within a line for any text. A block with a `title` is a
file that is written before the next command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

KINDS = ("run", "norun", "flow")
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
"""Blocks within a list are indented."""
_PROMPT = re.compile(r"^(?P<host>[a-z]*)\$ (?P<text>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
COMMAND_LANGUAGES = frozenset({"console", "sh", "bash", "shell", "zsh", "fish"})


class Block(Struct, frozen=True):
    """A fenced block."""

    language: str
    words: tuple[str, ...]
    title: str
    body: str
    line: int

    @property
    def kind(self) -> str:
        """One of `KINDS`, or empty if the block has no mark."""
        return next((word for word in self.words if word in KINDS), "")


class Command(Struct, frozen=True):
    """A command, the host it is typed on, and the output that the guide shows."""

    host: str
    text: str
    output: tuple[str, ...]


def blocks(path: Path) -> Iterator[Block]:
    """Every fenced block of a page."""
    text = path.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        language, *words = re.sub(r'\w+="[^"]*"', "", found["info"]).split() or [""]
        title = _TITLE.search(found["info"])
        line = text.count("\n", 0, found.start()) + 1
        body = re.sub(f"^{found['indent']}", "", found["body"], flags=re.MULTILINE)
        yield Block(language, tuple(words), title[1] if title else "", body, line)


def commands(body: str) -> Iterator[Command]:
    """The commands of a block with their output. A line before the first prompt is an error."""
    current: Command | None = None
    for line in body.splitlines():
        prompt = _PROMPT.match(line)
        if prompt is None and current is None:
            raise ValueError(f"{line!r} follows no command; a command begins with `$ `")
        if prompt is None:
            assert current is not None
            current = Command(current.host, current.text, (*current.output, line))
            continue
        if current is not None:
            yield current
        current = Command(prompt["host"], prompt["text"], ())
    if current is not None:
        yield current


def matches(shown: tuple[str, ...], printed: str) -> bool:
    """Is this what the guide shows? A guide that shows nothing makes no claim."""
    if not shown:
        return True
    lines = [r"(?:.*\n)*?" if line == "..." else _line(line) for line in shown]
    return (
        re.fullmatch("".join(lines), printed if printed.endswith("\n") else f"{printed}\n")
        is not None
    )


def _line(line: str) -> str:
    return ".*".join(map(re.escape, line.split("..."))) + r"[ ]*\n"
