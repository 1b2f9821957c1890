"""Algorithms and weights in this mode: what is rendered, what a change costs, how it spreads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import repeat

import pytest
from tests.support.builders import endpoint, node, plan, port, service
from tests.support.fake_nft import FakeNft
from tests.support.nft_kit import Proxy
from tests.support.spread_kit import PORT, Receivers, client, receivers
from tests.support.worlds import address

from kpctl.flows.spread import unevenness
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.base import SCAFFOLD, Owner
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.transactions import compile_transactions
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Fragment,
    Item,
    ListenerItem,
    Pool,
    PoolItem,
    Target,
    Value,
)
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import render
from kubeproxy.modes.nftables.rules.text import format_rule
from kubeproxy.modes.nftables.scaffold import scaffold
from kubeproxy.modes.nftables.sinks.relay import Picker
from kubeproxy.sync.ledger import Ledger

OPTIONS = Options()
LAYOUT = layout_of(Family.IPV4)
A = endpoint("10.244.1.1", PORT, local=True)
B = endpoint("10.244.1.2", PORT, local=True)
C = endpoint("10.244.2.3", PORT)
KEY = "ip daddr . meta l4proto . th dport"
HASH = "jhash ip saddr mod {} seed 0x6b756265"
families = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
hashes = pytest.mark.parametrize("algorithm", [Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH])


def rendered(
    algorithm: Algorithm | None = None,
    endpoints: Sequence[Endpoint] = (A, B, C),
    weights: Mapping[str, int] | None = None,
    **kind: object,
) -> Fragment:
    facts = service(algorithm=algorithm, **kind)  # type: ignore[arg-type]
    return render(plan(facts, endpoints, weights=weights), node(), OPTIONS)


def chains(fragment: Fragment) -> dict[str, list[str]]:
    return {
        item.name: [format_rule(rule, LAYOUT) for rule in value.rules]
        for item, value in fragment.items()
        if isinstance(item, ChainItem) and isinstance(value, Chain)
    }


def slots(fragment: Fragment, map_name: str = names.SERVICE_POOLS) -> list[str]:
    """The endpoints of the only pool in a map, slot by slot."""
    (pool,) = (
        value
        for item, value in fragment.items()
        if isinstance(item, PoolItem) and item.map == map_name and isinstance(value, Pool)
    )
    known = {names.slot(each.address, each.port): each.address for each in (A, B, C)}
    width = LAYOUT.address_length + 4
    return [known[pool.slots[n : n + width]] for n in range(0, len(pool.slots), width)]


def dispatch(fragment: Fragment) -> dict[str, str]:
    return {
        item.set: value.verdict.chain
        for item, value in fragment.items()
        if isinstance(item, ElementItem) and isinstance(value, Element) and value.verdict
    }


# --- what is rendered ---


def test_random_is_what_this_mode_does_anyway() -> None:
    assert rendered(Algorithm.RANDOM) == rendered(None)


def test_weights_repeat_slots_and_need_no_chain_of_their_own() -> None:
    found = rendered(weights={A.address: 3, C.address: 2})
    assert dispatch(found) == {"service-ips": "pick-6"}
    assert slots(found) == [A.address] * 3 + [B.address] + [C.address] * 2


def test_a_hash_is_a_class_that_all_services_share() -> None:
    found = rendered(Algorithm.SOURCE_HASH)
    assert chains(found) == {"hash-3": [f"dnat ip to {KEY} . {HASH.format(3)} map @service-pools"]}
    assert slots(found) == [A.address, B.address, C.address]


def test_a_consistent_table_is_a_class_of_its_size() -> None:
    found = rendered(Algorithm.CONSISTENT_HASH)
    assert dispatch(found) == {"service-ips": "hash-1021"}
    assert {count for _, count in Counter(slots(found)).items()} == {340, 341}


def test_hashes_have_every_kind_of_class() -> None:
    cluster = rendered(Algorithm.SOURCE_HASH, node_port=30080, external_ips=["203.0.113.7"])
    assert chains(cluster)["external-3-hash"][-1] == "goto hash-3"
    assert chains(cluster)["nodeport-3-hash"][-1] == "goto nodeport-hash-3"
    local = rendered(Algorithm.SOURCE_HASH, node_port=30080, external_local=True)
    assert chains(local)["nodeport-local-3-2-hash"][-1] == "goto nodeport-hash-local-2"
    assert chains(local)["nodeport-hash-local-2"] == [
        f"dnat ip to meta l4proto . th dport . {HASH.format(2)} map @nodeport-local-pools"
    ]


def test_a_service_in_turn_has_a_counter_of_its_own() -> None:
    found = rendered(Algorithm.ROUND_ROBIN)
    base = names.base_name("default/web/tcp/http")
    assert chains(found) == {
        f"service-{base}": [f"dnat ip to {KEY} . numgen inc mod 3 map @service-pools"]
    }
    assert dispatch(found) == {"service-ips": f"service-{base}"}


def test_a_service_in_turn_keeps_its_policies() -> None:
    """Each pool is in one map, whichever frontend leads there."""
    found = rendered(
        Algorithm.ROUND_ROBIN,
        node_port=30080,
        load_balancer_ips=["203.0.113.9"],
        external_local=True,
        internal_local=True,
    )
    base = names.base_name("default/web/tcp/http")
    own = chains(found)
    assert own[f"external-{base}"][-1] == f"goto local-{base}"
    assert own[f"nodeport-external-{base}"][-1] == f"goto nodeport-local-{base}"
    assert own[f"local-{base}"] == [f"dnat ip to {KEY} . numgen inc mod 2 map @service-local-pools"]
    keys = {item.key for item in found if isinstance(item, PoolItem) if item.map == "service-pools"}
    assert keys == {names.service_key("203.0.113.9", 6, 80)}


def test_turns_of_weights_are_spread() -> None:
    found = rendered(Algorithm.ROUND_ROBIN, (A, B), {A.address: 3, B.address: 2})
    assert slots(found) == [each.address for each in (A, B, A, A, B)]


def test_affinity_goes_on_top_of_the_algorithm() -> None:
    """The client's endpoint first; then one rule for each slot."""
    base = names.base_name("default/web/tcp/http")

    def draws(algorithm: Algorithm | None, weights: Mapping[str, int]) -> list[str]:
        found = rendered(algorithm, (A, B), weights, affinity_seconds=60)
        listed = chains(found)[f"service-{base}"]
        assert all(rule.startswith("ip saddr @affinity-") for rule in listed[:2])
        return [rule.partition(" goto")[0] for rule in listed[2:]]

    heavy = {A.address: 2}
    last = f"goto endpoint-{names.base_name('default/web/tcp/http__10.244.1.2/8080')}"
    assert draws(None, heavy) == ["numgen random mod 3 0", "numgen random mod 2 0", last]
    assert draws(Algorithm.ROUND_ROBIN, {}) == ["numgen inc mod 2 0", last]
    assert draws(Algorithm.SOURCE_HASH, heavy) == [
        f"{HASH.format(3)} 0", f"{HASH.format(3)} 1", last,
    ]  # fmt: skip
    assert len(draws(Algorithm.CONSISTENT_HASH, {})) == 251


