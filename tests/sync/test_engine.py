"""Rounds: order of effects, isolation of culprits, retries and drift."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.engine_rig import Rig
from tests.support.fake_backend import Listed, Route

from kubeproxy.errors import Busy
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.sync.engine import FULL_SYNC_SECONDS, MOST_DOUBTFUL, EngineTimes
from kubeproxy.sync.refused import FIRST_PAUSE_SECONDS

WEB = Route("10.96.0.1", 80, "TCP")


async def test_a_round_brings_the_kernel_to_what_the_facts_say() -> None:
    rig = Rig()
    rig.fill()
    report = await rig.engine.round()
    assert report.is_success and report.is_full
    assert rig.kernel.state[WEB] == ("forward", "10.244.1.5:8080")


async def test_equal_facts_write_nothing() -> None:
    rig = Rig()
    rig.fill()
    await rig.engine.round()
    rig.fill()
    report = await rig.engine.round()
    assert (report.services, report.changes, report.batches) == (0, 0, 0)
    assert not report.is_full
    assert rig.kernel.reads == 2


async def test_additions_go_forward_and_removals_backward_over_the_sinks() -> None:
    rig = Rig()
    rig.fill()
    await rig.engine.round()
    rig.kernel.history.clear()
    rig.store.set_service(service("default/web-0", cluster_ip="10.96.0.99"))
    await rig.engine.round()
    assert rig.kernel.history[0] == "+Listed"
    assert sorted(rig.kernel.history[1:3]) == ["+Route", "-Route"]
    assert rig.kernel.history[3] == "-Listed"


async def test_one_refused_service_is_named_and_the_rest_goes_through() -> None:
    rig = Rig()
    rig.fill(40)
    bad = Route("10.96.0.18", 80, "TCP")
    rig.kernel.refuse = lambda change: change.item == bad
    report = await rig.engine.round()
    assert [str(f.owner) for f in report.refused] == ["default/web-17:http/TCP"]
    assert bad not in rig.kernel.state
    assert sum(isinstance(item, Route) for item in rig.kernel.state) == 39
    rig.kernel.refuse = lambda change: False
    rig.clock.advance(FIRST_PAUSE_SECONDS)
    assert (await rig.engine.round()).is_success
    assert bad in rig.kernel.state


async def test_a_busy_kernel_fails_the_round_and_loses_nothing() -> None:
    rig = Rig()
    rig.fill()
    rig.kernel.fail = Busy("another process holds the lock")
    report = await rig.engine.round()
    assert report.error == "another process holds the lock"
    rig.kernel.fail = None
    assert (await rig.engine.round()).is_success
    assert WEB in rig.kernel.state


async def test_after_a_failure_the_kernel_is_read_again() -> None:
    rig = Rig()
    rig.fill()
    await rig.engine.round()
    reads = rig.kernel.reads
    rig.store.delete_slice("default", "slice-0")
    rig.kernel.fail = Busy("lock")
    await rig.engine.round()
    rig.kernel.fail = None
    report = await rig.engine.round()
    assert report.is_full and rig.kernel.reads == reads + 2
    assert rig.kernel.state[WEB] == ("reject",)


async def test_drift_is_found_repaired_and_reported() -> None:
    rig = Rig()
    rig.fill()
    await rig.engine.round()
    del rig.kernel.state[WEB]
    rig.kernel.state[Route("203.0.113.7", 1, "TCP")] = ("left", "over")
    rig.engine.report_drift("table deleted")
    report = await rig.engine.round()
    assert report.drift == "table deleted"
    assert report.drifted_items == 2
    assert WEB in rig.kernel.state
    assert Route("203.0.113.7", 1, "TCP") not in rig.kernel.state


async def test_of_drift_whose_items_are_known_only_these_are_read() -> None:
    """What is gone comes back and what nothing wants goes, without a read of everything."""
    rig = Rig()
    rig.fill(3)
    await rig.engine.round()
    reads, stray = rig.kernel.reads, Route("203.0.113.7", 1, "TCP")
    del rig.kernel.state[WEB]
    rig.kernel.state[stray] = ("left", "over")
    rig.engine.report_drift("two routes", [WEB, stray])
    report = await rig.engine.round()
    assert (report.is_full, report.drifted_items, report.changes) == (False, 2, 2)
    assert report.drift == "two routes" and report.drifted_lines
    assert (rig.kernel.reads, rig.kernel.items_read) == (reads, 2)
    assert WEB in rig.kernel.state and stray not in rig.kernel.state


@pytest.mark.parametrize("reason", ["cannot", "anything", "many"])
async def test_everything_is_read_where_single_items_are_not_enough(reason: str) -> None:
    """The mode cannot, or anything may have changed, or too much did."""
    rig = Rig()
    rig.fill(3)
    await rig.engine.round()
    reads = rig.kernel.reads
    del rig.kernel.state[WEB]
    rig.kernel.can_read_some = reason != "cannot"
    rig.engine.report_drift("a route", [WEB])
    if reason == "anything":
        rig.engine.report_drift("the table")
    if reason == "many":
        rig.engine.report_drift("routes", [Route("", n, "TCP") for n in range(MOST_DOUBTFUL)])
    report = await rig.engine.round()
    assert report.is_full and rig.kernel.reads == reads + 2
    assert WEB in rig.kernel.state


async def test_what_was_noticed_before_the_last_read_is_known() -> None:
    """A refused batch led to a read, and the notification of the same change comes later."""
    rig = Rig()
    rig.fill()
    noticed_at = rig.clock.now
    rig.clock.advance(1)
    await rig.engine.round()
    reads = rig.kernel.reads
    rig.engine.report_drift("the table", noticed_at=noticed_at)
    report = await rig.engine.round()
    assert rig.kernel.reads == reads and report.drift == "the table"
    rig.engine.report_drift("the table", noticed_at=rig.clock.now)
    await rig.engine.round()
    assert rig.kernel.reads == reads + 2


async def test_items_reported_during_a_round_are_read_in_the_next() -> None:
    rig = Rig()
    rig.fill()
    await rig.engine.round()
    rig.kernel.fail = Busy("lock")
    rig.engine.report_drift("a route", [WEB])
    del rig.kernel.state[WEB]
    assert (await rig.engine.round()).error
    rig.kernel.fail = None
    assert (await rig.engine.round()).is_full
    assert WEB in rig.kernel.state


async def test_what_an_earlier_run_left_is_adopted_not_counted_as_drift() -> None:
    first = Rig()
    first.fill()
    await first.engine.round()
    again = Rig(kernel=first.kernel)
    again.fill()
    report = await again.engine.round()
    assert (report.changes, report.drifted_items) == (0, 0)


async def test_the_kernel_is_read_again_every_hour() -> None:
    rig = Rig()
    rig.fill()
    await rig.engine.round()
    rig.clock.advance(FULL_SYNC_SECONDS - 1)
    assert not (await rig.engine.round()).is_full
    rig.clock.advance(2)
    assert (await rig.engine.round()).is_full


async def test_a_node_change_renders_everything_but_writes_only_differences() -> None:
    rig = Rig()
    rig.fill(5)
    await rig.engine.round()
    rig.engine.set_node(node(addresses=["192.0.2.10", "192.0.2.11"]))
    report = await rig.engine.round()
    assert report.changes == 1
    assert Listed("192.0.2.11") in rig.kernel.state


async def test_flows_that_removed_rules_may_have_begun_are_looked_at_again() -> None:
    """All UDP frontends, once, by the round that follows."""
    rig = Rig()
    rig.fill()
    dns = port(53, name="dns", protocol=Protocol.UDP)
    rig.store.set_service(service("kube-system/dns", ports=[dns]))
    slice_ = endpoint_slice("kube-system/dns", [endpoint()], port_name="dns", protocol=Protocol.UDP)
    rig.store.set_slice(slice_)
    for _ in range(2):
        await rig.engine.round()
        await rig.flows.clean()
        rig.engine.doubt_flows()
    first, again = (set(search.destinations) for search in rig.conntrack.searches)
    assert first == again


async def test_latency_is_measured_from_the_trigger_time_even_over_a_failure() -> None:
    rig = Rig()
    rig.fill()
    rig.store.set_slice(endpoint_slice("default/web-0", []), trigger_time=rig.clock.now - 2)
    rig.kernel.fail = Busy("lock")
    assert (await rig.engine.round()).programming_latencies == ()
    rig.kernel.fail = None
    rig.clock.advance(3)
    assert (await rig.engine.round()).programming_latencies == (5.0,)


async def test_nothing_is_requested_before_both_lists_are_complete() -> None:
    rig = Rig()
    rig.engine.request()
    assert rig.listener.requests == []
    rig.engine.mark_synced()
    assert rig.listener.requests == [Family.IPV4]


async def test_ports_without_local_endpoints_are_counted() -> None:
    rig = Rig()
    rig.fill()
    rig.store.set_service(
        service("default/web-0", cluster_ip="10.96.0.1", node_port=30080, external_local=True)
    )
    report = await rig.engine.round()
    assert (report.no_local_internal, report.no_local_external) == (0, 1)
    rig.store.delete_service(service("default/web-0").name)
    assert (await rig.engine.round()).no_local_external == 0


async def test_health_ports_count_distinct_local_ready_addresses() -> None:
    """Of endpoints that may be targets."""
    rig = Rig()
    facts = service(load_balancer_ips=["203.0.113.1"], external_local=True,
                    health_check_node_port=32000)  # fmt: skip
    rig.store.set_service(facts)
    here = [endpoint("10.244.1.5", local=True), endpoint("10.244.1.5", 81, local=True),
            endpoint("10.244.1.6", local=True, ready=False), endpoint("10.244.2.7"),
            endpoint("127.0.0.1", local=True)]  # fmt: skip
    rig.store.set_slice(endpoint_slice(endpoints=here))
    await rig.engine.round()
    assert rig.engine.pipeline.health_check_ports == {facts.name: 32000}
    assert rig.engine.pipeline.local_ready == {facts.name: 1}


def refusing(*addresses: str) -> Rig:
    """Twenty Services, of which the kernel refuses those with these cluster IPs."""
    rig = Rig()
    rig.fill(20)
    rig.kernel.refuse = lambda change: getattr(change.item, "address", "") in addresses
    return rig


BAD = Route("10.96.0.18", 80, "TCP")


async def test_a_round_with_a_refused_service_is_done_for_the_others() -> None:
    """Stale flows are deleted and latencies observed; the kernel's state is known."""
    rig = refusing("10.96.0.18")
    for name in ("web-3", "web-17"):
        rig.store.set_service(
            service(f"default/{name}", cluster_ip=f"10.96.0.{int(name[4:]) + 1}", ports=[DNS])
        )
        number = name[4:]
        rig.store.set_slice(
            endpoint_slice(
                f"default/{name}",
                [endpoint()],
                slice_name=f"slice-{number}",
                port_name="dns",
                protocol=Protocol.UDP,
            ),
            trigger_time=990.0,
        )
    report = await rig.engine.round()
    assert report.is_done and not report.is_success
    assert [str(refusal.owner) for refusal in report.refused] == ["default/web-17:dns/UDP"]
    assert report.programming_latencies == (10.0,)
    await rig.flows.clean()
    (search,) = rig.conntrack.searches
    assert len(search.destinations) == 1
    assert not (await rig.engine.round()).is_full


