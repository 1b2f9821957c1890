"""Many changes: a rolling update as fast as it goes, and churn at a steady rate.

The same for every mode and for either API server.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial

from kpctl.bench.cluster import PARALLEL, SPARE, Cluster, Job

_ROLLING_SERVICES = 100
_ROLLING_WAVES = 10
_PRIME = 7919
"""A step that visits services all over the cluster, each once before any comes again."""
_CHURN_SLOTS = 32


def rolled_services(cluster: Cluster) -> range:
    return range(min(_ROLLING_SERVICES, cluster.size.services))


def rolling_update(cluster: Cluster) -> list[Job]:
    """Jobs that replace the endpoints of a hundred services, one of each service per wave."""
    endpoints = cluster.size.endpoints
    return [
        partial(cluster.set_slots, index, _rolled(endpoints, wave))
        for wave in range(1, 1 + min(_ROLLING_WAVES, endpoints))
        for index in rolled_services(cluster)
    ]


def _rolled(endpoints: int, wave: int) -> tuple[int, ...]:
    """The slots after so many of a service's endpoints were replaced."""
    return (*range(wave, endpoints), *range(SPARE, SPARE + wave))


def _ignore_change(index: int, slot: int) -> None: ...


async def churn(
    cluster: Cluster,
    *,
    rate: int,
    seconds: float,
    changing: Callable[[int, int], None] = _ignore_change,
) -> list[int]:
    """Change endpoints all over the cluster, at this rate if the API server is fast enough.

    `changing` is called before each change, with the service and the slot that is new to it.
    Returns the services that were changed, once for each change.
    """
    touched: list[int] = []
    numbers, began = itertools.count(), time.monotonic()

    async def worker(numbers: Iterator[int]) -> None:
        for number in numbers:
            due = max(began + number / rate, time.monotonic())
            if due > began + seconds:
                return
            await asyncio.sleep(due - time.monotonic())
            index = number * _PRIME % cluster.size.services
            touched.append(index)
            first = SPARE + number % _CHURN_SLOTS
            changing(index, first)
            await cluster.set_slots(index, (first, *range(1, cluster.size.endpoints)))

    async with asyncio.TaskGroup() as group:
        for _ in range(PARALLEL):
            group.create_task(worker(numbers))
    return touched
