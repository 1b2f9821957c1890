"""Waiting for what another task, thread or process makes true. No test waits for a time.

One limit for all, so long that a busy machine does not reach it: only what fails takes that long.
Standard library only, because programs inside a guest kernel use it as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

LIMIT_SECONDS = 180.0
FOR_THE_LOCK = ("-w", f"{LIMIT_SECONDS:.0f}")
"""For tools of iptables: the proxy under test has the same lock of iptables-legacy."""
_LONGEST_PAUSE_SECONDS = 0.05
_LONGEST_AFTER_A_LOOK_SECONDS = 0.5

Value = TypeVar("Value")
Say = Callable[[], object]


def nothing_to_say() -> str:
    return ""


def limit() -> asyncio.Timeout:
    """For `async with`: raises TimeoutError where the block does not end."""
    return asyncio.timeout(LIMIT_SECONDS)


async def within_limit(awaitable: Awaitable[Value]) -> Value:
    async with limit():
        return await awaitable


async def until(condition: Callable[[], object], problem: Say = nothing_to_say) -> None:
    """Let other tasks go on until the condition holds. `problem` says why it does not."""
    pauses = Pauses(problem)
    while not condition():
        await asyncio.sleep(pauses.next())


async def until_async(
    condition: Callable[[], Awaitable[object]], problem: Say = nothing_to_say
) -> None:
    """As `until`, for a condition that has to be awaited."""
    pauses = Pauses(problem)
    while not await condition():
        await asyncio.sleep(pauses.next())


def wait_until(condition: Callable[[], object], problem: Say = nothing_to_say) -> None:
    """As `until`, where nothing else goes on in this thread."""
    pauses = Pauses(problem)
    while not condition():
        time.sleep(pauses.next())


class Pauses:
    """Pauses between two looks: short at first, so that what is quick is seen at once.

    A pause is no shorter than the look before it: waiting leaves half of a processor, at least, to
    what is waited for.
    """

    def __init__(self, problem: Say = nothing_to_say) -> None:
        self._problem = problem
        self._awake_at = time.monotonic()
        self._deadline = self._awake_at + LIMIT_SECONDS
        self._seconds = 0.0005

    def next(self) -> float:
        """The next pause. Raises AssertionError when the limit is reached."""
        now = time.monotonic()
        if now > self._deadline:
            raise AssertionError(
                f"still waiting after {LIMIT_SECONDS:.0f} s\n{self._problem()}".rstrip()
            )
        self._seconds = min(2 * self._seconds, _LONGEST_PAUSE_SECONDS)
        pause = max(self._seconds, min(now - self._awake_at, _LONGEST_AFTER_A_LOOK_SECONDS))
        self._awake_at = now + pause
        return pause
