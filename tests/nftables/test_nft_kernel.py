"""The mode against a real kernel, in network namespaces of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.support.builders import endpoint, node, plans, port, service
from tests.support.worlds import SERVICE_CIDRS, address

from kubeproxy.errors import Drifted, Rejected
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables
from kubeproxy.modes.base import SCAFFOLD, Owner
from kubeproxy.modes.nftables.items import Item, Value
from kubeproxy.modes.nftables.mode import MODE, NftablesBackend
from kubeproxy.modes.nftables.names import TABLE_NAME, layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.sync.ledger import Ledger

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("namespace")]
families = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)


def run(command: str) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


OPEN: list[NftablesBackend] = []


@pytest.fixture(autouse=True)
async def close_sockets() -> AsyncIterator[None]:
    """Close what a test opened."""
    yield
    while OPEN:
        await OPEN.pop().close()


class Proxy:
    """Ledger and backend, driven as the engine drives them."""

    def __init__(self, family: Family, on: NodeFacts | None = None) -> None:
        self.backend = NftablesBackend(family, Options())
        OPEN.append(self.backend)
        self.node = on or node(family, service_cidrs=[SERVICE_CIDRS[family]])
        self.ledger: Ledger[Owner, Item, Value] = Ledger()
        self.ledger.put(SCAFFOLD, self.backend.scaffold(self.node))

    def want(self, facts: ServiceFacts, endpoints: Sequence[Endpoint] = ()) -> None:
        for plan in plans(facts, endpoints, self.node):
            self.ledger.put(plan.id, self.backend.render(plan, self.node))

    async def read(self) -> int:
        return self.ledger.resync(await self.backend.sinks[0].read())

    async def apply(self) -> int:
        """Bring the kernel to what is wanted; how many transactions it took."""
        sink = self.backend.sinks[0]
        count = 0
        for batch in sink.compile(self.ledger.difference()):
            await sink.apply(batch)
            self.ledger.confirm(batch.changes)
            count += 1
        return count

    async def sync(self) -> int:
        await self.read()
        return await self.apply()

    def text(self) -> str:
        owners = self.ledger.owners()
        return self.backend.describe({owner: self.ledger.fragment(owner) for owner in owners})


def pods(family: Family, *numbers: int) -> list[Endpoint]:
    return [endpoint(address(family, "pod", n), 8080, local=n == 1) for n in numbers]


def everything(family: Family) -> Proxy:
    """Every kind of service at once."""
    proxy = Proxy(family)
    outside = [address(family, "outside", n) for n in range(1, 9)]
    ranges = ["198.51.100.0/25", "0.0.0.0/2"] if family is Family.IPV4 else ["2001:db8::/33"]

    def add(number: int, **options: object) -> None:
        cluster_ip = address(family, "cluster", number)
        facts = service(f"default/svc-{number}", cluster_ip=cluster_ip, **options)  # type: ignore[arg-type]
        proxy.want(facts, pods(family, 1, 2, 3))

    add(1)
    add(2, node_port=30002, external_ips=outside[:1])
    add(3, node_port=30003, load_balancer_ips=outside[1:2], source_ranges=ranges)
    add(4, node_port=30004, load_balancer_ips=outside[2:3], external_local=True)
    add(5, affinity_seconds=60, node_port=30005, external_local=True)
    add(6, internal_local=True, affinity_seconds=30)
    longest = f"{'n' * 63}/{'s' * 63}"
    proxy.want(service(longest, cluster_ip=address(family, "cluster", 8)), pods(family, 1))
    proxy.want(service("default/none", cluster_ip=address(family, "cluster", 7), node_port=30007))
    return proxy


@families
async def test_what_is_written_is_read_back_equal(family: Family) -> None:
    """A restart finds nothing to do: no flush, no lost connection, affinity kept."""
    first = everything(family)
    await first.sync()
    second = everything(family)
    assert await second.sync() == 0


def lines(listing: str) -> list[str]:
    """Rules and elements of a listing, without layout."""
    found = []
    for line in listing.splitlines():
        text = line.strip().removeprefix("elements = {").removesuffix("}").strip().rstrip(",")
        if text and not text.startswith(("type ", "flags ", "size ", "timeout ")):
            found += [text] if " . " in text or ":" in text else text.split(", ")
    return sorted(found)


@families
async def test_nft_prints_the_table_as_we_describe_it(family: Family) -> None:
    """`nft list` shows, rule for rule and element for element, what `kpctl render` says."""
    proxy = everything(family)
    await proxy.sync()
    name = "ip" if family is Family.IPV4 else "ip6"
    assert lines(run(f"nft list table {name} kube-proxy")) == lines(proxy.text())
    assert json.loads(run("nft -j list ruleset"))["nftables"]


async def test_a_removed_service_leaves_nothing_behind() -> None:
    """All chains, sets and elements of services go with them."""
    empty = Proxy(Family.IPV4)
    await empty.sync()
    before = run("nft list ruleset")
    full = everything(Family.IPV4)
    await full.sync()
    again = Proxy(Family.IPV4)
    await again.sync()
    assert lines(run("nft list ruleset")) == lines(before)


async def test_a_deleted_table_is_drift_not_a_bad_service() -> None:
    """A missing table means that nothing we believed is true."""
    proxy = everything(Family.IPV4)
    await proxy.sync()
    run("nft delete table ip kube-proxy")
    proxy.want(service("default/late", cluster_ip="10.96.9.9"), pods(Family.IPV4, 1))
    with pytest.raises(Drifted):
        await proxy.apply()
    await proxy.sync()
    assert "10.96.9.9" in run("nft list table ip kube-proxy")


@pytest.mark.parametrize(
    "damage",
    [
        "nft delete table ip kube-proxy",
        "nft flush ruleset",
        "nft flush chain ip kube-proxy services",
        "nft add rule ip kube-proxy services counter",
        "nft flush map ip kube-proxy service-ips",
        "nft delete element ip kube-proxy service-endpoints { 10.96.0.1 . tcp . 80 . 0x1 }",
        "nft add element ip kube-proxy service-endpoints "
        "{ 10.96.0.1 . tcp . 80 . 0x7 : 10.9.9.9 . 1 }",
        "nft add element ip kube-proxy service-endpoints "
        "{ 10.96.0.1 . tcp . 80 . 0x70000000 : 10.9.9.9 . 1 }",
        "nft add element ip kube-proxy cluster-ips { 10.96.0.99 }",
        "nft add chain ip kube-proxy foreign",
        "nft add set ip kube-proxy foreign '{ type ipv4_addr; }'",
    ],
)
async def test_damage_is_noticed_and_repaired(damage: str) -> None:
    """Whatever another process does to the table, one re-read repairs it."""
    proxy = everything(Family.IPV4)
    await proxy.sync()
    before = run("nft list ruleset")
    reported: list[str] = []
    watching = asyncio.create_task(proxy.backend.watch(reported.append))
    await asyncio.sleep(0)
    run(damage)
    await asyncio.wait_for(_until(reported), 1.0)
    assert await proxy.read() > 0
    await proxy.apply()
    watching.cancel()
    assert lines(run("nft list ruleset")) == lines(before)


async def _until(reported: list[str]) -> None:
    while not reported:
        await asyncio.sleep(0.01)


async def test_our_own_changes_and_foreign_tables_are_no_drift() -> None:
    """Only changes that other processes make to our table count."""
    proxy = Proxy(Family.IPV4)
    await proxy.sync()
    reported: list[str] = []
    watching = asyncio.create_task(proxy.backend.watch(reported.append))
    await asyncio.sleep(0)
    proxy.want(service(), pods(Family.IPV4, 1, 2))
    await proxy.apply()
    run("nft add table ip other; nft add chain ip other somewhere")
    run("nft add table ip6 kube-proxy")
    await asyncio.sleep(0.2)
    watching.cancel()
    assert reported == []


async def test_affinity_survives_a_restart_and_a_change_of_timeout() -> None:
    """Adopting the sets means keeping their members."""
    facts = service(affinity_seconds=600)
    first = Proxy(Family.IPV4)
    first.want(facts, pods(Family.IPV4, 1))
    await first.sync()
    (name,) = [s.name for s in _sets(Family.IPV4) if s.name.startswith("affinity-")]
    run(f"nft add element ip kube-proxy '{name}' '{{ 198.51.100.7 }}'")
    second = Proxy(Family.IPV4)
    second.want(service(affinity_seconds=900), pods(Family.IPV4, 1))
    await second.sync()
    listing = run(f"nft list set ip kube-proxy '{name}'")
    assert "198.51.100.7" in listing
    assert "timeout 15m" in listing


def _sets(family: Family) -> list[nft.SetInfo]:
    with Nftables(layout_of(family).number) as nftables:
        return nftables.sets(TABLE_NAME)


async def test_a_table_with_other_set_types_is_replaced() -> None:
    """What cannot be adopted goes, in the same transaction that brings ours."""
    run("nft add table ip kube-proxy")
    run("nft add set ip kube-proxy cluster-ips '{ type ipv4_addr; flags interval; }'")
    run("nft add chain ip kube-proxy nat-prerouting '{ type filter hook input priority 7; }'")
    proxy = everything(Family.IPV4)
    await proxy.sync()
    assert await everything(Family.IPV4).sync() == 0


async def test_a_base_chain_with_another_priority_is_replaced() -> None:
    """An older version may have hooked elsewhere."""
    run("nft add table ip kube-proxy")
    run("nft add chain ip kube-proxy nat-prerouting '{ type nat hook prerouting priority -90; }'")
    proxy = everything(Family.IPV4)
    await proxy.sync()
    assert await everything(Family.IPV4).sync() == 0


async def test_a_refusal_names_service_and_object() -> None:
    """The kernel's offset leads to the element, the element to its service."""
    proxy = Proxy(Family.IPV4)
    await proxy.sync()
    proxy.want(service("default/web"), pods(Family.IPV4, 1, 2))
    run("nft add element ip kube-proxy cluster-ips { 10.96.0.10 }")
    run("nft add chain ip kube-proxy x")
    run("nft add element ip kube-proxy service-ips '{ 10.96.0.10 . tcp . 80 : goto x }'")
    with pytest.raises(Rejected, match=r"element .* of service-ips of default/web:http/TCP"):
        await proxy.apply()