def test_node_ports_on_localhost_follow_weights_and_turns() -> None:
    options = Options(localhost_node_ports=True)

    def target(algorithm: Algorithm | None) -> Target:
        facts = service(node_port=30080, algorithm=algorithm)
        found = render(plan(facts, (A, B), weights={A.address: 2}), node(), options)
        value = found[ListenerItem(Protocol.TCP, 30080)]
        assert isinstance(value, Target)
        return value

    a, b = (A.address, PORT), (B.address, PORT)
    assert target(None) == Target((a, a, b))
    assert target(Algorithm.SOURCE_HASH) == Target((a,))
    assert target(Algorithm.ROUND_ROBIN) == Target((a, a, b), is_in_turn=True)
    picker = Picker(target(Algorithm.ROUND_ROBIN))
    assert [picker.pick(0) for _ in range(6)] == [a, a, b, a, a, b]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hash-3", "CLASS_PICK"),
        ("nodeport-hash-local-2", "CLASS_PICK"),
        ("external-3-hash", "CLASS_ENTRY"),
        ("nodeport-3-hash", "CLASS_ENTRY"),
        ("nodeport-local-3-1-hash", "CLASS_ENTRY"),
        ("service-ABCDEFGH-a/b/tcp/c", "SERVICE_POOL"),
        ("nodeport-local-ABCDEFGH-a/b/tcp/c", "SERVICE_POOL"),
        ("nodeport-external-ABCDEFGH-a/b/tcp/c", "SERVICE_ENTRY"),
    ],
)
def test_a_restarted_proxy_knows_these_chains(name: str, kind: str) -> None:
    assert names.chain_kind(name).name == kind


# --- what one change costs ---


