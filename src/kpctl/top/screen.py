"""A terminal that is drawn again and again, and the key that ends it."""

from __future__ import annotations

import contextlib
import select
import shutil
import sys
import termios
import tty
from collections.abc import Iterator, Sequence

from kpctl.look.output import columns
from kubeproxy.go.quoting import harmless

_CLEAR = "\x1b[H\x1b[J"
_OTHER_SCREEN, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@contextlib.contextmanager
def whole_screen() -> Iterator[None]:
    """Take the screen and single keys, and give both back however this ends."""
    reads_keys = sys.stdin.isatty()
    held = termios.tcgetattr(sys.stdin) if reads_keys else None
    sys.stdout.write(_OTHER_SCREEN)
    try:
        if reads_keys:
            tty.setcbreak(sys.stdin)
        yield
    finally:
        if held is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, held)
        sys.stdout.write(_BACK)
        sys.stdout.flush()


def rows_that_fit(other_lines: int) -> int:
    """How many rows the screen holds besides so many lines."""
    return max(shutil.get_terminal_size().lines - other_lines, 1)


def draw(lines: Sequence[str]) -> None:
    """Show these lines, each cut to the width."""
    width = columns()
    sys.stdout.write(_CLEAR + "\n".join(harmless(line)[:width] for line in lines))
    sys.stdout.flush()


def is_end_asked() -> bool:
    """Was `q` pressed?"""
    if not sys.stdin.isatty():
        return False
    while select.select([sys.stdin], [], [], 0)[0]:
        key = sys.stdin.read(1)
        if key in ("q", "Q", ""):
            return True
    return False
