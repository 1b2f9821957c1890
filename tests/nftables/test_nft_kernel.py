"""The mode against a real kernel, in network namespaces of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest
from msgspec.structs import replace
from tests.support.builders import node, port, service
from tests.support.engine_kit import RecordedDrifts
from tests.support.nft_kit import (
    Proxy,
    everything,
    former_layout,
    install,
    lines,
    listed,
    pods,
    ruleset,
    run,
)
from tests.support.waiting import until
from tests.support.worlds import address

from kubeproxy.errors import Drifted, KernelError, Rejected
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables
from kubeproxy.modes.base import SCAFFOLD
from kubeproxy.modes.nftables.items import SetSpec
from kubeproxy.modes.nftables.mode import MODE
from kubeproxy.modes.nftables.names import TABLE_NAME, layout_of
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.sinks import monitor
from kubeproxy.modes.nftables.sinks.reading import read_table

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("namespace", "closing")]
families = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)


@families
async def test_what_is_written_is_read_back_equal(family: Family) -> None:
    """A restart finds nothing to do: no flush, no lost connection, affinity kept."""
    first = everything(family)
    await first.sync()
    second = everything(family)
    assert await second.sync() == 0


@families
async def test_what_nft_loads_from_its_printout_is_ours(family: Family) -> None:
    """The proxy that runs, and one that starts, find nothing to do; and nft prints the same."""
    proxy = everything(family)
    await proxy.sync()
    listing = ruleset()
    run("nft -f -", f"flush ruleset\n{listing}")
    assert ruleset() == listing
    assert await proxy.sync() == 0
    assert await everything(family).sync() == 0


@families
async def test_a_map_that_nft_cannot_print_is_replaced(family: Family) -> None:
    """nft makes such when it loads JSON: the types of a pool map are not in there."""
    proxy = everything(family)
    await proxy.sync()
    listing, layout = lines(ruleset()), layout_of(family)
    with Nftables(layout.number) as nftables:
        held = read_table(nftables, layout).items
        run("nft flush ruleset")
        bare = {k: replace(v, typeof=b"") if isinstance(v, SetSpec) else v for k, v in held.items()}
        install(nftables, layout, bare)
    assert await proxy.sync() > 0
    assert lines(ruleset()) == listing
    assert await proxy.sync() == 0


@families
async def test_a_table_of_the_former_layout_is_taken_over(family: Family) -> None:
    """Its maps go, its sets stay with the clients they hold, and what nft prints loads."""
    proxy = everything(family)
    await proxy.sync()
    listing, layout = lines(ruleset()), layout_of(family)
    sticky = next(s for s in listing if s.startswith("set affinity-")).split()[1]
    client = address(family, "outside", 9)
    with Nftables(layout.number) as nftables:
        held = read_table(nftables, layout).items
        run("nft flush ruleset")
        install(nftables, layout, former_layout(held))
    where = f"{'ip' if family is Family.IPV4 else 'ip6'} kube-proxy {sticky}"
    run(f"nft add element {where} '{{ {client} timeout 1h }}'")
    assert await everything(family).sync() > 0
    assert client in run(f"nft list set {where}")
    run(f"nft flush set {where}")
    assert lines(ruleset()) == listing
    run("nft -f -", f"flush ruleset\n{ruleset()}")


@families
async def test_nft_prints_the_table_as_we_describe_it(family: Family) -> None:
    """`nft list` shows, rule for rule and element for element, what `kpctl render` says."""
    proxy = everything(family)
    await proxy.sync()
    name = "ip" if family is Family.IPV4 else "ip6"
    assert lines(listed(f"table {name} kube-proxy")) == lines(proxy.text())
    assert json.loads(run("nft -j list ruleset"))["nftables"]


async def test_a_removed_service_leaves_nothing_behind() -> None:
    """All chains, sets and elements of services go with them."""
    empty = Proxy(Family.IPV4)
    await empty.sync()
    before = ruleset()
    full = everything(Family.IPV4)
    await full.sync()
    again = Proxy(Family.IPV4)
    await again.sync()
    assert lines(ruleset()) == lines(before)


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
        "nft delete element ip kube-proxy service-pools { 10.96.0.1 . tcp . 80 . 0x1 }",
        "nft add element ip kube-proxy service-pools { 10.96.0.1 . tcp . 80 . 0x7 : 10.9.9.9 . 1 }",
        "nft add element ip kube-proxy service-pools "
        "{ 10.96.0.1 . tcp . 80 . 0x70000000 : 10.9.9.9 . 1 }",
        "nft add element ip kube-proxy cluster-ips { 10.96.0.99 }",
        "nft add chain ip kube-proxy foreign",
        "nft add set ip kube-proxy foreign '{ type ipv4_addr; }'",
    ],
)
async def test_damage_is_noticed_and_repaired(damage: str) -> None:
    """Whatever another process does to the table, one re-read repairs it: of elements or of all."""
    proxy = everything(Family.IPV4)
    await proxy.sync()
    before = ruleset()
    reported = RecordedDrifts()
    watching = asyncio.create_task(proxy.backend.watch(reported))
    await asyncio.sleep(0)
    run(damage)
    await until(lambda: reported)
    items = reported.items
    assert (items is not None) is (" element " in damage or "flush map" in damage)
    if items is None:
        assert await proxy.read() > 0
    else:
        found = await proxy.backend.read_some(items)
        assert found is not None and proxy.ledger.resync_some(found) > 0
    await proxy.apply()
    watching.cancel()
    assert lines(ruleset()) == lines(before)


@families
async def test_who_changed_the_table_is_named(family: Family) -> None:
    """The kernel says which process committed. One that changed something else is not named."""
    proxy = everything(family)
    await proxy.sync()
    reported = RecordedDrifts()
    watching = asyncio.create_task(proxy.backend.watch(reported))
    await asyncio.sleep(0)
    run("nft add table ip other")
    table = "ip6" if family is Family.IPV6 else "ip"
    with subprocess.Popen(["nft", "flush", "chain", table, "kube-proxy", "services"]) as culprit:
        culprit.wait()
    await until(lambda: reported)
    watching.cancel()
    assert reported[0].endswith(f"rule deleted (services) by nft (process {culprit.pid})")


async def test_our_own_changes_and_foreign_tables_are_no_drift() -> None:
    """Only changes that other processes make to our table count."""
    proxy = Proxy(Family.IPV4)
    await proxy.sync()
    reported = RecordedDrifts()
    watching = asyncio.create_task(proxy.backend.watch(reported))
    await asyncio.sleep(0)
    proxy.want(service(), pods(Family.IPV4, 1, 2))
    await proxy.apply()
    run("nft add table ip other; nft add chain ip other somewhere")
    run("nft add table ip6 kube-proxy")
    # What is noticed now proves that everything before it was seen.
    run("nft add chain ip kube-proxy foreign")
    await until(lambda: reported)
    watching.cancel()
    assert len(reported) == 1 and "foreign" in reported[0]


async def test_the_other_familys_own_changes_are_not_even_read() -> None:
    """They are as many as a cluster has endpoints. The kernel withholds them by their author."""
    watched = monitor.DriftMonitor(layout_of(Family.IPV4))
    reported = RecordedDrifts()
    watching = asyncio.create_task(watched.run(reported))
    await asyncio.sleep(0)
    proxies = [Proxy(Family.IPV4), Proxy(Family.IPV6)]  # opened after the monitor
    for proxy in proxies:
        await proxy.sync()
    # A datagram of each may be read until the authors are known. What is noticed now comes after.
    run("nft add element ip kube-proxy cluster-ips { 10.96.9.8 }")
    await until(lambda: reported)
    before = watched.received
    for family, proxy in zip(Family, proxies, strict=True):
        for number in range(1, 200):
            cluster_ip = address(family, "cluster", number)
            facts = service(f"default/svc-{number}", cluster_ip=cluster_ip)
            proxy.want(facts, pods(family, 1, 2, 3))
        await proxy.apply()
    run("nft add element ip kube-proxy cluster-ips { 10.96.9.9 }")
    await until(lambda: len(reported) == 2)
    watching.cancel()
    watched.close()
    # The new element and its generation, and nothing of a thousand others.
    assert watched.received - before == 2


async def test_a_flush_of_a_big_table_is_one_report() -> None:
    """However many datagrams the kernel takes to tell of it, and even if some are lost."""
    proxy = Proxy(Family.IPV4)
    for number in range(2, 2000):
        cluster_ip = f"10.96.{number >> 8}.{number & 255}"
        facts = service(f"default/svc-{number}", cluster_ip=cluster_ip)
        proxy.want(facts, pods(Family.IPV4, *range(1, 11)))
    await proxy.sync()
    reported = RecordedDrifts()
    watching = asyncio.create_task(proxy.backend.watch(reported))
    await asyncio.sleep(0)
    run("nft flush map ip kube-proxy service-pools")
    run("nft flush ruleset")
    await until(lambda: reported)
    await proxy.sync()
    run("nft add element ip kube-proxy cluster-ips { 10.97.9.9 }")
    await until(lambda: len(reported) == 2)
    watching.cancel()
    assert "table deleted" in reported[0] or "lost" in reported[0]
    assert reported[1].startswith("element added (cluster-ips)")


async def test_a_monitor_that_fails_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor left, for example. What was missed meanwhile is looked for."""
    monkeypatch.setattr(monitor, "WATCH_RETRY_SECONDS", 0.01)
    attempts: list[object] = []

    def open_later() -> monitor.DriftMonitor:
        attempts.append(None)
        if len(attempts) < 3:
            raise KernelError("too many open files")
        return monitor.DriftMonitor(layout_of(Family.IPV4))

    reported = RecordedDrifts()
    watching = asyncio.create_task(monitor.watch_table(open_later, reported))
    await until(lambda: reported)
    run("nft add table ip kube-proxy")
    await until(lambda: len(reported) == 2)
    watching.cancel()
    assert reported[0] == "it was not watched for a while, so anything may have changed"
    assert reported[1].startswith("table added by nft (process ")


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
