"""Single elements that another process changed: found by key, and repaired alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.fake_nft import FakeNft
from tests.support.nft_kit import everything, lines, ruleset, run
from tests.support.worlds import World, worlds

from kubeproxy.facts.address import pack_address
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import KEYS_PER_CALL, Nftables
from kubeproxy.modes.base import SCAFFOLD, Owner
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.transactions import compile_transactions
from kubeproxy.modes.nftables.compile.units import index_bytes, pool_templates
from kubeproxy.modes.nftables.items import ElementItem, Item, Pool, PoolItem, Value
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import render
from kubeproxy.modes.nftables.scaffold import known_set_specs, scaffold
from kubeproxy.modes.nftables.sinks.elements import find_elements
from kubeproxy.modes.nftables.sinks.reading import read_table
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.ledger import Ledger

OPTIONS = Options()


def programmed(world: World) -> tuple[FakeNft, Ledger[Owner, Item, Value]]:
    """A kernel and a ledger that agree."""
    layout = layout_of(world.node.family)
    kernel, ledger = FakeNft(layout.number), Ledger[Owner, Item, Value]()
    ledger.put(SCAFFOLD, scaffold(world.node, OPTIONS))
    for plan in world.plans():
        ledger.put(plan.id, render(plan, world.node, OPTIONS))
    for batch in compile_transactions(layout, ledger.difference()):
        assert kernel.commit(batch.payload) == ()
        ledger.confirm(batch.changes)
    return kernel, ledger


def present(kernel: FakeNft, family: Family) -> Iterator[ElementItem]:
    """Every element there is, slots one by one."""
    for name in sorted(known_set_specs(layout_of(family))):
        if any(found.name == name for found in kernel.sets(names.TABLE_NAME)):
            for element in kernel.elements(names.TABLE_NAME, name):
                yield ElementItem(name, element.key)


def change(kernel: FakeNft, kind: int, name: str, element: bytes) -> None:
    transaction = nft.Transaction(kernel.family)
    for body in nft.elements_bodies(names.TABLE_NAME, name, [element]):
        transaction.add(kind, body, "foreign", nft.CREATE)
    assert kernel.commit(transaction) == ()


def stray_slot(family: Family, cluster_ip: str, index: int) -> tuple[ElementItem, bytes]:
    key = names.service_key(cluster_ip, 6, 80) + index_bytes(index)
    template = pool_templates(layout_of(family))[names.SERVICE_POOLS]
    data = b"\7" * (layout_of(family).address_length + 4)
    return ElementItem(names.SERVICE_POOLS, key), template.head + key + template.middle + data


@given(st.sampled_from(tuple(Family)).flatmap(lambda family: worlds(family, "nftables")), st.data())
@settings(max_examples=60)
def test_touched_elements_read_by_key_are_what_a_full_read_finds(
    world: World, data: st.DataObject
) -> None:
    """Whatever was deleted or added, slots with gaps included, both ways lead to one difference."""
    family = world.node.family
    kernel, ledger = programmed(world)
    there = list(present(kernel, family))
    touched = data.draw(st.lists(st.sampled_from(there), max_size=6, unique=True)) if there else []
    for item in touched:
        change(kernel, nft.DELSETELEM, item.set, nft.element(item.key))
    indexes = st.lists(st.sampled_from([0, 1, 5, 9, 17, 70, 65_535, 65_536]), unique=True)
    cluster_ip = data.draw(st.sampled_from([p.cluster_ip for p in world.plans()] or ["10.0.0.1"]))
    for index in data.draw(indexes) if family is Family.IPV4 else ():
        item, packed = stray_slot(family, cluster_ip, index)
        if item not in there or item in touched:
            change(kernel, nft.NEWSETELEM, item.set, packed)
            touched.append(item)
    found = find_elements(kernel, layout_of(family), touched)
    assert found is None or ledger.resync_some(found) >= 0
    by_key = sorted(map(repr, ledger.difference()))
    ledger.resync(read_table(kernel, layout_of(family)).items)
    everything_read = sorted(map(repr, ledger.difference()))
    assert found is None or by_key == everything_read


def test_slots_beyond_all_bounds_are_no_questions_without_end() -> None:
    """Another process may add slot 65,535 to many pools: then listing is quicker."""
    kernel = FakeNft()
    items = [stray_slot(Family.IPV4, f"10.0.0.{n}", 65_535)[0] for n in range(3)]
    assert find_elements(kernel, layout_of(Family.IPV4), items) is None


class Repaired:
    """An engine over a fake kernel of some size, from which one slot gets lost."""

    def __init__(self, services: int) -> None:
        self.kernel = FakeNft()
        self.engine = Engine(
            NftablesBackend(Family.IPV4, OPTIONS, lambda _: self.kernel),
            node(),
            clock=FakeClock(),
            listener=RecordedRounds(),
        )
        store = self.engine.pipeline.store
        for number in range(services):
            name = f"default/svc-{number}"
            store.set_service(service(name, cluster_ip=f"10.96.{number >> 8}.{number & 255}"))
            pods = [endpoint(f"10.244.{number & 255}.{n}") for n in range(1, 6)]
            store.set_slice(endpoint_slice(name, pods, slice_name=f"s{number}"))

    async def lose_a_slot(self) -> tuple[int, ...]:
        """Return what the repair took: lists and keys read, and items and bytes written."""
        kernel = self.kernel
        assert (await self.engine.round()).is_success
        key = names.service_key("10.96.0.7", 6, 80) + index_bytes(2)
        change(kernel, nft.DELSETELEM, names.SERVICE_POOLS, nft.element(key))
        lists, keys = len(kernel.lists_read), kernel.keys_asked
        self.engine.report_drift("element deleted", [ElementItem(names.SERVICE_POOLS, key)])
        report = await self.engine.round()
        assert report.is_success and not report.is_full
        assert report.drifted_items == 1 and report.drift == "element deleted"
        read = (len(kernel.lists_read) - lists, kernel.keys_asked - keys)
        return *read, report.changes, report.bytes_sent


async def test_the_loss_of_one_element_costs_the_same_at_any_size() -> None:
    """Nothing is listed, a dozen keys are asked for, and one slot is written."""
    small, large = Repaired(10), Repaired(300)
    cost = await small.lose_a_slot()
    assert cost == await large.lose_a_slot()
    lists, keys, changes, _ = cost
    assert (lists, changes) == (0, 1) and keys < 16
    assert read_table(large.kernel, layout_of(Family.IPV4)).items == {
        item: value
        for owner in large.engine.pipeline.ledger.owners()
        for item, value in large.engine.pipeline.ledger.fragment(owner).items()
    }


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace", "closing")
class TestKernel:
    """The same against a real kernel."""

    async def test_keys_are_found_up_to_the_first_that_is_missing(self) -> None:
        """Also when there are more runs than one call holds, and for a set that is not there."""
        run("nft add table ip t; nft add set ip t s '{ type ipv4_addr; }'")
        members = [f"10.0.{n >> 8}.{n & 255}" for n in range(300) if n != 100]
        run("nft -f -", f"add element ip t s {{ {', '.join(members)} }}\n")
        addresses = (f"10.0.{n >> 8}.{n & 255}" for n in range(301))
        keys = [nft.key_element(pack_address(address)) for address in addresses]
        starts = range(0, 301, KEYS_PER_CALL)
        with Nftables(2) as nftables:
            runs = [keys[start : start + KEYS_PER_CALL] for start in starts]
            found = nftables.element_runs("t", "s", runs)
            single = nftables.element_runs("t", "s", [[key] for key in keys])
            nothing = nftables.element_runs("t", "other", runs[-1:])
        counted = [len(run) for run in found]
        assert counted == [64, 36, 64, 64, 44]
        assert [len(run) for run in single] == [int(n not in (100, 300)) for n in range(301)]
        assert nothing == [[]]

    async def test_a_gap_in_a_long_pool_is_found(self) -> None:
        """And nothing else of the table is read."""
        proxy = everything(Family.IPV4)
        pods = [endpoint(f"10.244.9.{n}") for n in range(1, 151)]
        proxy.want(service("default/long", cluster_ip="10.96.0.77"), pods)
        await proxy.sync()
        before = ruleset()
        pool = names.service_key("10.96.0.77", 6, 80)
        spelled = [f"10.96.0.77 . tcp . 80 . 0x{n:x}" for n in (0, 3, 149)]
        run(f"nft delete element ip kube-proxy service-pools {{ {', '.join(spelled)} }}")
        touched = [ElementItem(names.SERVICE_POOLS, pool + index_bytes(n)) for n in (0, 3, 149)]
        found = await proxy.backend.read_some(touched)
        assert found is not None
        value = found[PoolItem(names.SERVICE_POOLS, pool)]
        assert isinstance(value, Pool) and len(value.slots) == 149 * 8
        assert proxy.ledger.resync_some(found) == 1
        assert await proxy.apply() == 1
        assert lines(ruleset()) == lines(before)
