"""One event costs the size of its Service, whatever the size of the cluster: counted, not timed."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from msgspec import Struct
from msgspec.structs import replace
from tests.support.api_objects import node_object, slice_object
from tests.support.fake_backend import Listed
from tests.support.spine import Spine, delete, upsert

from kpctl.bench.bulk import fill, service_addresses, service_of, slice_of
from kubeproxy.api.source import Event
from kubeproxy.facts.ids import Family

SIZES = (1_000, 10_000)
ENDPOINTS = 10


class Cost(Struct, frozen=True):
    """What one event and its round took."""

    planned: int
    rendered: int
    services: int
    changes: int
    batches: int
    bytes_sent: int
    calls: int


class Calls:
    """Python function calls while it is on."""

    def __init__(self) -> None:
        self.count = 0

    def notice(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self.count += 1


@contextmanager
def counted_calls() -> Iterator[Calls]:
    calls = Calls()
    gc.disable()
    sys.setprofile(calls.notice)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()


def filled(count: int) -> Spine:
    """IPv4 alone, everything applied."""
    spine = Spine(families=(Family.IPV4,), batch_size=10_000)
    fill(spine.intake, services=count, endpoints=ENDPOINTS)
    asyncio.run(spine.engines[Family.IPV4].round())
    return spine


def cost_of(spine: Spine, event: Event) -> Cost:
    engine = spine.engines[Family.IPV4]
    planned, rendered = engine.pipeline.planned, engine.pipeline.rendered
    loop = asyncio.new_event_loop()
    try:
        with counted_calls() as calls:
            spine.send(event)
            report = loop.run_until_complete(engine.round())
    finally:
        loop.close()
    assert report.is_success and not report.is_full
    return Cost(
        planned=engine.pipeline.planned - planned,
        rendered=engine.pipeline.rendered - rendered,
        services=report.services,
        changes=report.changes,
        batches=report.batches,
        bytes_sent=report.bytes_sent,
        calls=calls.count,
    )


def events(number: int) -> dict[str, Event]:
    """Each applies to what the one before has left."""
    addresses = service_addresses(number, ENDPOINTS)
    extra = slice_object(f"bench/extra-{number}", ["10.255.255.2"], service=f"svc-{number}")
    return {
        "an endpoint leaves": upsert(slice_of(number, addresses[1:])),
        "an endpoint comes": upsert(slice_of(number, [*addresses, "10.255.255.1"])),
        "a slice comes": upsert(extra),
        "a slice goes": delete(extra),
        "a service goes": delete(service_of(number)),
        "a service comes": upsert(service_of(number)),
        "nothing changes": upsert(service_of(number)),
    }


def measure(spine: Spine) -> dict[str, Cost]:
    # Once before counting: caches that fill on first use belong to no event.
    for event in events(1).values():
        cost_of(spine, event)
    return {name: cost_of(spine, event) for name, event in events(500).items()}


def test_a_cold_start_plans_and_renders_each_service_once() -> None:
    size = 10_000
    spine = Spine(families=(Family.IPV4,), batch_size=1_000)
    fill(spine.intake, services=size, endpoints=ENDPOINTS)
    pipeline = spine.engines[Family.IPV4].pipeline
    report = asyncio.run(spine.engines[Family.IPV4].round())
    assert report.is_success and report.is_full
    assert (pipeline.planned, pipeline.rendered, report.services) == (size, size, size)
    # Two items a Service, and the node's own address; in bounded batches.
    assert report.changes == len(spine.kernels[Family.IPV4].state) == 2 * size + 1
    assert report.batches == 2 * size // 1_000 + 1


def test_one_event_costs_the_same_in_any_cluster() -> None:
    """In plans, renderings, items, bytes and Python function calls."""
    costs = {size: measure(filled(size)) for size in SIZES}
    small = costs[SIZES[0]]
    assert small["an endpoint leaves"] == Cost(
        planned=1, rendered=1, services=1, changes=1, batches=1, bytes_sent=10,
        calls=small["an endpoint leaves"].calls,
    )  # fmt: skip
    assert (small["nothing changes"].planned, small["nothing changes"].changes) == (0, 0)
    for size, name in itertools.product(SIZES[1:], small):
        expected, found = small[name], costs[size][name]
        assert replace(found, calls=0) == replace(expected, calls=0), (size, name)
        assert found.calls <= expected.calls + 20, (size, name)


async def test_a_new_address_of_the_host_plans_and_renders_nothing_again() -> None:
    """Every pod that starts here brings one; only what exists without services may change."""
    spine = Spine(families=(Family.IPV4,))
    fill(spine.intake, services=300, endpoints=ENDPOINTS)
    await spine.rounds()
    pipeline = spine.engines[Family.IPV4].pipeline
    before = (pipeline.planned, pipeline.rendered)
    spine.intake.addresses_changed({Family.IPV4: ("192.0.2.10", "192.0.2.77")})
    report = (await spine.rounds())[Family.IPV4]
    assert (pipeline.planned, pipeline.rendered) == before
    assert (report.services, report.changes) == (0, 1)
    assert Listed("192.0.2.77") in spine.kernels[Family.IPV4].state


async def test_a_change_of_zone_plans_every_service_and_renders_each_once() -> None:
    spine = Spine(families=(Family.IPV4,))
    fill(spine.intake, services=300, endpoints=ENDPOINTS)
    await spine.rounds()
    spine.hold(node_object(zone="zone-a"))
    report = (await spine.rounds())[Family.IPV4]
    pipeline = spine.engines[Family.IPV4].pipeline
    assert (pipeline.planned, report.services, report.changes) == (600, 300, 0)
    assert pipeline.rendered == 600
