"""Draining as an engine does it: beside the rounds, owed until done, free where it is not used."""

from __future__ import annotations

from tests.support.builders import endpoint, endpoint_slice, service
from tests.support.engine_rig import Rig

from kubeproxy.errors import Busy
from kubeproxy.facts.ids import Protocol
from kubeproxy.plan.conntrack import pack_socket

TCP = Protocol.TCP
VIP = pack_socket("10.96.0.10", 80)
OLD, NEW = (pack_socket(f"10.244.1.{number}", 8080) for number in (5, 6))


def serve(rig: Rig, *addresses: str, drain: float | None) -> None:
    rig.store.set_service(service(drain_seconds=drain))
    rig.store.set_slice(endpoint_slice(endpoints=[endpoint(a) for a in addresses]))


async def served(drain: float | None) -> Rig:
    """A rig that serves one endpoint, and owes nothing."""
    rig = Rig()
    serve(rig, "10.244.1.5", drain=drain)
    await rig.engine.round()
    rig.clock.now += 1000
    await rig.flows.clean()
    rig.conntrack.flows = [(TCP, VIP, OLD), (TCP, VIP, NEW), (TCP, VIP, VIP)]
    return rig


LEFT = [(TCP, VIP, NEW), (TCP, VIP, VIP)]


async def test_connections_are_reset_by_the_first_search_after_the_round() -> None:
    rig = await served(0.0)
    serve(rig, "10.244.1.6", drain=0.0)
    await rig.engine.round()
    assert rig.engine.flows_owed == 1
    await rig.flows.clean()
    assert (rig.conntrack.flows, rig.engine.flows_owed) == (LEFT, 0)


async def test_connections_are_reset_at_their_limit_and_no_round_is_needed() -> None:
    rig = await served(30.0)
    serve(rig, "10.244.1.6", drain=30.0)
    await rig.engine.round()
    searches = len(rig.conntrack.searches)
    rig.clock.now += 29
    await rig.flows.clean()
    assert (len(rig.conntrack.searches), rig.engine.flows_owed) == (searches, 0)
    rig.clock.now += 1
    assert rig.flows.due_at() <= rig.clock.now
    await rig.flows.clean()
    assert rig.conntrack.flows == LEFT


async def test_a_round_that_fails_starts_no_limit() -> None:
    rig = await served(30.0)
    serve(rig, "10.244.1.6", drain=30.0)
    rig.kernel.fail = Busy("lock")
    await rig.engine.round()
    assert rig.flows.due_at() == float("inf")
    rig.kernel.fail = None
    rig.clock.now += 100
    await rig.engine.round()
    assert rig.flows.debts.next_due() == rig.clock.now + 30


async def test_a_service_without_the_annotation_costs_nothing() -> None:
    """No rules, no search, no index of frontends: however many endpoints come and go."""
    rig = await served(None)
    for number in range(5):
        serve(rig, f"10.244.1.{number + 1}", drain=None)
        await rig.engine.round()
        await rig.flows.clean()
    assert rig.conntrack.searches == []
    assert (rig.engine.pipeline.frontends, rig.flows.debts.frontends) == (None, None)
    assert len(rig.conntrack.flows) == 3


async def test_only_the_services_that_ask_for_it_are_looked_at() -> None:
    rig = await served(0.0)
    rig.fill(50)
    await rig.engine.round()
    await rig.flows.clean()
    before = len(rig.conntrack.searches)
    serve(rig, "10.244.1.6", drain=0.0)
    await rig.engine.round()
    await rig.flows.clean()
    (search,) = rig.conntrack.searches[before:]
    assert set(search.destinations) == {VIP}
