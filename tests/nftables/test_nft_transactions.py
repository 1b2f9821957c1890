"""Order and bounds of transactions, what a refusal names, and that one change costs one change."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, plans, service
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.fake_nft import FakeNft

from kubeproxy.errors import Drifted, Rejected, Unsupported
from kubeproxy.facts.address import pack_address
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import Notification, Transaction
from kubeproxy.modes.base import SCAFFOLD, Batch, Owner
from kubeproxy.modes.nftables.check import require_features, require_kernel
from kubeproxy.modes.nftables.compile.refusals import describe_refusal
from kubeproxy.modes.nftables.compile.transactions import compile_transactions
from kubeproxy.modes.nftables.items import ElementItem, Item, Pool, PoolItem, SetSpec, Value
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.names import layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import render
from kubeproxy.modes.nftables.scaffold import scaffold
from kubeproxy.modes.nftables.sinks import monitor
from kubeproxy.modes.nftables.sinks.elements import join_slots
from kubeproxy.modes.nftables.sinks.reading import is_adoptable, read_table
from kubeproxy.modes.nftables.sinks.table import TableSink
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.ledger import Ledger
from kubeproxy.sync.refused import FIRST_PAUSE_SECONDS

LAYOUT = layout_of(Family.IPV4)
OPTIONS = Options()


class Cluster:
    """A ledger over a fake kernel."""

    def __init__(self, services: int = 0) -> None:
        self.kernel = FakeNft()
        self.sink = TableSink(LAYOUT, lambda _: self.kernel)
        self.ledger: Ledger[Owner, Item, Value] = Ledger()
        self.ledger.put(SCAFFOLD, scaffold(node(), OPTIONS))
        for number in range(services):
            self.set(number, pods(3))
        self.apply()

    def set(self, number: int, endpoints: list[Endpoint], **options: int) -> None:
        facts = service(
            f"default/svc-{number}",
            cluster_ip=f"10.96.{number >> 8}.{number & 255}",
            affinity_seconds=options.get("affinity_seconds", 0),
        )
        for plan in plans(facts, endpoints):
            self.ledger.put(plan.id, render(plan, node(), OPTIONS))

    def batches(self, limit: int = 400_000) -> list[Batch[Transaction]]:
        return list(compile_transactions(LAYOUT, self.ledger.difference(), limit=limit))

    def apply(self) -> list[Batch[Transaction]]:
        batches = self.batches()
        for batch in batches:
            assert self.kernel.commit(batch.payload) == ()
            self.ledger.confirm(batch.changes)
        return batches


def pods(count: int, *, first: int = 1) -> list[Endpoint]:
    return [endpoint(f"10.244.7.{first + number}") for number in range(count)]


@pytest.mark.parametrize(
    ("change", "transactions"), [(pods(3, first=2), 1), (pods(4), 1), (pods(2), 2)]
)
def test_one_changed_endpoint_costs_the_same_in_any_cluster(
    change: list[Endpoint], transactions: int
) -> None:
    """Transactions, messages and bytes do not know how many services there are.

    A removed one takes two: packets may still draw its slot while dispatch moves on.
    """
    costs = []
    for services in (10, 200):
        cluster = Cluster(services)
        cluster.set(100, pods(4))  # the classes of 2 and 4 endpoints exist already
        cluster.set(101, pods(2))
        cluster.set(5, pods(3))
        cluster.apply()
        cluster.set(5, change)
        done = cluster.apply()
        costs.append([(len(b.changes), b.size) for b in done])
    assert costs[0] == costs[1]
    assert len(costs[0]) == transactions


def labels(batches: list[Batch[Transaction]]) -> set[str]:
    found: set[str] = set()
    for batch in batches:
        found.update(batch.payload.labels)
    return found


def test_services_of_common_size_bring_no_rule() -> None:
    """A rule would make the kernel check the whole table again."""
    cluster = Cluster()
    for count in (1, 11, 32, 31):
        cluster.set(1, pods(count))
        assert all(label.startswith("elements of") for label in labels(cluster.apply()))


def test_an_uncommon_class_comes_with_its_first_service_and_goes_with_its_last() -> None:
    """Nothing is left behind to puzzle a reader of the table."""
    cluster = Cluster()
    cluster.set(1, pods(40))
    assert "chain pick-40" in labels(cluster.apply())
    cluster.set(2, pods(40))
    assert "chain pick-40" not in labels(cluster.apply())
    cluster.set(1, pods(3))
    cluster.set(2, pods(3))
    assert "chain pick-40" in labels(cluster.apply())
    assert "pick-40" not in {chain.name for chain in cluster.kernel.chains("kube-proxy")}


def test_only_the_slots_that_differ_are_sent() -> None:
    """The last endpoint of ten replaced: one element out, one in."""
    cluster = Cluster()
    cluster.set(1, pods(10, first=100))
    cluster.apply()
    cluster.set(1, [*pods(9, first=100), endpoint("10.244.9.9")])
    (batch,) = cluster.apply()
    assert batch.payload.labels == ["elements of service-pools"] * 2
    assert batch.size <= 200


def test_transactions_are_bounded() -> None:
    """A cold start is many; none is much bigger than asked."""
    cluster = Cluster()
    for number in range(300):
        cluster.set(number, pods(3))
    sizes = [batch.size for batch in cluster.batches(limit=20_000)]
    assert len(sizes) > 3
    assert max(sizes) < 25_000


def test_a_service_is_never_split() -> None:
    """However small transactions have to be. What nothing leads to yet may come before: chains, and
    pools if they are many."""
    cluster = Cluster()
    cluster.set(1, pods(50), affinity_seconds=60)
    cluster.set(2, pods(50))
    split = {ServiceName("default", "svc-1"): 0, ServiceName("default", "svc-2"): 0}
    for batch in cluster.batches(limit=1):
        items = [c for c in batch.changes if isinstance(c.item, ElementItem)]
        for name in {c.owner.service for c in items if c.owner is not None}:
            split[name] += 1
    assert set(split.values()) == {1}
    cluster.apply()
    cluster.set(2, pods(51))
    kinds = [{type(c.item) for c in batch.changes} for batch in cluster.batches(limit=1)]
    assert {ElementItem, PoolItem} in kinds


def test_new_pools_of_a_start_come_without_dispatch() -> None:
    """The kernel checks all jumps once for each transaction with dispatch: so those are few."""
    cluster = Cluster()
    for number in range(300):
        cluster.set(number, pods(10))
    batches = cluster.batches(limit=20_000)
    with_dispatch = [b for b in batches if "elements of service-ips" in b.payload.labels]
    with_pools = [b for b in batches if "elements of service-pools" in b.payload.labels]
    assert len(with_dispatch) < len(with_pools) / 3
    cluster.apply()
    cluster.set(500, pods(10))
    assert len(cluster.batches(limit=20_000)) == 1


def test_many_elements_are_split_over_messages() -> None:
    """An attribute holds at most 64 KiB."""
    cluster = Cluster()
    cluster.set(1, [endpoint(f"10.{n >> 8}.{n & 255}.1") for n in range(5000)])
    cluster.apply()
    assert len(cluster.kernel.element_lists("kube-proxy", "service-pools")[0]) > 1 << 16


async def test_a_refused_service_is_named() -> None:
    """By its own name, not only by the kernel's error number."""
    cluster = Cluster()
    cluster.set(1, pods(2))
    batches = cluster.batches()
    foreign = Transaction(2)
    body = next(
        nft.elements_bodies(
            "kube-proxy",
            "service-ips",
            [nft.element(bytes.fromhex("0a6000010600000000500000"), _goto("reject-chain"))],
        )
    )
    foreign.add(nft.NEWSETELEM, body, "foreign", nft.CREATE)
    assert cluster.kernel.commit(foreign) == ()
    with pytest.raises(Rejected, match="elements of service-ips"):
        for batch in batches:
            await cluster.sink.apply(batch)


