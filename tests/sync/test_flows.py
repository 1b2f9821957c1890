"""Stale flows are deleted beside the rounds, and what could not be deleted is tried again."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.engine_kit import FakeConntrack, RecordedRounds
from tests.support.engine_rig import Rig
from tests.support.waiting import LIMIT_SECONDS, limit, until

from kubeproxy.errors import Busy
from kubeproxy.facts.ids import Family, Protocol, ServicePortId
from kubeproxy.kernel.conntrack.table import Search, Searched
from kubeproxy.plan.conntrack import FlowRule, Standing, pack_socket
from kubeproxy.sync import flows as flows_module
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.flows import FlowCleaner, RoundsFirst

UDP = Protocol.UDP
DNS = ServicePortId("kube-system", "dns", "dns", UDP)
VIP = pack_socket("10.96.0.10", 53)
OLD, NEW = (pack_socket(f"10.244.1.{number}", 53) for number in (5, 6))


def serve(rig: Rig, *addresses: str, name: str = "kube-system/dns") -> None:
    facts = service(name, cluster_ip="10.96.0.10", ports=[port(53, name="dns", protocol=UDP)])
    rig.store.set_service(facts)
    endpoints = [endpoint(address, 53) for address in addresses]
    rig.store.set_slice(endpoint_slice(name, endpoints, port_name="dns", protocol=UDP))


async def served() -> Rig:
    """A rig that serves one endpoint, and owes nothing."""
    rig = Rig()
    serve(rig, "10.244.1.5")
    await rig.engine.round()
    await rig.flows.clean()
    assert rig.engine.flows_owed == 0
    rig.conntrack.flows = [(UDP, VIP, OLD), (UDP, VIP, NEW), (Protocol.TCP, VIP, OLD)]
    return rig


LEFT = [(UDP, VIP, NEW), (Protocol.TCP, VIP, OLD)]


async def test_flows_are_looked_for_after_the_rules_are_in_the_kernel() -> None:
    rig = await served()
    serve(rig, "10.244.1.6")
    rig.kernel.fail = Busy("lock")
    await rig.engine.round()
    await rig.flows.clean()
    assert (rig.engine.flows_owed, len(rig.conntrack.searches)) == (0, 1)
    rig.kernel.fail = None
    await rig.engine.round()
    assert rig.engine.flows_owed == 1
    assert len(rig.conntrack.searches) == 1, "a round only hands over"
    await rig.flows.clean()
    assert rig.conntrack.flows == LEFT
    assert rig.engine.flows_owed == 0


async def test_a_cancelled_round_leaves_its_flows_to_the_next_one() -> None:
    rig = await served()
    serve(rig, "10.244.1.6")
    rig.kernel.fail = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await rig.engine.round()
    rig.kernel.fail = None
    await rig.engine.round()
    await rig.flows.clean()
    assert rig.conntrack.flows == LEFT


async def test_a_refused_service_port_waits_for_its_rules_and_no_other_does() -> None:
    rig = await served()
    serve(rig, "10.244.1.6")
    rig.kernel.refuse = lambda change: change.owner is not None and change.owner.name == "dns"
    other = service("default/x", cluster_ip="10.96.0.11", ports=[port(53, name="x", protocol=UDP)])
    rig.store.set_service(other)
    await rig.engine.round()
    await rig.flows.clean()
    assert rig.conntrack.searches[-1].destinations == {pack_socket("10.96.0.11", 53)}
    assert (UDP, VIP, OLD) in rig.conntrack.flows
    rig.kernel.refuse = lambda change: False
    rig.clock.advance(10)
    await rig.engine.round()
    await rig.flows.clean()
    assert rig.conntrack.flows == LEFT


async def test_a_listing_that_fails_is_repeated_without_another_change() -> None:
    rig = await served()
    serve(rig, "10.244.1.6")
    await rig.engine.round()
    rig.conntrack.error = "No buffer space available"
    await rig.flows.clean()
    await rig.flows.clean()
    assert len(rig.conntrack.searches) == 2, "not before the pause is over"
    rig.clock.advance(1)
    rig.conntrack.error = ""
    await rig.flows.clean()
    assert rig.conntrack.flows == LEFT
    assert [(r.error, r.owed, r.deleted) for r in rig.listener.flow_reports[1:]] == [
        ("No buffer space available", 1, 0),
        ("", 0, 1),
    ]


async def test_a_refused_deletion_is_repeated() -> None:
    rig = await served()
    serve(rig, "10.244.1.6")
    await rig.engine.round()
    rig.conntrack.refuse = {VIP}
    await rig.flows.clean()
    assert rig.listener.flow_reports[-1].refused == ("not permitted",)
    assert rig.engine.flows_owed == 1
    rig.conntrack.refuse = set()
    rig.clock.advance(1)
    await rig.flows.clean()
    assert rig.conntrack.flows == LEFT


async def test_a_cancelled_search_is_owed_still() -> None:
    rig = await served()
    serve(rig, "10.244.1.6")
    await rig.engine.round()
    rig.conntrack.hold = asyncio.Event()
    search = asyncio.create_task(rig.flows.clean())
    await until(lambda: len(rig.conntrack.searches) == 2)
    search.cancel()
    await asyncio.wait([search])
    rig.conntrack.hold = None
    await rig.flows.clean()
    assert rig.conntrack.flows == LEFT


async def test_a_fault_of_ours_ends_nothing() -> None:
    rig = await served()
    serve(rig, "10.244.1.6")
    await rig.engine.round()

    async def fault(search: Search) -> Searched:
        raise ZeroDivisionError

    cleaner = FlowCleaner(Family.IPV4, fault, clock=rig.clock, listener=rig.listener)
    cleaner.debts = rig.flows.debts
    await cleaner.clean()
    assert "ZeroDivisionError" in rig.listener.flow_reports[-1].error
    assert rig.engine.flows_owed == 1


async def test_a_round_does_not_wait_for_a_search() -> None:
    """However long that takes: the round ends first, and its flows are looked for afterwards."""
    rig = await served()
    serve(rig, "10.244.1.6")
    await rig.engine.round()
    rig.conntrack.hold = asyncio.Event()
    async with limit():
        search = asyncio.create_task(rig.flows.clean())
        await until(lambda: len(rig.conntrack.searches) == 2)
        serve(rig, "10.244.1.7")
        report = await rig.engine.round()
        assert report.is_success
        assert report.changes
        assert not search.done()
        rig.conntrack.hold.set()
        await search
        assert rig.engine.flows_owed == 1, "what changed meanwhile is owed another search"
        await rig.flows.clean()
    assert rig.conntrack.flows == [(Protocol.TCP, VIP, OLD)]


async def test_the_cleaner_runs_by_itself() -> None:
    """A debt that is handed over wakes it; what fails is repeated."""
    conntrack, listener = FakeConntrack(), RecordedRounds()
    conntrack.flows = [(UDP, VIP, OLD), (UDP, VIP, NEW)]
    conntrack.error = "Interrupted system call"
    cleaner = FlowCleaner(Family.IPV4, conntrack, clock=SystemClock(), listener=listener)
    async with limit(), asyncio.TaskGroup() as group:
        running = group.create_task(cleaner.run())
        cleaner.programmed({DNS: {VIP: FlowRule(Standing.SERVED, frozenset([NEW]))}}, node())
        await until(lambda: listener.flow_reports)
        conntrack.error = ""
        await until(lambda: not cleaner.debts)
        running.cancel()
    assert conntrack.flows == [(UDP, VIP, NEW)]


async def test_the_cleaner_rests_for_as_long_as_a_search_took() -> None:
    """So it takes half of the time at most, however often something becomes stale."""
    rig = await served()

    async def slow(search: Search) -> Searched:
        rig.clock.advance(2)
        return Searched()

    cleaner = FlowCleaner(Family.IPV4, slow, clock=rig.clock, listener=rig.listener)
    cleaner.debts = rig.flows.debts
    serve(rig, "10.244.1.6")
    await rig.engine.round()
    assert cleaner.due_at() <= rig.clock.now
    await cleaner.clean()
    serve(rig, "10.244.1.7")
    await rig.engine.round()
    assert cleaner.due_at() == rig.clock.now + 2


def test_a_search_waits_until_no_round_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows_module, "LONGEST_TURN_SECONDS", LIMIT_SECONDS)
    turns, begun, passed = RoundsFirst(), threading.Event(), threading.Event()

    def search() -> None:
        begun.set()
        turns.wait_turn()
        passed.set()

    thread = threading.Thread(target=search)
    with turns.round():
        with turns.round():
            thread.start()
            begun.wait()
        assert not passed.is_set()
    thread.join()
    assert passed.is_set()


def test_a_round_that_does_not_end_does_not_stop_a_search() -> None:
    turns = RoundsFirst()
    with turns.round():
        turns.wait_turn()


async def test_every_round_goes_first_also_one_that_fails() -> None:
    rig = await served()
    seen: list[bool] = []

    def look(_: object) -> bool:
        seen.append(rig.flows.turns.is_round)
        return False

    rig.kernel.refuse = look
    serve(rig, "10.244.1.6")
    await rig.engine.round()
    rig.kernel.fail = Busy("lock")
    serve(rig, "10.244.1.7")
    await rig.engine.round()
    assert set(seen) == {True}
    assert not rig.flows.turns.is_round
