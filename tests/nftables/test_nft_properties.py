"""What must hold for any cluster and any history, on an interpreting fake of nf_tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from tests.support.effort import examples
from tests.support.fake_nft import FakeNft
from tests.support.nft_kit import former_layout, install
from tests.support.worlds import World, sources, worlds

from kpctl.trace.nftables import ItemTracer
from kpctl.trace.packets import Arrival, Ruling, Traced
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.nftables.wire import Transaction
from kubeproxy.modes.base import SCAFFOLD, Batch, Owner
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.transactions import compile_transactions
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    ElementItem,
    Item,
    PoolItem,
    SetItem,
    Value,
)
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import render
from kubeproxy.modes.nftables.rules.refused import COUNTING_SETS
from kubeproxy.modes.nftables.scaffold import scaffold
from kubeproxy.modes.nftables.sinks.reading import read_table
from kubeproxy.plan.types import FrontendKind
from kubeproxy.sync.ledger import Ledger

CHOICES = (Options(), Options(counts_refused=True))
SMALL = 600
"""Bytes of a transaction: small enough to cut these clusters into many."""

WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""These clusters take long to shrink and are small: a counterexample is shown as found."""

families = st.sampled_from(tuple(Family))
pairs = families.flatmap(
    lambda family: st.tuples(worlds(family, "nftables"), worlds(family, "nftables"))
)
histories = families.flatmap(
    lambda family: st.lists(worlds(family, "nftables"), min_size=1, max_size=5)
)


class Proxy:
    """A ledger and a sink over a fake kernel, as the engine drives them."""

    def __init__(self, kernel: FakeNft, family: Family) -> None:
        self.kernel = kernel
        self._layout = layout_of(family)
        self._ledger: Ledger[Owner, Item, Value] = Ledger()
        self._ledger.resync(self.held())

    def held(self) -> Mapping[Item, Value]:
        return read_table(self.kernel, self._layout).items

    def want(self, world: World) -> None:
        plans = {plan.id: plan for plan in world.plans()}
        for owner in self._ledger.owners():
            if owner not in plans:
                self._ledger.remove(owner)
        # A history of clusters is one of restarts with either choice as well.
        options = CHOICES[len(plans) % 2]
        self._ledger.put(SCAFFOLD, scaffold(world.node, options))
        for owner, plan in plans.items():
            self._ledger.put(owner, render(plan, world.node, options))

    def batches(self, limit: int = SMALL) -> list[Batch[Transaction]]:
        return list(compile_transactions(self._layout, self._ledger.difference(), limit=limit))

    def apply(self, batch: Batch[Transaction]) -> None:
        assert self.kernel.commit(batch.payload) == ()
        self._ledger.confirm(batch.changes)

    def sync(self, world: World) -> None:
        self.want(world)
        for batch in self.batches():
            self.apply(batch)

    def wanted(self) -> dict[Item, Value]:
        found: dict[Item, Value] = {}
        for owner in sorted(self._ledger.owners()):
            for item, value in self._ledger.fragment(owner).items():
                found.setdefault(item, value)
        return found


def fresh(world: World) -> Mapping[Item, Value]:
    """What a proxy that has just started on an empty kernel installs."""
    proxy = Proxy(FakeNft(layout_of(world.node.family).number), world.node.family)
    proxy.sync(world)
    return proxy.held()


@given(histories)
@settings(max_examples=examples(30), phases=WITHOUT_SHRINKING)
def test_any_history_ends_like_a_fresh_start(history: Sequence[World]) -> None:
    """The kernel holds what the last cluster calls for, and nothing else."""
    proxy = Proxy(FakeNft(), history[0].node.family)
    for world in history:
        proxy.sync(world)
        assert proxy.held() == proxy.wanted()
    assert proxy.held() == fresh(history[-1])


@given(pairs, st.integers(0, 30))
@settings(max_examples=examples(30), phases=WITHOUT_SHRINKING)
def test_a_cut_after_any_batch_and_a_restart_converge(pair: tuple[World, World], cut: int) -> None:
    """A proxy that dies between two transactions is replaced by one that adopts and finishes."""
    before, after = pair
    kernel = FakeNft()
    proxy = Proxy(kernel, before.node.family)
    proxy.sync(before)
    proxy.want(after)
    for batch in proxy.batches()[:cut]:
        proxy.apply(batch)
    successor = Proxy(kernel, before.node.family)
    successor.sync(after)
    assert successor.held() == fresh(after)


