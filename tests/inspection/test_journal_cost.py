"""What it costs that a proxy can be looked into, while no one looks: counted, not timed.

Without the socket there is no journal at all (`tests/inspection/test_inspected_daemon.py`).
"""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from tests.support.builders import endpoint, endpoint_slice

from kpctl.bench.growth import DryBackend, default_backend, measure_costs
from kpctl.bench.records import Size
from kubeproxy.facts.endpoint import SliceFacts
from kubeproxy.facts.ids import Family
from kubeproxy.inspection.journal import Journal
from kubeproxy.sync.clock import SystemClock

MOST_STEPS = 250
"""Of Python, for one change and its round, which without a journal takes 6,000 to 14,000 of them.
The daemon's own reading, decoding and talking to the kernel come on top of those."""
MOST_BYTES = 1_000_000


@pytest.mark.parametrize("mode", ["nftables", "ipvs"])
def test_a_change_costs_a_few_steps_more_whatever_the_size_of_the_cluster(mode: str) -> None:
    async def steps(size: Size, journal: Journal | None) -> dict[str, int]:
        backend = default_backend(mode)
        try:
            found = await measure_costs(DryBackend(backend), size, journal)
        finally:
            await backend.close()
        return {change: cost.python_steps for change, cost in found.items()}

    def added(size: Size) -> dict[str, int]:
        without = asyncio.run(steps(size, None))
        with_it = asyncio.run(steps(size, Journal(SystemClock())))
        return {change: with_it[change] - without[change] for change in without}

    small = added(Size(200, 10))
    assert small == added(Size(400, 10))
    assert max(small.values()) <= MOST_STEPS


def test_memory_does_not_grow_with_changes_and_clusters() -> None:
    """Three times what is remembered of Services and slices makes no difference any more."""
    journal = Journal(SystemClock())
    journal.listed()
    tracemalloc.start()
    try:
        _change(journal, range(3000))
        first = tracemalloc.get_traced_memory()[0]
        _change(journal, range(3000, 9000))
        last = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert last <= first * 1.1
    assert last <= MOST_BYTES


def _change(journal: Journal, numbers: range) -> None:
    for number in numbers:
        before = _slice(number, "10.0.0.1")
        journal.slice_changed(Family.IPV4, before, _slice(number, "10.0.0.2"))


def _slice(number: int, address: str) -> SliceFacts:
    return endpoint_slice(f"shop/web-{number}", [endpoint(address)], slice_name=f"web-{number}-1")
