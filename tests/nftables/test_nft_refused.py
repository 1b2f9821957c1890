"""Refused packets are counted by service port where that is asked for, and nowhere else."""

from __future__ import annotations

import socket

import pytest
from tests.support.builders import endpoint, node, plans, service
from tests.support.nft_kit import Proxy, everything, lines, ruleset, run
from tests.support.worlds import address

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.base import (
    NO_ENDPOINTS,
    NO_LOCAL_ENDPOINTS,
    OUTSIDE_SOURCE_RANGES,
    REFUSED_BY_ANNOTATION,
)
from kubeproxy.modes.nftables.names import TABLE_NAME
from kubeproxy.modes.nftables.options import Options
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.types import ServicePlan

COUNTING = Options(counts_refused=True)
families = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)


def refusing(family: Family) -> tuple[Proxy, Frontends]:
    """A proxy of which a Service has no endpoints, one no local ones, and one source ranges."""
    here = address(family, "outside", 1)
    proxy = Proxy(family, node(family, addresses=[here]), COUNTING)
    remote = [endpoint(address(family, "pod", 9))]
    ranges = ["198.51.100.0/24" if family is Family.IPV4 else "2001:db8:51::/48"]
    wanted: tuple[tuple[ServiceFacts, list[Endpoint]], ...] = (
        (service("shop/none", cluster_ip=address(family, "cluster", 1), node_port=30001), []),
        (
            service("shop/away", cluster_ip=address(family, "cluster", 2), internal_local=True),
            remote,
        ),
        (
            service(
                "shop/closed",
                cluster_ip=address(family, "cluster", 3),
                load_balancer_ips=[address(family, "outside", 7)],
                source_ranges=ranges,
            ),
            remote,
        ),
        (
            service(
                "shop/guarded",
                cluster_ip=address(family, "cluster", 4),
                node_port=30004,
                allow_sources=ranges,
            ),
            remote,
        ),
    )
    found: list[ServicePlan] = []
    for facts, endpoints in wanted:
        proxy.want(facts, endpoints)
        found += plans(facts, endpoints, proxy.node)
    return proxy, Frontends(proxy.node, found)


def text_of(family: Family) -> list[str]:
    proxy, _ = refusing(family)
    return lines(proxy.text())


def test_what_is_refused_has_an_element_that_counts() -> None:
    found = text_of(Family.IPV4)
    assert '10.96.0.1 . tcp . 80 comment "shop/none:http"' in found
    assert 'tcp . 30001 comment "shop/none:http"' in found
    assert '10.96.0.2 . tcp . 80 comment "shop/away:http"' in found
    assert '203.0.113.7 . tcp . 80 comment "shop/closed:http"' in found


def test_only_packets_that_are_refused_are_looked_up() -> None:
    chains = refusing(Family.IPV4)[0].text().split("\tchain ")[1:]
    counting = {c.split()[0] for c in chains if "@rejected" in c or "@dropped" in c}
    assert counting == {"reject-chain", "drop-chain"}
    firewall = next(c for c in chains if "@firewalled-services" in c)
    *_, count, drop = (line.strip() for line in firewall.splitlines()[1:-1] if line.strip() != "}")
    assert (count, drop) == ("ip daddr . meta l4proto . th dport @firewalled-services", "drop")


def try_to_reach(place: str, port: int = 80) -> None:
    with pytest.raises(OSError):
        socket.create_connection((place, port), timeout=0.3)


def connect_the_namespace(family: Family) -> None:
    here = address(family, "outside", 1)
    flag, bits = ("", 24) if family is Family.IPV4 else ("-6", 64)
    run("ip link set lo up; ip link add outside type veth peer name away; ip link set away up")
    nodad = "nodad" if flag else ""
    run(f"ip link set outside up; ip {flag} addr add {here}/{bits} dev outside {nodad}")
    run(f"ip {flag} route add default dev outside")


@families
@pytest.mark.kernel
@pytest.mark.usefixtures("namespace", "closing")
async def test_the_kernel_counts_by_service_port_with_action_and_reason(family: Family) -> None:
    connect_the_namespace(family)
    proxy, frontends = refusing(family)
    await proxy.sync()
    assert await proxy.backend.refused_packets(frontends) == []
    try_to_reach(address(family, "cluster", 1))
    try_to_reach(address(family, "outside", 1), 30001)
    try_to_reach(address(family, "cluster", 2))
    try_to_reach(address(family, "outside", 7))
    try_to_reach(address(family, "cluster", 4))
    try_to_reach(address(family, "outside", 1), 30004)
    refused = await proxy.backend.refused_packets(frontends)
    assert refused is not None
    assert {(each.owner.name, each.action, each.reason) for each in refused} == {
        ("none", "reject", NO_ENDPOINTS),
        ("away", "drop", NO_LOCAL_ENDPOINTS),
        ("closed", "drop", OUTSIDE_SOURCE_RANGES),
        ("guarded", "drop", REFUSED_BY_ANNOTATION),
    }
    assert len(refused) == 6, "the cluster IP and the node port of two Services"
    assert all(each.packets for each in refused)
    assert await proxy.sync() == 0, "what was counted is no drift"


@families
@pytest.mark.kernel
@pytest.mark.usefixtures("namespace", "closing")
async def test_what_nft_loads_from_its_printout_is_ours(family: Family) -> None:
    connect_the_namespace(family)
    proxy, frontends = refusing(family)
    await proxy.sync()
    try_to_reach(address(family, "cluster", 1))
    before = await proxy.backend.refused_packets(frontends)
    listing = ruleset()
    run("nft -f -", f"flush ruleset\n{listing}")
    assert ruleset() == listing
    assert await proxy.sync() == 0
    assert await proxy.backend.refused_packets(frontends) == before


@families
@pytest.mark.kernel
@pytest.mark.usefixtures("namespace", "closing")
async def test_a_restart_with_the_other_choice_leaves_nothing_behind(family: Family) -> None:
    await everything(family).sync()
    without = lines(ruleset())
    counting = everything(family, COUNTING)
    await counting.sync()
    assert lines(ruleset()) != without
    assert await everything(family, COUNTING).sync() == 0
    await everything(family).sync()
    assert lines(ruleset()) == without


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace", "closing")
async def test_without_the_choice_nothing_counts() -> None:
    proxy = everything(Family.IPV4)
    await proxy.sync()
    assert "counter" not in ruleset()
    assert await proxy.backend.refused_packets(Frontends(proxy.node)) is None


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace", "closing")
async def test_an_element_of_another_process_is_still_drift() -> None:
    proxy, frontends = refusing(Family.IPV4)
    await proxy.sync()
    run(f"nft add element ip {TABLE_NAME} rejected-services '{{ 10.96.0.99 . icmp . 80 }}'")
    assert await proxy.read() == 1
    assert await proxy.backend.refused_packets(frontends) == []
    assert await proxy.apply() == 1
