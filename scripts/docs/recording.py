"""`make recording`: run the demo and write what it printed as an animated picture, docs/demo.svg.

Nothing is staged: lines appear in the order and, with pauses cut short, at the pace in which the
demo printed them. The picture is CSS only; it loads nothing, and shows its end where animations are
off.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rich.color import Color
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from kpctl.demo.run import run_demo

TARGET = Path(__file__).parents[2] / "docs" / "demo.svg"
COLUMNS, ROWS = 100, 30
_WIDTH, _LINE, _PAD = 8.43, 18, 14
_LONGEST_PAUSE = 2.5
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>kpctl demo in a terminal</title>
<style>
text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #d9d9d9;
  white-space: pre }}
@media (prefers-reduced-motion: no-preference) {{
  .l {{ animation: show 0.1s both }} @keyframes show {{ from {{ opacity: 0 }} }}
  #all {{ animation: roll {seconds:.2f}s step-end both }} @keyframes roll {{ {roll} }}
}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#1a1b22"/>
<svg x="{pad}" y="{pad}" width="{inner}" height="{rows}">
<g id="all" transform="translate(0 {end})">
"""


class TimedFile(io.StringIO):
    """Keeps the moment at which each line was printed."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        moment = time.monotonic()
        self.lines += [(moment, line) for line in text.removesuffix("\n").split("\n")]
        return len(text)


def record(mode: str) -> Sequence[tuple[float, str]]:
    """Run the demo. Return its lines, each with seconds since the start."""
    file = TimedFile()
    console = Console(file=file, width=COLUMNS, color_system="truecolor", force_terminal=False)
    if run_demo(mode, console):
        raise SystemExit("the demo failed: there is nothing to show")
    return list(_paced(file.lines))


def _paced(lines: Sequence[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Cut long pauses short."""
    seconds, before = 0.0, lines[0][0]
    for moment, line in lines:
        seconds += min(moment - before, _LONGEST_PAUSE)
        before = moment
        yield seconds, line


def to_svg(lines: Sequence[tuple[float, str]]) -> str:
    """The lines as a picture of a terminal that scrolls."""
    width, height = round(COLUMNS * _WIDTH + 2 * _PAD), ROWS * _LINE + 2 * _PAD
    seconds = lines[-1][0] + 1
    head = _HEAD.format(
        width=width,
        height=height,
        pad=_PAD,
        inner=width - _PAD,
        rows=ROWS * _LINE,
        end=-max(0, len(lines) - ROWS) * _LINE,
        seconds=seconds,
        roll=" ".join(_roll(lines, seconds)),
    )
    body = "".join(_line(number, *line) for number, line in enumerate(lines))
    return f"{head}{body}</g></svg></svg>\n"


def _roll(lines: Sequence[tuple[float, str]], seconds: float) -> Iterator[str]:
    """How far the text has moved up at each moment at which a line was added."""
    yield "0% { transform: translate(0, 0) }"
    for number, (moment, _) in enumerate(lines, 1):
        is_last_of_moment = number == len(lines) or lines[number][0] > moment
        if number > ROWS and is_last_of_moment:
            up = (number - ROWS) * _LINE
            yield f"{100 * moment / seconds:.2f}% {{ transform: translate(0, -{up}px) }}"


def _line(number: int, moment: float, ansi: str) -> str:
    text = Text.from_ansi(ansi)
    if not text.plain.strip():
        return ""
    console = Console(color_system="truecolor")
    spans, column = [], 0
    for segment in text.render(console):
        words = segment.text
        if words.strip():
            style = _style(segment.style)
            spans.append(f'<tspan x="{column * _WIDTH:.1f}"{style}>{escape(words)}</tspan>')
        column += len(words)
    y = number * _LINE + _LINE - 5
    delay = f' style="animation-delay:{moment:.2f}s"'
    return f'<text class="l" y="{y}"{delay}>{"".join(spans)}</text>\n'


def _style(style: object) -> str:
    colour: Color | None = getattr(style, "color", None)
    parts = []
    if colour is not None and not colour.is_default:
        parts.append(f'fill="{colour.get_truecolor(MONOKAI).hex}"')
    if getattr(style, "bold", False):
        parts.append('font-weight="bold"')
    if getattr(style, "dim", False):
        parts.append('opacity="0.65"')
    return "".join(f" {part}" for part in parts)


if __name__ == "__main__":
    TARGET.write_text(to_svg(record(sys.argv[1] if len(sys.argv) > 1 else "nftables")))
