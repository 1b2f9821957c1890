"""Links and addresses: the codec against recorded bytes, and requests in a private namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.facts.ids import Family
from kubeproxy.kernel.route import wire
from kubeproxy.kernel.route.table import (
    Route,
    group_addresses,
    host_addresses,
    watch_addresses,
)
from kubeproxy.kernel.route.wire import Link, LinkAddress

LOOPBACK = Link(1, "lo")
ADDRESS = ("192.0.2.9",)

RunInNamespace = Callable[[Callable[[], object]], object]


def test_a_host_address_parses_back() -> None:
    for address, family in (("10.96.0.1", Family.IPV4), ("fd00::a", Family.IPV6)):
        parsed = wire.parse_address(wire.format_host_address(7, address))
        assert parsed == LinkAddress(7, family, address, family.bits)


def test_a_link_parses_back() -> None:
    body = wire.format_new_link("kube-ipvs0", "dummy")
    assert wire.parse_link(body) == Link(0, "kube-ipvs0", "dummy")


def test_an_address_of_another_kind_is_passed_over() -> None:
    foreign = bytes([17]) + wire.format_host_address(1, "10.0.0.1")[1:]
    assert wire.parse_address(foreign) is None


def test_addresses_are_grouped_sorted_and_unique() -> None:
    found = [
        LinkAddress(2, Family.IPV4, "192.0.2.2", 24),
        LinkAddress(3, Family.IPV4, "192.0.2.1", 24),
        LinkAddress(4, Family.IPV4, "192.0.2.2", 32),
    ]
    assert group_addresses(found) == {Family.IPV4: ("192.0.2.1", "192.0.2.2"), Family.IPV6: ()}


@pytest.mark.kernel
def test_addresses_come_and_go(in_namespace: RunInNamespace) -> None:
    """Adding what is there and deleting what is not are successes."""

    def steps() -> object:
        with Route() as route:
            refused = [route.change_host_addresses(LOOPBACK, add=ADDRESS) for _ in range(2)]
            listed = [a.address for a in route.addresses(Family.IPV4)]
            refused += [route.change_host_addresses(LOOPBACK, delete=ADDRESS) for _ in range(2)]
            return refused, listed, route.addresses(Family.IPV4)

    assert in_namespace(steps) == ([[], [], [], []], ["192.0.2.9"], ())


@pytest.mark.kernel
def test_links_are_found_by_name(in_namespace: RunInNamespace) -> None:
    def steps() -> object:
        with Route() as route:
            names = {link.name for link in route.links()}
            return "lo" in names, route.link("lo"), route.link("absent0")

    assert in_namespace(steps) == (True, LOOPBACK, None)


@pytest.mark.kernel
def test_addresses_on_excluded_links_are_not_the_hosts(in_namespace: RunInNamespace) -> None:
    def steps() -> object:
        with Route() as route:
            route.change_host_addresses(LOOPBACK, add=ADDRESS)
        return host_addresses(without_links=()), host_addresses(without_links={"lo"})

    assert in_namespace(steps) == (
        {Family.IPV4: ("192.0.2.9",), Family.IPV6: ()},
        {Family.IPV4: (), Family.IPV6: ()},
    )


@pytest.mark.kernel
@pytest.mark.parametrize(("excluded", "is_seen"), [((), True), (("lo",), False)])
def test_a_new_address_is_noticed(
    in_namespace: RunInNamespace, excluded: tuple[str, ...], is_seen: bool
) -> None:
    """Events about an excluded link are passed over."""

    async def listen() -> bool:
        event = asyncio.Event()
        task = asyncio.create_task(watch_addresses(event.set, without_links=excluded))
        await event.wait()  # called once at the beginning
        event.clear()
        with Route() as route:
            route.change_host_addresses(LOOPBACK, add=ADDRESS)
        try:
            await asyncio.wait_for(event.wait(), LIMIT_SECONDS if is_seen else 0.1)
        except TimeoutError:
            return False
        finally:
            task.cancel()
        return True

    assert in_namespace(lambda: asyncio.run(listen())) is is_seen
