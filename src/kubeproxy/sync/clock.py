"""The clock as an argument: the daemon and `kpctl` pass the machine's, tests one they advance."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: wall time for people and other machines, steady time for intervals."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
