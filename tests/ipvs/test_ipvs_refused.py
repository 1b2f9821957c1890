"""Refused packets are counted by service port where that is asked for, and nowhere else."""

from __future__ import annotations

import pytest
from tests.ipvs.test_ipvs_engine import Proxy
from tests.support.builders import endpoint, node, plans, service

from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipset.wire import Entry
from kubeproxy.modes.base import NO_ENDPOINTS, OUTSIDE_SOURCE_RANGES
from kubeproxy.modes.ipvs.describe import describe
from kubeproxy.modes.ipvs.mode import IpvsBackend
from kubeproxy.modes.ipvs.names import SetName
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.render import render
from kubeproxy.modes.ipvs.rules.refused import refused_by_out_filter, refused_in_set
from kubeproxy.plan.frontends import Frontends

COUNTING = Options(counts_refused=True)
NONE = service("shop/none", cluster_ip="10.96.0.1", node_port=30001)
CLOSED = service(
    "shop/closed", load_balancer_ips=["203.0.113.7"], source_ranges=["198.51.100.0/24"]
)
POD = endpoint("10.244.1.5")


def lines(options: Options) -> list[str]:
    here = node()
    plan_of_none, plan_of_closed = *plans(NONE, [], here), *plans(CLOSED, [POD], here)
    found = (render(plan_of_none, here, options), render(plan_of_closed, here, options))
    fragments = dict(zip((plan_of_none.id, plan_of_closed.id), found, strict=True))
    return describe(fragments).splitlines()


def test_what_is_refused_is_in_a_set_that_counts() -> None:
    found = [line for line in lines(COUNTING) if line.startswith("add KUBE-NO-ENDPOINTS")]
    assert found == [
        "add KUBE-NO-ENDPOINTS 10.96.0.1,tcp:80",
        "add KUBE-NO-ENDPOINTS 192.0.2.10,tcp:30001",
    ]
    assert "add KUBE-SOURCE-REFUSED 203.0.113.7,tcp:80" in lines(COUNTING)


def test_a_rule_without_a_target_counts_just_before_the_packet_is_dropped() -> None:
    rules = [line for line in lines(COUNTING) if line.startswith("-A KUBE-SOURCE-RANGES-FIREWALL")]
    assert rules[-1].endswith("--match-set KUBE-SOURCE-REFUSED dst,dst")


def test_without_the_choice_there_is_nothing_to_count() -> None:
    assert not [line for line in lines(Options()) if "REFUSED" in line or "NO-ENDPOINTS" in line]


async def test_a_restart_with_the_other_choice_leaves_nothing_behind() -> None:
    proxy = Proxy(COUNTING)
    proxy.serve()
    await proxy.round()
    assert Entry("10.96.0.10", 6, 80) in proxy.tables.ipset.sets["KUBE-NO-ENDPOINTS"][1]
    assert "KUBE-NO-ENDPOINTS" in await proxy.xtables.save("nat")
    proxy.options = Options()
    proxy.restart()
    proxy.serve()
    await proxy.round()
    assert not set(proxy.tables.ipset.sets) & {"KUBE-NO-ENDPOINTS", "KUBE-SOURCE-REFUSED"}
    assert "KUBE-NO-ENDPOINTS" not in await proxy.xtables.save("nat")
    assert not (await proxy.round(full=True)).drifted_items


async def test_an_endpoint_that_comes_ends_the_counting() -> None:
    proxy = Proxy(COUNTING)
    proxy.serve()
    await proxy.round()
    proxy.serve(("10.244.1.1", 8080))
    await proxy.round()
    assert proxy.tables.ipset.sets["KUBE-NO-ENDPOINTS"][1] == set()


def frontends() -> Frontends:
    return Frontends(node(), (*plans(NONE, []), *plans(CLOSED, [POD])))


@pytest.mark.parametrize(
    "entry", [Entry("10.96.0.1", 6, 80), Entry("192.0.2.10", 6, 30001)], ids=["cluster IP", "node"]
)
def test_an_entry_that_has_counted_names_the_service_port(entry: Entry) -> None:
    (found,) = refused_in_set(SetName.NO_ENDPOINTS, {entry: 3}, frontends())
    assert (found.owner.name, found.action, found.packets) == ("none", "reject", 3)
    assert found.reason == NO_ENDPOINTS


def test_entries_that_count_nothing_or_belong_to_no_service_are_left_out() -> None:
    counted = {Entry("10.96.0.1", 6, 80): 0, Entry("10.96.0.99", 6, 80): 5, Entry("::", 1, 1): 2}
    assert not list(refused_in_set(SetName.NO_ENDPOINTS, counted, frontends()))


def test_what_the_node_itself_may_not_reach_is_counted_by_its_rule() -> None:
    saved = (
        "[4:240] -A KUBE-IPVS-OUT-FILTER -s 203.0.113.7/32 -m ipvs --vproto 6"
        " --vaddr 203.0.113.7 --vport 80 -j DROP\n"
    )
    (found,) = refused_by_out_filter(saved, frontends())
    assert (found.owner.name, found.action, found.packets) == ("closed", "drop", 4)
    assert found.reason == OUTSIDE_SOURCE_RANGES


async def test_without_the_choice_nothing_is_read() -> None:
    assert await IpvsBackend(Family.IPV4, Options()).refused_packets(frontends()) is None
