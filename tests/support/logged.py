"""What the program logs at default verbosity while a test runs a piece of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.support.waiting import until


class Log:
    """The lines, once the block has ended; before, those that were waited for."""

    def __init__(self, read: Callable[[], str]) -> None:
        self.text = ""
        self._read = read

    def update(self) -> None:
        """Take over what was logged by now."""
        self.text += self._read()

    async def until(self, text: str) -> None:
        """Let other tasks go on until this is logged."""

        def is_there() -> bool:
            self.update()
            return text in self.text

        await until(is_there, lambda: self.text)

    def lines(self, *texts: str) -> list[str]:
        """The lines that hold all of these."""
        return [line for line in self.text.splitlines() if all(text in line for text in texts)]


Logging = Callable[[], AbstractContextManager[Log]]
"""The fixture `logging`: opens a block whose log lines are collected."""