class Cluster:
    """A ledger over a fake kernel, which counts the elements that are written."""

    def __init__(self, algorithm: Algorithm | None, others: int) -> None:
        self._algorithm = algorithm
        self._kernel = FakeNft()
        self._ledger: Ledger[Owner, Item, Value] = Ledger()
        self._ledger.put(SCAFFOLD, scaffold(node(), OPTIONS))
        for number in range(1, others + 1):
            self._put(number, pods(3))

    def _put(self, number: int, endpoints: Sequence[Endpoint]) -> None:
        facts = service(
            f"default/svc-{number}", cluster_ip=f"10.96.1.{number}", algorithm=self._algorithm
        )
        found = plan(facts, endpoints)
        self._ledger.put(found.id, render(found, node(), OPTIONS))

    def set(self, endpoints: Sequence[Endpoint]) -> tuple[int, int]:
        """Give the Service these endpoints. Return slots and other items that were written."""
        self._put(0, endpoints)
        written = others = 0
        for batch in compile_transactions(LAYOUT, self._ledger.difference()):
            for change in batch.changes:
                if isinstance(change.item, PoolItem):
                    written += moved(change.old, change.new)
                else:
                    others += 1
            assert self._kernel.commit(batch.payload) == ()
            self._ledger.confirm(batch.changes)
        return written, others


def moved(old: Pool | None, new: Pool | None) -> int:
    """Slots that differ."""
    width = LAYOUT.address_length + 4
    before, after = (b"" if pool is None else pool.slots for pool in (old, new))
    return sum(
        before[n : n + width] != after[n : n + width]
        for n in range(0, max(len(before), len(after)), width)
    )


def pods(count: int, *, first: int = 10) -> list[Endpoint]:
    return [endpoint(f"10.244.7.{first + number}") for number in range(count)]


@pytest.mark.parametrize("others", [1, 40])
@pytest.mark.parametrize(
    ("algorithm", "most"),
    [
        (None, 1),
        (Algorithm.RANDOM, 1),
        (Algorithm.ROUND_ROBIN, 1),
        (Algorithm.SOURCE_HASH, 1),
        # Its own 103 slots, and those that move besides: below 5 % for each of both steps.
        (Algorithm.CONSISTENT_HASH, 103 + 2 * 51),
    ],
)
def test_replacing_one_of_ten_endpoints_writes_only_slots_that_move(
    algorithm: Algorithm | None, most: int, others: int
) -> None:
    """And no chain, however many Services there are."""
    cluster = Cluster(algorithm, others)
    cluster.set(pods(10))
    slots_written, others_written = cluster.set([*pods(9), endpoint("10.244.7.90")])
    assert (1 if algorithm is not Algorithm.CONSISTENT_HASH else 103) <= slots_written <= most
    assert others_written == 0


@pytest.mark.parametrize(
    ("algorithm", "chain_count"),
    [(None, 0), (Algorithm.ROUND_ROBIN, 1), (Algorithm.SOURCE_HASH, 0)],
)
def test_another_service_brings_no_chain_unless_it_counts(
    algorithm: Algorithm | None, chain_count: int
) -> None:
    """Class chains serve all: an element for the cluster IP and one for dispatch remain."""
    cluster = Cluster(algorithm, 3)
    cluster.set(())
    written, others = cluster.set(pods(3))
    assert written == 3
    assert others == 1 + 1 + chain_count  # dispatch, the refusal that ends, chains


# --- in the kernel ---

CONNECTIONS = 3000


@pytest.fixture
def here(namespace: None, closing: None) -> None:
    """The test programs the kernel of a namespace of its own."""


def local_pods(family: Family, count: int) -> list[Endpoint]:
    return [endpoint(address(family, "pod", n), PORT, local=True) for n in range(1, count + 1)]


async def programmed(
    family: Family,
    algorithm: Algorithm | None,
    endpoints: Sequence[Endpoint],
    weights: Mapping[str, int] | None = None,
    **kind: object,
) -> tuple[Proxy, tuple[str, int]]:
    """A proxy that serves a UDP port, and where."""
    proxy = Proxy(family)
    place = address(family, "cluster", 1), 53
    facts = service(
        cluster_ip=place[0],
        ports=[port(53, name="dns", protocol=Protocol.UDP)],
        algorithm=algorithm,
        **kind,  # type: ignore[arg-type]
    )
    proxy.want(facts, endpoints, weights)
    await proxy.sync()
    return proxy, place


def texts(endpoints: Sequence[Endpoint]) -> list[str]:
    return [each.address for each in endpoints]


@pytest.mark.kernel
@families
@pytest.mark.parametrize("weights", [(1, 1, 1), (5, 2, 1)], ids=str)
@pytest.mark.usefixtures("here")
async def test_random_keeps_its_shares(family: Family, weights: tuple[int, ...]) -> None:
    pool = local_pods(family, 3)
    given = dict(zip(texts(pool), weights, strict=True))
    _, place = await programmed(family, None, pool, given)
    with receivers(family, texts(pool)) as found:
        counts = found.spread(place, repeat("", CONNECTIONS))
    assert unevenness(counts, texts(pool), given) == ""