@given(histories)
@settings(max_examples=examples(15), phases=WITHOUT_SHRINKING)
def test_a_restart_on_the_same_cluster_writes_nothing(history: Sequence[World]) -> None:
    """Adopting means that no connection can notice the restart."""
    world = history[-1]
    kernel = FakeNft()
    Proxy(kernel, world.node.family).sync(world)
    successor = Proxy(kernel, world.node.family)
    successor.want(world)
    assert successor.batches() == []


def arrivals(world: World) -> list[Arrival]:
    """New connections to every frontend, from every kind of client."""
    family = world.node.family
    found = []
    for plan in world.plans():
        for frontend in plan.frontends:
            is_node_port = frontend.kind is FrontendKind.NODE_PORT
            to = world.node.ip if is_node_port else frontend.address
            for source, interface in sources(family):
                found.append(
                    Arrival(family, plan.id.protocol, source, to, frontend.port, interface)
                )
    return found


def fates(items: Mapping[Item, Value], world: World, asked: Sequence[Arrival]) -> list[Traced]:
    tracer = ItemTracer(items, world.node)
    return [tracer.trace(arrival) for arrival in asked]


@given(pairs)
@settings(max_examples=examples(12), phases=WITHOUT_SHRINKING)
def test_no_packet_meets_a_half_built_service(pair: tuple[World, World]) -> None:
    """Between any two transactions a connection fares as before the change, or as after it."""
    before, after = pair[0], World(pair[0].node, pair[1].services)
    proxy = Proxy(FakeNft(), before.node.family)
    proxy.sync(before)
    asked = list(dict.fromkeys((*arrivals(before), *arrivals(after))))
    old = fates(proxy.held(), before, asked)
    new = fates(fresh(after), after, asked)
    proxy.want(after)
    for batch in proxy.batches():
        proxy.apply(batch)
        for arrival, was, will_be, now in zip(
            asked, old, new, fates(proxy.held(), after, asked), strict=True
        ):
            assert now in (was, will_be), arrival


LOOKED_UP = {
    names.FIREWALL_IPS: 0,
    names.SERVICE_IPS: 1,
    names.SERVICE_NODE_PORTS: 1,
    names.NODE_PORT_IPS: 1,
    names.ADMITTED_SERVICES: 2,
    names.ADMITTED_NODE_PORTS: 2,
    **dict.fromkeys(names.POOL_MAPS, 3),
    names.NO_ENDPOINT_SERVICES: 4,
    names.NO_ENDPOINT_NODE_PORTS: 4,
    names.CLUSTER_IPS: 4,
    **{counting.name: 5 for counting in COUNTING_SETS},
    names.HAIRPIN: 5,
}
"""The order in which a packet looks things up."""


class Moment(Struct, frozen=True):
    """A transaction takes effect before this look-up of a packet.

    Each hook keeps the rules it began with, for which a chain that is new is empty.
    """

    lookup: int
    in_translation: bool
    """Had the packet entered the chains that translate?"""


MOMENTS = [
    Moment(0, False),
    Moment(1, False),
    *(Moment(lookup, True) for lookup in (1, 2, 3, 4)),
]


def seen_under_way(
    before: Mapping[Item, Value], after: Mapping[Item, Value], moment: Moment
) -> dict[Item, Value]:
    """What a packet meets if a transaction takes effect while it is under way."""
    found: dict[Item, Value] = {i: v for i, v in before.items() if isinstance(i, SetItem)}
    for item, value in (*before.items(), *after.items()):
        match item, value:
            case ChainItem(name), Chain(kind, _, hook):
                is_kept = moment.in_translation or name.startswith(names.FIREWALL_CHAIN_PREFIX)
                held = before.get(item, Chain(kind, (), hook)) if is_kept else after.get(item)
            case (ElementItem(name), _) | (PoolItem(name), _):
                held = (before if LOOKED_UP[name] < moment.lookup else after).get(item)
            case _:
                held = value
        if held is not None:
            found[item] = held
    return found


