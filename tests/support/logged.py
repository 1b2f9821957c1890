"""What the program logs at default verbosity while a test runs a piece of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager


class Log:
    """The lines, once the block has ended."""

    def __init__(self) -> None:
        self.text = ""

    def lines(self, *texts: str) -> list[str]:
        """The lines that hold all of these."""
        return [line for line in self.text.splitlines() if all(text in line for text in texts)]


Logging = Callable[[], AbstractContextManager[Log]]
"""The fixture `logging`: opens a block whose log lines are collected."""
