"""The kernel's state depends on the objects that exist, never on the way that led there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.fake_backend import FakeKernel, Item, Value
from tests.support.spine import Spine, delete
from tests.support.strategies import (
    RunRound,
    Step,
    final_objects,
    histories,
    objects_of_any_kind,
    services,
)

from kubeproxy.api import objects
from kubeproxy.api.source import Object
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family

State = Mapping[Family, Mapping[Item, Value]]
Kernels = Mapping[Family, FakeKernel]

PROPERTY = settings(max_examples=examples(20), database=None)


async def live_through(spine: Spine, steps: Sequence[Step]) -> None:
    """Lists complete at once, then every step, then a last round."""
    spine.sync()
    for step in steps:
        if isinstance(step, RunRound):
            await spine.rounds()
        else:
            spine.send(step)
    await spine.rounds()


async def start_on(found: Sequence[Object], kernels: Kernels | None = None) -> Spine:
    """A fresh start that finds these objects, perhaps on kernels that another proxy used before."""
    spine = Spine(kernels=kernels, batch_size=3)
    spine.hold(*found)
    spine.sync()
    await spine.rounds()
    return spine


async def fresh_state(found: Sequence[Object]) -> State:
    return (await start_on(found)).state


@given(steps=histories())
@PROPERTY
def test_any_history_ends_like_a_fresh_start_on_the_final_objects(steps: list[Step]) -> None:
    async def check() -> None:
        spine = Spine()
        await live_through(spine, steps)
        assert spine.state == await fresh_state(final_objects(steps))

    asyncio.run(check())


@given(steps=histories())
@PROPERTY
def test_a_forced_recompute_changes_nothing(steps: list[Step]) -> None:
    async def check() -> None:
        spine = Spine()
        await live_through(spine, steps)
        before = spine.state
        for engine in spine.engines.values():
            engine.request(full=True)
        reports = await spine.rounds()
        assert all(r.is_full and not r.changes and not r.drifted_items for r in reports.values())
        assert spine.state == before

    asyncio.run(check())


@given(steps=histories(), more=histories(max_size=8), cut=st.integers(0, 12))
@PROPERTY
def test_a_cut_after_any_batch_and_a_restart_converge(
    steps: list[Step], more: list[Step], cut: int
) -> None:
    """The process dies between two batches; its successor knows the kernel only by reading."""

    async def check() -> None:
        first = Spine(batch_size=2)
        await live_through(first, steps)
        for kernel in first.kernels.values():
            kernel.cut_after = len(kernel.batches) + cut
        await live_through(first, more)
        for kernel in first.kernels.values():
            kernel.cut_after = None
        found = final_objects([*steps, *more])
        second = await start_on(found, first.kernels)
        assert second.state == await fresh_state(found)

    asyncio.run(check())


@given(steps=histories(), fail_at=st.integers(0, 24))
@PROPERTY
def test_a_failing_kernel_is_caught_up_with_when_it_works_again(
    steps: list[Step], fail_at: int
) -> None:
    async def check() -> None:
        spine = Spine()
        await live_through(spine, steps[:fail_at])
        for kernel in spine.kernels.values():
            kernel.fail = KernelError("out of order")
        await live_through(spine, steps[fail_at:])
        for kernel in spine.kernels.values():
            kernel.fail = None
        await spine.rounds()
        assert spine.state == await fresh_state(final_objects(steps))

    asyncio.run(check())


@given(others=st.lists(objects_of_any_kind(), max_size=8), removed=services("api"))
@PROPERTY
def test_removing_a_service_leaves_what_the_others_alone_would_want(
    others: list[Object], removed: objects.Service
) -> None:
    async def check() -> None:
        rest = [o for o in others if o.metadata.name != removed.metadata.name]
        spine = await start_on([*rest, removed])
        spine.send(delete(removed))
        await spine.rounds()
        spine_alone = await start_on(rest)
        assert spine.state == spine_alone.state

    asyncio.run(check())


@given(found=st.lists(objects_of_any_kind(), max_size=10), data=st.data())
@PROPERTY
def test_the_order_of_arrival_does_not_matter(found: list[Object], data: st.DataObject) -> None:
    unique = {(type(o), o.metadata.name): o for o in found}
    shuffled = data.draw(st.permutations(list(unique.values())))

    async def check() -> None:
        assert await fresh_state(list(unique.values())) == await fresh_state(shuffled)

    asyncio.run(check())


@given(steps=histories())
@PROPERTY
def test_the_totals_end_like_those_of_a_fresh_start(steps: list[Step]) -> None:
    """Health check ports, local endpoints and the counters kept by difference."""

    async def check() -> None:
        spine = Spine()
        await live_through(spine, steps)
        fresh = await start_on(final_objects(steps))
        for family, engine in spine.engines.items():
            ours, theirs = engine.pipeline, fresh.engines[family].pipeline
            assert ours.health_check_ports == theirs.health_check_ports
            assert ours.local_ready == theirs.local_ready
            assert ours.no_local_internal == theirs.no_local_internal
            assert ours.no_local_external == theirs.no_local_external
            assert ours.node == theirs.node

    asyncio.run(check())
