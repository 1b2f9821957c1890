"""The clock as an argument; the machine's own is built in `app` only."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two readings: wall time for people and other machines, steady time for intervals."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...