async def test_a_dry_run_changes_nothing() -> None:
    """Without its end mark a transaction is checked and rolled back."""
    with Nftables(2) as nftables:
        transaction = nft.Transaction(2)
        transaction.add(nft.NEWTABLE, nft.table_body("kube-proxy"), "table", nft.CREATE)
        assert nftables.check(transaction) == ()
        assert nftables.tables() == []
        transaction.add(nft.DELCHAIN, nft.chain_body("kube-proxy", "missing"), "chain missing")
        refused = nftables.check(transaction)
        assert [(r.label, r.position) for r in refused] == [("chain missing", 1)]


async def test_cleanup_removes_both_tables_and_nothing_else() -> None:
    """Twice is as good as once."""
    for family in Family:
        await everything(family).sync()
    run("nft add table ip other")
    assert await MODE.cleanup() == []
    assert await MODE.cleanup() == []
    assert run("nft list tables").split() == ["table", "ip", "other"]


async def test_the_mode_is_supported_here() -> None:
    """The check neither raises nor leaves anything behind."""
    await MODE.check(list(Family), Options())
    assert run("nft list tables") == ""


async def test_node_addresses_and_service_networks_change_at_once() -> None:
    """Both are items like any other: a new fact is one small transaction."""
    cidrs = ["192.0.2.0/24"]
    proxy = Proxy(Family.IPV4, node(node_port_cidrs=cidrs, addresses=["192.0.2.10"]))
    proxy.want(service(ports=[port(node_port=30000)]), pods(Family.IPV4, 1))
    await proxy.sync()
    later = node(
        node_port_cidrs=cidrs,
        addresses=["127.0.0.1", "192.0.2.10", "192.0.2.11", "198.51.100.1"],
        service_cidrs=["10.96.0.0/16"],
    )
    proxy.ledger.put(SCAFFOLD, proxy.backend.scaffold(later))
    await proxy.apply()
    listing = run("nft list set ip kube-proxy nodeport-ips")
    assert "elements = { 192.0.2.10, 192.0.2.11 }" in listing
    assert "ip daddr 10.96.0.0/16 drop" in run("nft list chain ip kube-proxy cluster-ips-check")