def _goto(chain: str) -> bytes:
    verdict = nft.Verdict(nft.NFT_GOTO, chain)
    return nft.pack_verdict(nft.NFTA_SET_ELEM_DATA, verdict)


async def test_one_bad_service_is_left_out_and_named() -> None:
    """The kernel refuses one; all others are programmed, and the next round tries again."""
    kernel = FakeNft()
    bad = pack_address("10.96.0.7")
    kernel.refuse = lambda message: bad in message.body
    backend = NftablesBackend(Family.IPV4, OPTIONS, lambda _: kernel)
    clock = FakeClock()
    engine = Engine(
        backend,
        node(),
        clock=clock,
        listener=RecordedRounds(),
    )
    for number in range(20):
        name = f"default/svc-{number}"
        engine.pipeline.store.set_service(service(name, cluster_ip=f"10.96.0.{number}"))
        engine.pipeline.store.set_slice(endpoint_slice(name, pods(2), slice_name=f"s{number}"))
    report = await engine.round()
    assert [str(failure.owner) for failure in report.refused] == ["default/svc-7:http/TCP"]
    assert len(kernel.elements("kube-proxy", "service-ips")) == 19
    kernel.refuse = lambda message: False
    clock.advance(FIRST_PAUSE_SECONDS)
    assert (await engine.round()).is_success
    assert len(kernel.elements("kube-proxy", "service-ips")) == 20


