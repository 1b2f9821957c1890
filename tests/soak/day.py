"""A day in minutes: 24 hours of churn, each followed by a look at what the proxy uses.

hour:  changes, visits, edits of our rules ─▶ sizes as before ─▶ latency, drift, usage
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec
from tests.soak.churn import Churn
from tests.soak.node import Node, Usage
from tests.support.waiting import Pauses

from kpctl.bench.records import Size

WARM_HOURS = 2
"""What is measured from here on must stay as it is."""
_TOGETHER = 3
"""So many hours at the beginning and at the end are compared by their median."""
MOST_GROWTH = 0.01
MOST_LATENCY = 1.5
"""The last hours' latency by the first hours': what leaks gets slower, and machines vary."""
_HOURS_BETWEEN_LISTS = 6
"""After a watch that failed the proxy waits, and longer each time if the hours are short."""
_AT_ONCE = 100
"""A change of all at once would need memory that stays and could hide growth."""
_PAUSE_SECONDS = 1.2
"""Longer than minSyncPeriod: the next change does not wait for a pause between rounds."""


class Plan(msgspec.Struct, frozen=True):
    """How much of a day there is."""

    mode: str
    services: int = 2000
    endpoints: int = 5
    hours: int = 24
    changes_per_hour: int = 1000
    probes_per_hour: int = 5
    seed: int = 1


class Hour(msgspec.Struct, frozen=True):
    """What was found at the end of an hour."""

    number: int
    usage: Usage
    latency_ms: float
    drift: str = ""

    def __str__(self) -> str:
        drift = f", DRIFT {self.drift}" if self.drift else ""
        return (
            f"hour {self.number:2}: {self.usage.resident_mb:7.2f} MB,"
            f" {self.usage.descriptors} descriptors, {self.usage.threads} threads,"
            f" a change takes {self.latency_ms:.0f} ms{drift}"
        )


async def live_through(plan: Plan, folder: Path, show: Callable[[Hour], object]) -> list[Hour]:
    """Run a proxy for so many hours."""
    node, dice = Node(plan.mode, folder), Random(plan.seed)
    churn = Churn(node.api, Size(plan.services, plan.endpoints), dice)
    await churn.load()
    hours: list[Hour] = []
    async with node.running():
        await node.answers()
        for number in range(plan.hours + 1):
            if number:
                is_warming = number < WARM_HOURS
                churn.end_watches(forget=is_warming or number % _HOURS_BETWEEN_LISTS == 0)
                if is_warming:
                    await _change_everything(node, churn, plan.services)
                await _churn(node, churn, dice, plan.changes_per_hour)
            hours.append(await _look(node, number, plan, hours))
            show(hours[-1])
    return hours


async def _change_everything(node: Node, churn: Churn, services: int) -> None:
    """Change each Service once, a few at a time.

    What is as it was at the start shares memory with much else. Services that change for the first
    time would look like growth for as long as there are any.
    """
    for first in range(0, services, _AT_ONCE):
        await churn.change_these(range(first, min(first + _AT_ONCE, services)))
        await node.probe()


async def _churn(node: Node, churn: Churn, dice: Random, changes: int) -> None:
    visitors: set[asyncio.Task[None]] = set()
    for number in range(changes):
        await churn.change()
        await asyncio.sleep(0.002)
        if number % 20 == 0:
            visitors = {each for each in visitors if not each.done()}
            visitors.add(asyncio.create_task(node.visit(dice)))
            node.move_addresses(dice)
        if number == changes // 2:
            node.edit_rules()
    await asyncio.gather(*visitors)
    await churn.restore()
    await node.probe()


async def _look(node: Node, number: int, plan: Plan, before: Sequence[Hour]) -> Hour:
    drift = await _drift(node)
    latencies = []
    for _ in range(plan.probes_per_hour):
        await asyncio.sleep(_PAUSE_SECONDS)
        latencies.append(1000 * await node.probe())
    usage = await _settled(node, _warm(before))
    return Hour(number, usage, statistics.median(latencies), drift)


async def _drift(node: Node) -> str:
    """What is edited is repaired in the end; only what stays is drift."""
    with contextlib.suppress(AssertionError):
        pauses = Pauses()
        while await node.drift():
            await asyncio.sleep(pauses.next())
        return ""
    return await node.drift()


async def _settled(node: Node, before: Sequence[Usage]) -> Usage:
    """Connections close a little later than their client has left."""
    with contextlib.suppress(AssertionError):
        pauses = Pauses()
        while before and _is_more(node.usage(), before):
            await asyncio.sleep(10 * pauses.next())
    return node.usage()


def _is_more(now: Usage, before: Sequence[Usage]) -> bool:
    """Compare with the most of any hour: threads and connections begin when they are first used."""
    return now.descriptors > max(usage.descriptors for usage in before) or now.threads > max(
        usage.threads for usage in before
    )


def _warm(hours: Sequence[Hour]) -> list[Usage]:
    return [hour.usage for hour in hours if hour.number >= WARM_HOURS]


def growth(hours: Sequence[Hour]) -> float:
    """By which part the memory grew from the first warm hours to the last."""
    first, last = _ends(hours, lambda hour: hour.usage.resident_mb)
    return last / first - 1


def slowdown(hours: Sequence[Hour]) -> float:
    """The latency of the last hours by that of the first."""
    first, last = _ends(hours, lambda hour: hour.latency_ms)
    return last / first


def findings(hours: Sequence[Hour]) -> list[str]:
    """What is not as it should be after a day."""
    found = [f"hour {hour.number}: drift: {hour.drift}" for hour in hours if hour.drift]
    warm = _warm(hours)
    for name in ("descriptors", "threads"):
        numbers = [getattr(usage, name) for usage in warm]
        if max(numbers[-_TOGETHER:]) > max(numbers[:_TOGETHER]):
            found.append(f"{name} grew from {max(numbers[:_TOGETHER])} to {max(numbers)}")
    if growth(hours) > MOST_GROWTH:
        found.append(f"memory grew by {growth(hours):.2%}")
    if slowdown(hours) > MOST_LATENCY:
        found.append(f"latency is {slowdown(hours):.2f} times what it was")
    return found


def _ends(hours: Sequence[Hour], of: Callable[[Hour], float]) -> tuple[float, float]:
    values = [of(hour) for hour in hours if hour.number >= WARM_HOURS]
    return statistics.median(values[:_TOGETHER]), statistics.median(values[-_TOGETHER:])
