"""Rounds: order of effects, isolation of culprits, retries and drift."""

from __future__ import annotations

from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.engine_kit import FakeClock, FakeConntrack, RecordedRounds
from tests.support.fake_backend import FakeBackend, FakeKernel, Listed, Route

from kubeproxy.errors import Busy
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.sync.engine import FULL_SYNC_SECONDS, Engine, EngineTimes


class Rig:
    """An engine with everything around it."""

    def __init__(self, *, kernel: FakeKernel | None = None, batch_size: int = 100) -> None:
        self.kernel = kernel or FakeKernel()
        self.clock = FakeClock()
        self.listener = RecordedRounds()
        self.conntrack = FakeConntrack()
        self.engine = Engine(
            FakeBackend(kernel=self.kernel, batch_size=batch_size),
            node(),
            clock=self.clock,
            listener=self.listener,
            clean_conntrack=self.conntrack,
            times=EngineTimes(),
        )
        self.store = self.engine.pipeline.store

    def fill(self, count: int = 1) -> None:
        for number in range(count):
            name = f"default/web-{number}"
            self.store.set_service(service(name, cluster_ip=f"10.96.0.{number + 1}"))
            self.store.set_slice(
                endpoint_slice(name, [endpoint()], slice_name=f"slice-{number}"),
            )


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
    assert [f.owner for f in report.failures] == ["default/web-17:http/TCP"]
    assert bad not in rig.kernel.state
    assert sum(isinstance(item, Route) for item in rig.kernel.state) == 39
    rig.kernel.refuse = lambda change: False
    assert (await rig.engine.round()).is_success
    assert bad in rig.kernel.state


async def test_a_busy_kernel_fails_the_round_and_loses_nothing() -> None:
    rig = Rig()
    rig.fill()
    rig.kernel.fail = Busy("another process holds the lock")
    report = await rig.engine.round()
    assert report.failures[0].message == "another process holds the lock"
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


async def test_udp_changes_forget_stale_flows_once_they_are_programmed() -> None:
    rig = Rig()
    dns = port(53, name="dns", protocol=Protocol.UDP)
    rig.store.set_service(service("kube-system/dns", ports=[dns]))
    rig.store.set_slice(
        endpoint_slice("kube-system/dns", [endpoint()], port_name="dns", protocol=Protocol.UDP)
    )
    rig.kernel.fail = Busy("lock")
    await rig.engine.round()
    assert rig.conntrack.asked == []
    rig.kernel.fail = None
    report = await rig.engine.round()
    assert len(rig.conntrack.asked) == 1
    assert report.conntrack_deleted == 1
    await rig.engine.round()
    assert len(rig.conntrack.asked) == 1


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
    rig = Rig()
    facts = service(load_balancer_ips=["203.0.113.1"], external_local=True,
                    health_check_node_port=32000)  # fmt: skip
    rig.store.set_service(facts)
    here = [endpoint("10.244.1.5", local=True), endpoint("10.244.1.5", 81, local=True),
            endpoint("10.244.1.6", local=True, ready=False), endpoint("10.244.2.7")]  # fmt: skip
    rig.store.set_slice(endpoint_slice(endpoints=here))
    await rig.engine.round()
    assert rig.engine.pipeline.health_check_ports == {facts.name: 32000}
    assert rig.engine.pipeline.local_ready == {facts.name: 1}