@pytest.mark.kernel
@families
@pytest.mark.usefixtures("here")
async def test_turns_are_exact(family: Family) -> None:
    """Three times round: each endpoint as often as its weight, in the order of slots."""
    pool = local_pods(family, 2)
    given = {pool[0].address: 3, pool[1].address: 2}
    _, place = await programmed(family, Algorithm.ROUND_ROBIN, pool, given)
    with receivers(family, texts(pool)) as found:
        met = [found.whom(place) for _ in range(15)]
    a, b = texts(pool)
    turn = [a, b, a, a, b]
    start = next(n for n in range(5) if met[:5] == turn[n:] + turn[:n])
    assert met == (turn[start:] + turn[:start]) * 3


@pytest.mark.kernel
@pytest.mark.usefixtures("here")
async def test_two_services_in_turn_do_not_share_a_counter() -> None:
    """Used alternately, each still goes through all of its endpoints."""
    family = Family.IPV4
    pool = local_pods(family, 2)
    proxy, place = await programmed(family, Algorithm.ROUND_ROBIN, pool)
    other = service(
        "default/other",
        cluster_ip=address(family, "cluster", 2),
        ports=[port(53, name="dns", protocol=Protocol.UDP)],
        algorithm=Algorithm.ROUND_ROBIN,
    )
    proxy.want(other, pool)
    await proxy.sync()
    with receivers(family, texts(pool)) as found:
        met = [(found.whom(place), found.whom((other.cluster_ip, 53))) for _ in range(4)]
    for number in (0, 1):
        assert len({pair[number] for pair in met[:2]}) == 2


@pytest.mark.kernel
@families
@hashes
@pytest.mark.parametrize("weights", [(1, 1, 1), (5, 2, 1)], ids=str)
@pytest.mark.usefixtures("here")
async def test_hashes_keep_their_shares_over_clients(
    family: Family, algorithm: Algorithm, weights: tuple[int, ...]
) -> None:
    pool = local_pods(family, 3)
    given = dict(zip(texts(pool), weights, strict=True))
    _, place = await programmed(family, algorithm, pool, given)
    with receivers(family, texts(pool)) as found:
        counts = found.spread(place, (client(family, n) for n in range(CONNECTIONS)))
    assert unevenness(counts, texts(pool), given) == ""


def by_client(found: Receivers, place: tuple[str, int], family: Family) -> dict[str, str]:
    return {source: found.whom(place, source) for source in (client(family, n) for n in range(500))}


@pytest.mark.kernel
@families
@hashes
@pytest.mark.usefixtures("here")
async def test_a_client_meets_the_same_endpoint_also_after_a_restart(
    family: Family, algorithm: Algorithm
) -> None:
    pool = local_pods(family, 5)
    _, place = await programmed(family, algorithm, pool)
    with receivers(family, texts(pool)) as found:
        before = by_client(found, place, family)
        assert by_client(found, place, family) == before
        await programmed(family, algorithm, pool)
        assert by_client(found, place, family) == before


@pytest.mark.kernel
@families
@pytest.mark.usefixtures("here")
async def test_few_clients_move_when_an_endpoint_goes_and_all_come_back(family: Family) -> None:
    """Those of the endpoint that goes, and 5 % of the others at most; with source-hash most do."""
    pool = local_pods(family, 5)
    fates: dict[Algorithm, float] = {}
    with receivers(family, texts(pool)) as found:
        for algorithm in (Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH):
            _, place = await programmed(family, algorithm, pool)
            before = by_client(found, place, family)
            await programmed(family, algorithm, pool[1:])
            after = by_client(found, place, family)
            others = [c for c in before if before[c] != pool[0].address]
            fates[algorithm] = sum(before[c] != after[c] for c in others) / len(others)
            await programmed(family, algorithm, pool)
            assert by_client(found, place, family) == before
    assert fates[Algorithm.CONSISTENT_HASH] <= 0.05
    assert fates[Algorithm.SOURCE_HASH] >= 0.3


@pytest.mark.kernel
@families
@pytest.mark.parametrize("algorithm", [None, Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH])
@pytest.mark.usefixtures("here")
async def test_affinity_keeps_the_first_choice_and_its_shares(
    family: Family, algorithm: Algorithm | None
) -> None:
    """Sticky is sticky; first choices of many clients keep the shares of the weights."""
    pool = local_pods(family, 3)
    given = {pool[0].address: 5, pool[1].address: 2}
    _, place = await programmed(family, algorithm, pool, given, affinity_seconds=3600)
    with receivers(family, texts(pool)) as found:
        clients = [client(family, n) for n in range(CONNECTIONS)]
        first = {source: found.whom(place, source) for source in clients}
        again = {source: found.whom(place, source) for source in clients[:200]}
    assert unevenness(Counter(first.values()), texts(pool), given) == ""
    assert all(first[source] == met for source, met in again.items())
