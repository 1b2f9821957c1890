"""Of Services that are gone nothing is kept, in any mode: counted in blocks of memory, not in time.

The daemon's own intake, engine, ledger and journal, with sinks that compile and do not apply.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator

import msgspec
import pytest

from kpctl.bench.cluster import service_json, slice_json
from kpctl.bench.growth import CountedMode, DryBackend, default_backend
from kpctl.bench.records import Size
from kubeproxy.api import objects
from kubeproxy.api.source import Delete, Kind, Upsert
from kubeproxy.inspection.journal import MOST_ROUNDS, MOST_SERVICES, Journal
from kubeproxy.sync.clock import SystemClock

AT_ONCE = 5
NAMES = 500
MOST_BLOCKS = NAMES // 10
"""A block for each name would be a leak. Some are lists and dictionaries at another size."""


def coming(number: int) -> Iterator[Upsert]:
    """A Service and its slice with names never seen before; addresses are used again and again."""
    service, slice_ = service_json(number % 100), slice_json(number % 100, (0, 1))
    name = f"stranger-{number}"
    service["metadata"] = {"name": name, "namespace": "default"}
    labels = {"kubernetes.io/service-name": name}
    slice_["metadata"] = {"name": name, "namespace": "default", "labels": labels}
    yield Upsert(Kind.SERVICE, msgspec.convert(service, objects.Service))
    yield Upsert(Kind.ENDPOINT_SLICE, msgspec.convert(slice_, objects.EndpointSlice))


def going(number: int) -> Iterator[Delete]:
    for kind in (Kind.SERVICE, Kind.ENDPOINT_SLICE):
        yield Delete(kind, "default", f"stranger-{number}")


async def come_and_go(counted: CountedMode, numbers: range) -> None:
    """Create these Services and delete them, a few at a time."""
    for first in numbers[::AT_ONCE]:
        these = range(first, first + AT_ONCE)
        await counted.send(*(event for number in these for event in coming(number)))
        await counted.send(*(event for number in these for event in going(number)))


async def blocks_kept(mode: str) -> int:
    """How many blocks of memory more there are after names that never come again."""
    backend = default_backend(mode)
    counted = CountedMode(DryBackend(backend), Size(20, 3), Journal(SystemClock()))
    await counted.load()
    # First as many as fill everything that is bounded.
    enough = max(MOST_SERVICES, AT_ONCE * MOST_ROUNDS)
    await come_and_go(counted, range(enough))
    gc.collect()
    before = sys.getallocatedblocks()
    await come_and_go(counted, range(enough, enough + NAMES))
    gc.collect()
    kept = sys.getallocatedblocks() - before
    await backend.close()
    return kept


@pytest.mark.parametrize("mode", ["nftables", "iptables", "ipvs", "userspace"])
def test_of_names_that_never_come_again_nothing_is_kept(mode: str) -> None:
    assert asyncio.run(blocks_kept(mode)) < MOST_BLOCKS
