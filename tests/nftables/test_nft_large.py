"""Pool maps too large to be listed are read by key, and what nothing leads to is found later."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nftables.test_nft_repair import OPTIONS, change, programmed, stray_slot
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import FakeClock, RecordedDrifts, RecordedRounds
from tests.support.fake_nft import FakeNft
from tests.support.nft_kit import everything
from tests.support.waiting import until
from tests.support.worlds import World, worlds

from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import LocalDetector
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.units import index_bytes
from kubeproxy.modes.nftables.items import Chain, ChainKind, ElementItem
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.rules.classes import (
    ClassContext,
    ServiceClass,
    drawn_pools,
    local_class,
    masqueraded_class,
    pick_class,
)
from kubeproxy.modes.nftables.rules.pieces import Draw, goto, rule
from kubeproxy.modes.nftables.sinks import elements
from kubeproxy.modes.nftables.sinks.elements import LargeMap, find_elements
from kubeproxy.modes.nftables.sinks.reading import read_table
from kubeproxy.modes.nftables.sinks.strays import StraySearch, find_strays
from kubeproxy.modes.nftables.sinks.table import TableSink
from kubeproxy.sync.engine import Engine

LAYOUT = layout_of(Family.IPV4)
CONTEXT = ClassContext(LAYOUT, LocalDetector(), 0x4000)

CLASSES = [
    (pick_class(CONTEXT, 3), {"service-pools": 3}),
    (pick_class(CONTEXT, 5, draw=Draw.HASH), {"service-pools": 5}),
    (masqueraded_class(CONTEXT, 12), {"service-pools": 12}),
    (masqueraded_class(CONTEXT, 12, by_node_port=True), {"nodeport-pools": 12}),
    (local_class(CONTEXT, 3, 1), {"service-pools": 3, "service-local-pools": 1}),
    (local_class(CONTEXT, 3, 0), {"service-pools": 3}),
    (
        local_class(CONTEXT, 40, 7, by_node_port=True, draw=Draw.HASH),
        {"nodeport-pools": 40, "nodeport-local-pools": 7},
    ),
]


@pytest.mark.parametrize(("found", "pools"), CLASSES)
def test_chains_lead_to_pools(found: ServiceClass, pools: dict[str, int]) -> None:
    chains = {item.name: chain for item, chain in found.chains}
    assert drawn_pools(found.entry, chains) == pools


def test_chains_that_are_gone_or_lead_in_circles_have_no_pools() -> None:
    back = Chain(ChainKind.CLASS_ENTRY, (rule(goto("a")), rule(goto("gone"))))
    assert drawn_pools("a", {"a": back}) == drawn_pools("gone", {}) == {}


@pytest.fixture
def nothing_is_listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every pool map counts as large."""
    monkeypatch.setattr(elements, "MOST_LISTED", 0)
    yield


@given(st.sampled_from(tuple(Family)).flatmap(lambda family: worlds(family, "nftables")))
@settings(max_examples=40)
def test_by_key_and_search_are_what_a_listing_shows(world: World) -> None:
    """Of any table that was programmed. Two Services may claim an address: then dispatch leads to
    the pools of one only, and those of the other are searched for."""
    kernel, _ = programmed(world)
    layout = layout_of(world.node.family)
    listed = read_table(kernel, layout)
    assert not listed.large
    sink = TableSink(layout, lambda _: kernel)
    before = kernel.lists_read.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "MOST_LISTED", 0)
        found = dict(asyncio.run(sink.read()))
    large = _large(kernel, layout.family)
    assert not {m.name for m in large} & set(kernel.lists_read[len(before) :])
    assert sink.strays.is_requested is (found != listed.items)
    strays = [item for m in large for item in find_strays(kernel, layout, m)]
    rest = find_elements(kernel, layout, strays)
    assert rest is not None
    found.update({item: value for item, value in rest.items() if value is not None})
    assert found == listed.items


@given(st.sampled_from(tuple(Family)).flatmap(lambda family: worlds(family, "nftables")))
@settings(max_examples=20)
def test_a_listing_with_elements_twice_is_made_again(world: World) -> None:
    """An element that such a listing leaves out was removed by nobody, and is no drift."""
    kernel, _ = programmed(world)
    layout = layout_of(world.node.family)
    listed = read_table(kernel, layout).items
    whole, seen = kernel.element_lists, set[str]()

    def moving(table: str, name: str) -> list[bytes]:
        (packed,) = whole(table, name)
        each = list(_split(packed))
        if name in seen or len(each) < 2:
            return [packed]
        seen.add(name)
        return [b"".join([*each[:-1], each[0]])]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "element_lists", moving)
        assert read_table(kernel, layout).items == listed