DNS = port(53, name="dns", protocol=Protocol.UDP)


async def test_a_refused_service_is_not_sent_again_with_events_of_others() -> None:
    rig = refusing("10.96.0.18")
    await rig.engine.round()
    sent = len(rig.kernel.batches)
    for number in range(5):
        rig.store.set_service(service(f"default/more-{number}", cluster_ip=f"10.97.0.{number + 1}"))
        report = await rig.engine.round()
        assert report.is_success and report.held_back == 1
    # One batch for each of the two sinks, and none that was refused and halved.
    assert len(rig.kernel.batches) == sent + 10


async def test_a_refused_service_is_retried_with_a_growing_pause() -> None:
    rig = refusing("10.96.0.18")
    await rig.engine.round()
    for pause in (1, 2, 4, 8):
        rig.clock.advance(pause - 0.1)
        assert (await rig.engine.round()).is_success
        rig.clock.advance(0.1)
        assert len((await rig.engine.round()).refused) == 1
    rig.kernel.refuse = lambda change: False
    rig.clock.advance(300)
    report = await rig.engine.round()
    assert report.is_success and report.held_back == 0
    assert BAD in rig.kernel.state


async def test_a_failed_round_is_not_repeated_at_once_for_a_refused_service() -> None:
    """The pause of the Service is over, but while the kernel cannot be read nothing is tried."""
    rig = refusing("10.96.0.18")
    await rig.engine.round()
    rig.clock.advance(FIRST_PAUSE_SECONDS)
    rig.kernel.fail = Busy("lock")
    assert not (await rig.engine.round()).is_done
    assert rig.engine._due_at() == rig.clock.now + EngineTimes().retry_seconds
    rig.kernel.fail = None
    assert (await rig.engine.round()).refused
    assert rig.engine._due_at() <= rig.clock.now + 2 * FIRST_PAUSE_SECONDS


