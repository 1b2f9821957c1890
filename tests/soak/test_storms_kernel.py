"""A whole daemon in a storm: thousands of Services at once, and a slice that never rests.

Meanwhile the kubelet gets its answer and a quiet Service its change; afterwards the kernel has what
is wanted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.soak.node import Node
from tests.support.waiting import until

from kpctl.apiserver.store import Json
from kpctl.bench.cluster import service_json, slice_json

pytestmark = pytest.mark.kernel

STORM = 5000
ENDPOINTS = 1000
CHANGES = 60
PERIOD_SECONDS = 0.05


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    async with Node("nftables", tmp_path).running() as running:
        await running.answers()
        yield running


async def test_5000_services_created_in_a_second(node: Node) -> None:
    store = node.api.store
    for index in range(STORM):
        store.create("services", "storm", service_json(index))
        store.create("endpointslices", "storm", slice_json(index, range(3)))
    await node.api.bookmark()  # which shows the watches that there is something to send
    await node.probe()
    assert b" 200 " in await node.page(10256, "/healthz")
    await until(lambda: holds(node, STORM + 1))
    for index in range(STORM):
        store.delete("services", "storm", f"svc-{index:05d}")
    await node.api.bookmark()
    await node.probe()
    await until(lambda: holds(node, 1))
    assert await node.drift() == ""


def holds(node: Node, services: int) -> bool:
    """Are so many Services programmed, and does none wait?"""
    status = node.status()
    assert not status.problems
    family = status.families[0]
    return family.services == services and not family.queued


async def test_a_slice_with_1000_endpoints_that_changes_every_50_ms(node: Node) -> None:
    await node.api.create("services", "noisy", service_json(1))
    await node.api.create("endpointslices", "noisy", big_slice(0))
    noise = asyncio.create_task(keep_changing(node))
    while not noise.done():
        await node.probe()
        assert b" 200 " in await node.page(10256, "/healthz")
    await noise
    await node.probe()
    assert await node.drift() == ""


async def keep_changing(node: Node) -> None:
    for number in range(1, CHANGES):
        await node.api.update("endpointslices", "noisy", "svc-00001-a", big_slice(number))
        await asyncio.sleep(PERIOD_SECONDS)


def big_slice(number: int) -> Json:
    """Each time another tenth of the endpoints is replaced."""
    first = number * ENDPOINTS // 10
    addresses = (divmod(first + k, 250) for k in range(ENDPOINTS))
    endpoints: list[Json] = [{"addresses": [f"10.140.{a}.{b + 1}"]} for a, b in addresses]
    return {**slice_json(1, ()), "endpoints": endpoints}
