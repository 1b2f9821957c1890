"""What a call costs, in processor time of this process, and what that may be compared with."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import yaml


def seconds_for(call: Callable[[], object]) -> float:
    """The best of three: the machine may be busy, and garbage of others be collected meanwhile."""

    def once() -> float:
        started = time.process_time()
        call()
        return time.process_time() - started

    return min(once() for _ in range(3))


def megabytes(count: int) -> float:
    """What it takes here to read so many megabytes of plain YAML, 5 ms each on an ordinary host."""
    return count * _megabyte()


@functools.cache
def _megabyte() -> float:
    return seconds_for(lambda: yaml.load("a" * 1_000_000, yaml.CSafeLoader))