def engine_over(kernel: FakeNft) -> Engine:
    return Engine(
        NftablesBackend(Family.IPV4, OPTIONS, lambda _: kernel),
        node(),
        clock=FakeClock(),
        listener=RecordedRounds(),
    )


async def test_slots_that_dispatch_still_uses_stay() -> None:
    """The kernel refuses to move a service to a smaller class, so the bigger one still draws."""
    kernel = FakeNft()
    engine = engine_over(kernel)
    engine.pipeline.store.set_service(service())
    engine.pipeline.store.set_slice(endpoint_slice("default/web", pods(3)))
    assert (await engine.round()).is_success
    kernel.refuse = lambda message: b"service-ips" in message.body
    engine.pipeline.store.set_slice(endpoint_slice("default/web", pods(2)))
    report = await engine.round()
    assert [str(refusal.owner) for refusal in report.refused] == ["default/web:http/TCP"]
    assert len(kernel.elements("kube-proxy", "service-pools")) == 3


class Garbled(FakeNft):
    """nf_tables whose rules cannot be read until the table is replaced, or ever."""

    def __init__(self, *, for_ever: bool) -> None:
        super().__init__()
        self.is_garbled = True
        self._for_ever = for_ever

    def rules(self, table: str) -> list[nft.RuleInfo]:
        if self.is_garbled:
            raise KeyError(nft.NFTA_EXPR_NAME)
        return super().rules(table)

    def commit(self, transaction: nft.Transaction) -> tuple[nft.Refusal, ...]:
        replaces = transaction.labels[:2] == ["table kube-proxy"] * 2
        self.is_garbled = self.is_garbled and (self._for_ever or not replaces)
        return super().commit(transaction)


@pytest.mark.parametrize("for_ever", [False, True])
async def test_a_table_that_cannot_be_read_is_replaced_once(for_ever: bool) -> None:
    """Again and again would be an outage each time: then the round fails, and is tried again."""
    kernel = Garbled(for_ever=for_ever)
    made = Transaction(2)
    made.add(nft.NEWTABLE, nft.table_body("kube-proxy"), "table", nft.CREATE)
    assert kernel.commit(made) == ()
    engine = engine_over(kernel)
    engine.pipeline.store.set_service(service())
    engine.pipeline.store.set_slice(endpoint_slice("default/web", pods(3)))
    assert (await engine.round()).is_success
    commits = kernel.commits
    engine.request(full=True)
    report = await engine.round()
    assert ("cannot be read" in report.error) is for_ever
    assert kernel.commits == commits


async def test_a_missing_table_is_drift() -> None:
    """Then nothing we believed is true, and isolating services would be in vain."""
    cluster = Cluster()
    gone = Transaction(2)
    gone.add(nft.DELTABLE, nft.table_body("kube-proxy"), "table")
    assert cluster.kernel.commit(gone) == ()
    cluster.set(1, pods(1))
    with pytest.raises(Drifted, match="has disappeared"):
        for batch in cluster.batches():
            await cluster.sink.apply(batch)