def endpoints_by_port(*of: World) -> dict[tuple[Protocol, int], set[tuple[str, int]]]:
    """Endpoints, old and new, of all service ports with a frontend on a port, old or new.

    Several may claim the same one. A frontend that comes in while its service port loses an
    endpoint may lead one packet there, as the frontends did that were there before.
    """
    plans = [plan for world in of for plan in world.plans()]
    serving: dict[Owner, set[tuple[str, int]]] = {}
    for plan in plans:
        endpoints = (*plan.cluster.endpoints, *plan.local.endpoints)
        serving.setdefault(plan.id, set()).update((e.address, e.port) for e in endpoints)
    found: dict[tuple[Protocol, int], set[tuple[str, int]]] = {}
    for plan in plans:
        for frontend in plan.frontends:
            found.setdefault((plan.id.protocol, frontend.port), set()).update(serving[plan.id])
    return found


def by_former_lists(before: World, after: World, arrival: Arrival) -> set[Ruling]:
    """What the lists of before do with a source, of service ports that now have a frontend here.

    A packet that is led to a new frontend by a new dispatch element meets the rules of before, and
    so the list that this service port had for its other frontends.
    """
    serving = {
        plan.id
        for plan in after.plans()
        if plan.id.protocol is arrival.protocol
        and any(frontend.port == arrival.port for frontend in plan.frontends)
    }
    guards = (plan.guard for plan in before.plans() if plan.id in serving and plan.guard)
    return {Ruling.FORWARD if g.admits(arrival.source) else Ruling.DROP for g in guards}


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
@given(pair=pairs)
@settings(max_examples=examples(4), phases=WITHOUT_SHRINKING)
def test_no_packet_under_way_falls_between_two_transactions(
    moment: Moment, pair: tuple[World, World]
) -> None:
    """A class that was read draws no slot that is gone, and no dispatch leads to an empty chain."""
    before, after = pair[0], World(pair[0].node, pair[1].services)
    proxy = Proxy(FakeNft(), before.node.family)
    proxy.sync(before)
    asked = list(dict.fromkeys((*arrivals(before), *arrivals(after))))
    old = fates(proxy.held(), before, asked)
    new = fates(fresh(after), after, asked)
    serving = endpoints_by_port(before, after)
    proxy.want(after)
    for batch in proxy.batches():
        held = proxy.held()
        proxy.apply(batch)
        if batch.payload.after_readers:
            continue  # those that could notice are waited for
        mixed = seen_under_way(held, proxy.held(), moment)
        for arrival, was, will_be, now in zip(
            asked, old, new, fates(mixed, after, asked), strict=True
        ):
            allowed = {was.ruling, will_be.ruling}
            if was.ruling is not Ruling.FORWARD:
                # One packet more gets no service, in whatever way.
                allowed |= {Ruling.REJECT, Ruling.DROP}
            if moment.in_translation:
                allowed |= by_former_lists(before, after, arrival)
            assert now.ruling in allowed, arrival
            assert now.endpoints <= serving.get((arrival.protocol, arrival.port), set()), arrival


@given(pairs)
@settings(max_examples=examples(6), phases=WITHOUT_SHRINKING)
def test_a_table_of_the_former_layout_is_replaced_without_a_gap(pair: tuple[World, World]) -> None:
    """New maps are filled before the first chain uses them, old ones go when none does."""
    world, _ = pair
    layout = layout_of(world.node.family)
    asked, expected = arrivals(world), fates(fresh(world), world, arrivals(world))
    kernel = FakeNft()
    former = former_layout(fresh(world))
    install(kernel, layout, former)
    old_pools: dict[Item, Value] = {i: v for i, v in former.items() if isinstance(i, PoolItem)}
    proxy = Proxy(kernel, world.node.family)
    proxy.want(world)
    for batch in proxy.batches():
        proxy.apply(batch)
        assert fates({**old_pools, **proxy.held()}, world, asked) == expected
    assert proxy.held() == fresh(world)


@given(pairs)
@settings(max_examples=examples(15), phases=WITHOUT_SHRINKING)
def test_removing_services_leaves_what_the_others_alone_want(pair: tuple[World, World]) -> None:
    """Nothing of a removed service stays behind, shared or not."""
    world, _ = pair
    some = World(world.node, world.services[: len(world.services) // 2])
    proxy = Proxy(FakeNft(), world.node.family)
    proxy.sync(world)
    proxy.sync(some)
    assert proxy.held() == fresh(some)
