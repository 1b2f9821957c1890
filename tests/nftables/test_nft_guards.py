"""Lists of sources stand between dispatch and endpoints, and cost nothing where there are none."""

from __future__ import annotations

import pytest
from tests.nftables.test_nft_render import LOCAL, REMOTE, chain, elements, rendered
from tests.support.builders import endpoint, node, plan, service
from tests.support.nft_kit import Proxy, pods

from kubeproxy.facts.ids import Family
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.items import ChainItem, ListenerItem, SetItem
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import render

GUARD = names.GUARD_CHAIN_PREFIX + names.base_name("default/web/tcp/http")


def test_dispatch_leads_to_the_lists_and_those_who_are_admitted_go_on() -> None:
    facts = service(
        node_port=30080, allow_sources=["10.0.0.0/8"], deny_sources=["10.9.0.0/16", "10.8.0.0/16"]
    )
    found = rendered(facts, LOCAL, REMOTE)
    assert elements(found)["service-ips"] == [f"10.96.0.10 . tcp . 80 : goto {GUARD}"]
    assert elements(found)["admitted-services"] == ["10.96.0.10 . tcp . 80 : goto pick-2"]
    assert elements(found)["service-nodeports"] == [f"tcp . 30080 : goto {GUARD}"]
    assert chain(found, GUARD) == [
        "ip saddr 10.8.0.0/15 drop",
        "ip saddr 10.0.0.0/8 goto admit-chain",
        "drop",
    ]
    assert chain(found, "admit-chain") == [
        "ip daddr . meta l4proto . th dport vmap @admitted-services",
        "meta l4proto . th dport vmap @admitted-nodeports",
    ]


def test_with_denied_sources_alone_all_others_are_admitted() -> None:
    found = rendered(service(deny_sources=["10.9.0.0/16"]), LOCAL)
    assert chain(found, GUARD) == ["ip saddr 10.9.0.0/16 drop", "goto admit-chain"]


def test_without_lists_there_is_no_second_dispatch() -> None:
    found = rendered(service(node_port=30080), LOCAL)
    assert not {SetItem(names.ADMITTED_SERVICES), ChainItem(names.ADMIT_CHAIN)} & set(found)


def test_without_endpoints_everyone_is_rejected() -> None:
    found = rendered(service(allow_sources=["10.0.0.0/8"]))
    assert ChainItem(GUARD) not in found
    assert elements(found)["no-endpoint-services"] == ["10.96.0.10 . tcp . 80 : goto reject-chain"]


def test_another_number_of_endpoints_changes_no_rule() -> None:
    """A changed rule would make the kernel look at every jump of the table again."""
    facts = service(allow_sources=["10.0.0.0/8"], node_port=30080)
    few, many = rendered(facts, LOCAL), rendered(facts, LOCAL, REMOTE)
    assert few[ChainItem(GUARD)] == many[ChainItem(GUARD)]


@pytest.mark.parametrize(("node_ip", "is_there"), [("192.0.2.10", True), ("198.51.100.1", False)])
def test_localhost_serves_a_node_port_if_the_node_may_connect(node_ip: str, is_there: bool) -> None:
    here = node(ip=node_ip)
    options = Options(localhost_node_ports=True)
    made = plan(service(node_port=30080, allow_sources=["192.0.2.0/24"]), [LOCAL], here)
    found = render(made, here, options)
    assert (ListenerItem(made.id.protocol, 30080) in found) is is_there


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
@pytest.mark.kernel
@pytest.mark.usefixtures("namespace", "closing")
async def test_the_last_list_that_goes_takes_the_second_dispatch_along(family: Family) -> None:
    proxy = Proxy(family)
    pod = "10.244.0.0/16" if family is Family.IPV4 else "fd00:244::/56"
    ip = "10.96.0.10" if family is Family.IPV4 else "fd00:10:96::10"
    lists: tuple[tuple[list[str] | None, list[str]], ...] = (
        ([pod], []),
        (None, [pod]),
        (None, []),
        ([], []),
    )
    for allow, deny in lists:
        facts = service(cluster_ip=ip, node_port=30080, allow_sources=allow, deny_sources=deny)
        proxy.want(facts, pods(family, 1, 2))
        await proxy.sync()
        assert ("admitted-services" in proxy.text()) is (facts.policy is not None)
        assert await proxy.sync() == 0
    proxy.want(service(cluster_ip=ip, allow_sources=[pod]), [endpoint(pods(family, 1)[0].address)])
    await proxy.sync()
    assert await proxy.sync() == 0