async def test_a_refused_service_that_changes_is_tried_at_once() -> None:
    rig = refusing("10.96.0.18")
    await rig.engine.round()
    rig.store.set_service(service("default/web-17", cluster_ip="10.96.0.99"))
    report = await rig.engine.round()
    assert report.is_success and report.held_back == 0
    assert Route("10.96.0.99", 80, "TCP") in rig.kernel.state


async def test_a_deleted_service_that_was_refused_is_forgotten() -> None:
    rig = refusing("10.96.0.18")
    await rig.engine.round()
    rig.store.delete_service(ServiceName("default", "web-17"))
    assert (await rig.engine.round()).is_success
    rig.clock.advance(300)
    report = await rig.engine.round()
    assert report.is_success and report.held_back == 0


async def test_a_refused_scaffold_fails_the_round() -> None:
    """Without it nothing works, so this is not a round that is done."""
    rig = refusing("192.0.2.10")
    report = await rig.engine.round()
    assert not report.is_done and "does not like" in report.error


async def test_what_waits_for_a_success_stays_bounded() -> None:
    """A kernel that fails for hours while endpoints flap costs one entry per service port."""
    rig = Rig()
    rig.store.set_service(service(ports=[DNS]))
    rig.kernel.fail = Busy("locked")
    for number in range(50):
        found = [endpoint(f"10.244.1.{number + 1}")]
        slice_ = endpoint_slice(endpoints=found, port_name="dns", protocol=Protocol.UDP)
        rig.store.set_slice(slice_, trigger_time=990.0 + number)
        await rig.engine.round()
    rig.kernel.fail = None
    report = await rig.engine.round()
    assert report.programming_latencies == (10.0,)
    await rig.flows.clean()
    (search,) = rig.conntrack.searches
    assert len(search.destinations) == 1


async def test_differences_of_our_own_making_are_no_drift() -> None:
    """After a round that failed half-way the kernel differs from the belief by our own writes."""
    rig = Rig(batch_size=1)
    rig.fill(3)
    await rig.engine.round()
    rig.store.set_service(service("default/new", cluster_ip="10.96.0.77"))
    rig.kernel.cut_after = len(rig.kernel.batches) + 1
    assert not (await rig.engine.round()).is_done
    rig.kernel.cut_after = None
    report = await rig.engine.round()
    assert report.is_success and report.drifted_items == 0