def test_the_kernels_offset_leads_to_the_element() -> None:
    """Elements of many services share a message, but only one of them was refused."""
    cluster = Cluster()
    for number in range(3):
        cluster.set(number, pods(1))
    (batch,) = [b for b in cluster.batches() if any("/svc-" in str(c) for c in b.changes)][-1:]
    position = batch.payload.labels.index("elements of service-ips")
    second = 16 + 4 + len(nft.elements_reference("kube-proxy", "service-ips")) + 4
    found = set()
    for offset in (second, second + 100, second + 200):
        refusal = nft.Refusal("elements of service-ips", 16, "busy", position, offset)
        found.add(describe_refusal(refusal, batch.payload, batch.changes))
    assert found == {
        f"element 0a60000{n}0600000000500000 of service-ips of default/svc-{n}:http/TCP: busy"
        for n in range(3)
    }


def test_a_hole_left_by_another_process_is_seen() -> None:
    """Zeros stand for what is missing, so that it differs from what is wanted."""
    assert join_slots({0: b"aaaaaaaa", 2: b"cccccccc"}) == Pool(b"aaaaaaaa" + b"\0" * 8 + b"c" * 8)


def test_an_empty_kernel_reads_as_nothing() -> None:
    assert read_table(FakeNft(), LAYOUT).items == {}


def test_sets_of_another_type_cannot_be_adopted() -> None:
    """Nor affinity sets without a timeout; unknown sets merely go."""
    assert is_adoptable(LAYOUT, {"cluster-ips": SetSpec(7, 4), "foreign": SetSpec(99, 1)})
    assert not is_adoptable(LAYOUT, {"cluster-ips": SetSpec(8, 16)})
    assert not is_adoptable(LAYOUT, {"affinity-x": SetSpec(7, 4)})


def test_drift_reports_the_most_important_change_first() -> None:
    """A deleted table matters more than its rules."""
    seen = Counter({(6, "rule deleted (services)"): 3, (0, "table deleted"): 1})
    assert monitor.summary(seen) == "table deleted, 3 × rule deleted (services)"
    many = Counter({(9, f"element added ({n})"): 1 for n in range(7)})
    assert monitor.summary(many).endswith("and 2 more")


def test_a_process_that_goes_on_changing_the_table_is_answered_more_seldom() -> None:
    """Every repair reads the whole table. After a quiet time the next one is at once again."""
    pauses = monitor.Pauses()
    assert pauses.before_report(100.0) == 0.0
    now, waited = 100.0, []
    for _ in range(8):
        waited.append(pauses.before_report(now + 0.1))
        now += 0.1 + waited[-1]
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60]
    assert pauses.before_report(now + 100) == 60.0
    assert pauses.before_report(now + 400) == 0.0


def test_members_of_affinity_sets_are_no_drift() -> None:
    """Packets put them there."""
    assert monitor.is_drift(Notification(2, "kube-proxy", nft.NEWSETELEM, "cluster-ips", False), 2)
    assert not monitor.is_drift(
        Notification(2, "kube-proxy", nft.NEWSETELEM, "affinity-x", False), 2
    )
    assert not monitor.is_drift(Notification(10, "kube-proxy", nft.DELTABLE, "", True), 2)
    assert not monitor.is_drift(Notification(2, "other", nft.DELTABLE, "", True), 2)


@pytest.mark.parametrize("release", ["5.13.0", "6.18.44-fc", "10.0"])
def test_recent_kernels_are_accepted(release: str) -> None:
    require_kernel(release)


@pytest.mark.parametrize("release", ["5.12.19", "4.19.0-27-amd64", "unknown"])
def test_old_kernels_are_refused_in_upstreams_words(release: str) -> None:
    with pytest.raises(Unsupported, match=r"requires kernel 5\.13 or later") as refusal:
        require_kernel(release)
    assert f"this one is {release}: use --proxy-mode=iptables" in str(refusal.value)


def test_features_the_kernel_refuses_are_named_with_their_modules() -> None:
    missing = nft.Refusal("random numbers (nft_numgen)", 2, "No such file or directory", 5, 0)
    other = nft.Refusal("masquerading (nft_masq)", 2, "No such file or directory", 7, 0)
    with pytest.raises(Unsupported, match=r"no .*\(nft_numgen\), .*\(nft_masq\) for nf_tables"):
        require_features((missing, other))
    require_features(())
