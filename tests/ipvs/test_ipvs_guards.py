"""Lists of sources in this mode: three sets and two rules, for any number of Services."""

from __future__ import annotations

import pytest
from tests.ipvs.test_ipvs_engine import Proxy
from tests.support.builders import endpoint, node, plan, plans, service

from kubeproxy.facts.service import ServiceFacts
from kubeproxy.kernel.ipset.wire import Entry
from kubeproxy.modes.base import OUTSIDE_SOURCE_RANGES, REFUSED_BY_ANNOTATION
from kubeproxy.modes.ipvs.describe import describe
from kubeproxy.modes.ipvs.names import SetName
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.render import render
from kubeproxy.modes.ipvs.rules.refused import refused_by_out_filter, refused_in_set
from kubeproxy.plan.frontends import Frontends

POD = endpoint("10.244.1.1", 8080)
NEW = "-m conntrack --ctstate NEW"


def lines(facts: ServiceFacts, options: Options | None = None, pods: object = (POD,)) -> list[str]:
    made = plan(facts, pods, node())  # type: ignore[arg-type]
    return describe({made.id: render(made, node(), options or Options())}).splitlines()


def starting(found: list[str], head: str) -> list[str]:
    return [line.removeprefix(head) for line in found if line.startswith(head)]


def test_lists_are_entries_of_sets() -> None:
    facts = service(node_port=30080, allow_sources=["10.0.0.0/8"], deny_sources=["10.9.0.0/16"])
    found = lines(facts)
    assert starting(found, "add KUBE-ALLOWED-SOURCES ") == [
        "10.96.0.10,tcp:80,10.0.0.0/8",
        "192.0.2.10,tcp:30080,10.0.0.0/8",
    ]
    assert starting(found, "add KUBE-DENIED-SOURCES ") == [
        "10.96.0.10,tcp:80,10.9.0.0/16",
        "192.0.2.10,tcp:30080,10.9.0.0/16",
    ]
    assert starting(found, "add KUBE-GUARDED ") == ["10.96.0.10,tcp:80", "192.0.2.10,tcp:30080"]


def test_two_rules_drop_what_is_denied_or_not_allowed() -> None:
    found = lines(service(allow_sources=["10.0.0.0/8"], deny_sources=["10.9.0.0/16"]))
    rules = starting(found, "-A KUBE-PROXY-FIREWALL ")
    assert len(rules) == 2
    assert all(rule.startswith(NEW) and rule.endswith(" -j DROP") for rule in rules)
    assert "--match-set KUBE-DENIED-SOURCES dst,dst,src" in rules[0]
    assert "--match-set KUBE-GUARDED dst,dst -m set ! --match-set KUBE-ALLOWED-SOURCES" in rules[1]


def test_what_is_refused_is_counted_where_that_is_asked_for() -> None:
    found = lines(service(deny_sources=["10.9.0.0/16"]), Options(counts_refused=True))
    assert starting(found, "add KUBE-GUARD-REFUSED ") == ["10.96.0.10,tcp:80"]
    counting, dropping = starting(found, "-A KUBE-PROXY-FIREWALL ")[:2]
    assert counting.endswith("--match-set KUBE-GUARD-REFUSED dst,dst")
    assert dropping.endswith("-j DROP")


@pytest.mark.parametrize(
    ("allow", "is_kept_out"), [(["192.0.2.0/24"], False), (["198.51.100.0/24"], True)]
)
def test_the_node_itself_is_kept_out_on_its_way_out(allow: list[str], is_kept_out: bool) -> None:
    """It has the cluster IP as source, and never comes in through INPUT."""
    rules = starting(lines(service(allow_sources=allow)), "-A KUBE-IPVS-OUT-FILTER ")
    assert bool(rules) is is_kept_out


def test_without_endpoints_everyone_is_rejected() -> None:
    assert not starting(lines(service(allow_sources=["10.0.0.0/8"]), pods=()), "add KUBE-GUARDED")


def test_without_lists_no_set_is_there_for_them() -> None:
    assert not [line for line in lines(service(node_port=30080)) if "GUARD" in line]


async def test_sets_come_with_the_first_list_and_go_with_the_last() -> None:
    proxy = Proxy(Options())
    proxy.serve(("10.244.1.1", 8080))
    await proxy.round()
    assert "KUBE-GUARDED" not in proxy.tables.ipset.sets
    facts = service(allow_sources=["10.0.0.0/8"])
    proxy.engine.pipeline.store.set_service(facts)
    await proxy.round()
    assert proxy.tables.ipset.sets["KUBE-GUARDED"][1] == {Entry("10.96.0.10", 6, 80)}
    assert "KUBE-ALLOWED-SOURCES" in await proxy.xtables.save("filter")
    assert not (await proxy.round(full=True)).drifted_items
    proxy.engine.pipeline.store.set_service(service())
    await proxy.round()
    assert "KUBE-GUARDED" not in proxy.tables.ipset.sets
    assert "KUBE-ALLOWED-SOURCES" not in await proxy.xtables.save("filter")
    assert not (await proxy.round(full=True)).drifted_items


def test_counts_have_the_reason_that_kept_the_client_out() -> None:
    guarded = service("shop/guarded", cluster_ip="10.96.0.1", allow_sources=["198.51.100.0/24"])
    closed = service(
        "shop/closed", load_balancer_ips=["203.0.113.7"], source_ranges=["198.51.100.0/24"]
    )
    frontends = Frontends(node(), (*plans(guarded, [POD]), *plans(closed, [POD])))
    (found,) = refused_in_set(SetName.GUARD_REFUSED, {Entry("10.96.0.1", 6, 80): 3}, frontends)
    assert (found.owner.name, found.reason, found.packets) == ("guarded", REFUSED_BY_ANNOTATION, 3)
    rule = (
        "[{}:60] -A KUBE-IPVS-OUT-FILTER -s {}/32 -m ipvs --vproto 6 --vaddr {} --vport 80 -j DROP"
    )
    saved = "\n".join(
        rule.format(count, ip, ip) for count, ip in ((1, "10.96.0.1"), (2, "203.0.113.7"))
    )
    assert [each.reason for each in refused_by_out_filter(saved, frontends)] == [
        REFUSED_BY_ANNOTATION,
        OUTSIDE_SOURCE_RANGES,
    ]
