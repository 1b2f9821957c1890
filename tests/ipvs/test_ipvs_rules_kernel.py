"""The mode's sets and rules on this host's own kernel, with both kinds of iptables.

IPVS itself is not needed for them; what is read back must be what was written, or every reading
of the kernel would rewrite the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.support.builders import endpoint, node, plans, port, service

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.ipset.table import Ipset
from kubeproxy.modes.base import SCAFFOLD, AnySink, OwnedChange
from kubeproxy.modes.ipvs.cleanup import cleanup
from kubeproxy.modes.ipvs.items import Fragment, Item, Value
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.render import render
from kubeproxy.modes.ipvs.scaffold import scaffold, scope
from kubeproxy.modes.ipvs.sinks.sets import SetSink
from kubeproxy.modes.ipvs.sinks.tables import KernelTables
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.xtables import Xtables

RunInNamespace = Callable[[Callable[[], object]], object]

SERVICES = (
    service(
        ports=[port(node_port=30080), port(81, name="u", protocol=Protocol.UDP, node_port=30081)]
    ),
    service(
        "default/sctp", ports=[port(protocol=Protocol.SCTP, node_port=30082)], external_local=True
    ),
    service(
        "default/lb",
        cluster_ip="10.96.0.11",
        load_balancer_ips=["198.51.100.7"],
        source_ranges=["192.0.2.0/24", "203.0.113.7/32"],
        external_local=True,
        health_check_node_port=32000,
    ),
)


def wanted(family: Family, options: Options) -> Fragment:
    here = node(family)
    items: dict[Item, Value] = dict(scaffold(here, options))
    for facts in SERVICES:
        for plan in plans(facts, [endpoint("10.244.1.5", local=True)], here):
            items |= render(plan, here, options)
    for plan in plans(service("default/none", cluster_ip="10.96.0.12"), [], here):
        items |= render(plan, here, options)
    return items


async def apply(sink: AnySink, items: Fragment, *, is_removal: bool = False) -> None:
    mine = {item: value for item, value in items.items() if isinstance(item, sink.item_types)}
    changes = [
        OwnedChange(SCAFFOLD, item, value if is_removal else None, None if is_removal else value)
        for item, value in mine.items()
    ]
    for batch in sink.compile(changes):
        await sink.apply(batch)


async def differing(sink: AnySink, items: Fragment) -> list[Item]:
    found = await sink.read()
    mine = {item: value for item, value in items.items() if isinstance(item, sink.item_types)}
    return [item for item in mine.keys() | found.keys() if mine.get(item) != found.get(item)]


@pytest.mark.kernel
@pytest.mark.parametrize("counts", [False, True], ids=["plain", "counting"])
@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_what_is_read_is_what_was_written(
    in_namespace: RunInNamespace, variant: str, counts: bool
) -> None:
    """With all services, and again after their rules were taken out one by one."""

    async def steps() -> tuple[list[Item], list[Item], list[Item]]:
        family, options = Family.IPV4, Options(counts_refused=counts)
        items = wanted(family, options)
        tables = KernelTables()
        sets = SetSink(tables, family)
        rules = NetfilterSink(Xtables(family, ToolOptions(variant=variant)), scope(family))
        await rules.read()
        await apply(sets, items)
        await apply(rules, items)
        fresh = NetfilterSink(Xtables(family, ToolOptions(variant=variant)), scope(family))
        result = (await differing(sets, items), await differing(fresh, items))
        without = scaffold(node(family), options)
        services = {item: value for item, value in items.items() if item not in without}
        await apply(fresh, services, is_removal=True)
        left = await differing(fresh, without)
        tables.close()
        return (*result, left)

    assert in_namespace(lambda: asyncio.run(steps())) == ([], [], [])


@pytest.mark.kernel
def test_clean_up_of_an_untouched_host_says_nothing(in_namespace: RunInNamespace) -> None:
    """Whatever of IPVS, ipset and iptables this kernel has."""
    assert in_namespace(lambda: list(asyncio.run(cleanup()))) == []


@pytest.mark.kernel
def test_a_kernel_without_ipset_has_no_sets() -> None:
    class Absent(Ipset):
        """Asks for a part of nfnetlink that no kernel has."""

        def check(self) -> None:
            self._socket.request(0x7F01, b"\2\0\0\0", what="ask for nothing")

    with Absent() as ipset:
        assert ipset.is_supported() is False