def _split(packed: bytes) -> Iterator[bytes]:
    """The elements of a list, by the length that each begins with."""
    while packed:
        size = int.from_bytes(packed[:2], sys.byteorder)
        size += -size % 4
        yield packed[:size]
        packed = packed[size:]


def _large(kernel: FakeNft, family: Family) -> list[LargeMap]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "MOST_LISTED", 0)
        return list(read_table(kernel, layout_of(family)).large)


def engine_over(kernel: FakeNft) -> Engine:
    engine = Engine(
        NftablesBackend(Family.IPV4, OPTIONS, lambda _: kernel),
        node(),
        clock=FakeClock(),
        listener=RecordedRounds(),
    )
    store = engine.pipeline.store
    store.set_service(service())
    store.set_slice(endpoint_slice("default/web", [endpoint("10.244.1.1"), endpoint("10.244.1.2")]))
    return engine


CLUSTER_IP = service().cluster_ip


@pytest.mark.usefixtures("nothing_is_listed")
async def test_slots_that_nothing_leads_to_go_later() -> None:
    """One behind a pool, one of no pool at all. The round does not wait for the search."""
    kernel = FakeNft()
    first = engine_over(kernel)
    assert (await first.round()).is_success
    for cluster_ip, index in ((CLUSTER_IP, 2), (CLUSTER_IP, 65_536), ("10.96.3.3", 0)):
        item, packed = stray_slot(Family.IPV4, cluster_ip, index)
        change(kernel, nft.NEWSETELEM, item.set, packed)
    engine = engine_over(kernel)
    report = await engine.round()
    assert report.is_success and not report.changes
    assert len(kernel.elements(names.TABLE_NAME, names.SERVICE_POOLS)) == 5
    (large,) = _large(kernel, Family.IPV4)
    strays = find_strays(kernel, LAYOUT, large)
    assert len(strays) == 3
    engine.report_drift("slots that nothing leads to", strays)
    report = await engine.round()
    assert report.is_success and not report.is_full
    assert len(kernel.elements(names.TABLE_NAME, names.SERVICE_POOLS)) == 2


@pytest.mark.usefixtures("nothing_is_listed")
async def test_a_gap_is_no_end() -> None:
    """Behind a missing slot the others are found, too."""
    kernel = FakeNft()
    assert (await engine_over(kernel).round()).is_success
    lost = names.service_key(CLUSTER_IP, 6, 80) + index_bytes(0)
    change(kernel, nft.DELSETELEM, names.SERVICE_POOLS, nft.element(lost))
    report = await engine_over(kernel).round()
    assert report.is_success and report.changes == 1
    assert len(kernel.elements(names.TABLE_NAME, names.SERVICE_POOLS)) == 2


@pytest.mark.usefixtures("nothing_is_listed")
async def test_a_map_full_of_strays_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a flush of dispatch: by key nothing of it would be found."""
    monkeypatch.setattr(elements, "MOST_STRAYS", 1)
    kernel = FakeNft()
    assert (await engine_over(kernel).round()).is_success
    for index in range(3):
        item, packed = stray_slot(Family.IPV4, "10.96.3.3", index)
        change(kernel, nft.NEWSETELEM, item.set, packed)
    assert not _large(kernel, Family.IPV4)
    assert (await engine_over(kernel).round()).is_success
    assert len(kernel.elements(names.TABLE_NAME, names.SERVICE_POOLS)) == 2


async def test_a_search_reports_what_it_finds_and_survives_a_failure() -> None:
    """The kernel may be busy; then the next full read requests the next search."""
    kernel = FakeNft()
    assert (await engine_over(kernel).round()).is_success
    failures = [OSError("too many open files")]

    def open_nftables(_: int) -> FakeNft:
        if failures:
            raise failures.pop()
        return kernel

    search, reported = StraySearch(LAYOUT), RecordedDrifts()
    running = asyncio.create_task(search.run(open_nftables, reported, pause_seconds=0))
    search.request([LargeMap(names.SERVICE_POOLS, {}, None)])
    await until(lambda: not failures)
    search.request([LargeMap(names.SERVICE_POOLS, {}, None)])
    await until(lambda: reported)
    running.cancel()
    assert reported == ["slots of service-pools that nothing leads to"]
    pool = names.service_key(CLUSTER_IP, 6, 80)
    assert reported.items == [
        ElementItem(names.SERVICE_POOLS, pool + index_bytes(n)) for n in range(2)
    ]


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace", "closing", "nothing_is_listed")
@pytest.mark.parametrize("family", Family)
async def test_a_restart_by_key_writes_nothing(family: Family) -> None:
    """On a real kernel, with every kind of service."""
    assert await everything(family).sync() > 0
    again = everything(family)
    await again.read()
    assert await again.apply() == 0
