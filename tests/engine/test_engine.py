"""Rounds: order of effects, isolation of culprits, retries and drift."""

from __future__ import annotations

from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.fake_backend import (
    FakeBackend,
    FakeClock,
    FakeConntrack,
    FakeKernel,
    Heard,
    Listed,
    Route,
)

from kubeproxy.errors import Busy
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.sync.engine import FULL_SYNC_SECONDS, Engine, EngineTimes


class Bench:
    """An engine with everything around it."""

    def __init__(self, *, kernel: FakeKernel | None = None, batch_size: int = 100) -> None:
        self.kernel = kernel or FakeKernel()
        self.clock = FakeClock()
        self.heard = Heard()
        self.conntrack = FakeConntrack()
        self.engine = Engine(
            FakeBackend(kernel=self.kernel, batch_size=batch_size),
            node(),
            clock=self.clock,
            listener=self.heard,
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
    bench = Bench()
    bench.fill()
    report = await bench.engine.round()
    assert report.is_success and report.is_full
    assert bench.kernel.state[WEB] == ("forward", "10.244.1.5:8080")


async def test_equal_facts_write_nothing() -> None:
    bench = Bench()
    bench.fill()
    await bench.engine.round()
    bench.fill()
    report = await bench.engine.round()
    assert (report.services, report.changes, report.batches) == (0, 0, 0)
    assert not report.is_full
    assert bench.kernel.reads == 2


async def test_additions_go_forward_and_removals_backward_over_the_sinks() -> None:
    bench = Bench()
    bench.fill()
    await bench.engine.round()
    bench.kernel.history.clear()
    bench.store.set_service(service("default/web-0", cluster_ip="10.96.0.99"))
    await bench.engine.round()
    assert bench.kernel.history[0] == "+Listed"
    assert sorted(bench.kernel.history[1:3]) == ["+Route", "-Route"]
    assert bench.kernel.history[3] == "-Listed"


async def test_one_refused_service_is_named_and_the_rest_goes_through() -> None:
    bench = Bench()
    bench.fill(40)
    bad = Route("10.96.0.18", 80, "TCP")
    bench.kernel.refuse = lambda change: change.item == bad
    report = await bench.engine.round()
    assert [f.owner for f in report.failures] == ["default/web-17:http/TCP"]
    assert bad not in bench.kernel.state
    assert sum(isinstance(item, Route) for item in bench.kernel.state) == 39
    bench.kernel.refuse = lambda change: False
    assert (await bench.engine.round()).is_success
    assert bad in bench.kernel.state


async def test_a_busy_kernel_fails_the_round_and_loses_nothing() -> None:
    bench = Bench()
    bench.fill()
    bench.kernel.fail = Busy("somebody holds the lock")
    report = await bench.engine.round()
    assert report.failures[0].message == "somebody holds the lock"
    bench.kernel.fail = None
    assert (await bench.engine.round()).is_success
    assert WEB in bench.kernel.state


async def test_after_a_failure_the_kernel_is_read_again() -> None:
    bench = Bench()
    bench.fill()
    await bench.engine.round()
    reads = bench.kernel.reads
    bench.store.delete_slice("default", "slice-0")
    bench.kernel.fail = Busy("lock")
    await bench.engine.round()
    bench.kernel.fail = None
    report = await bench.engine.round()
    assert report.is_full and bench.kernel.reads == reads + 2
    assert bench.kernel.state[WEB] == ("reject",)


async def test_drift_is_found_repaired_and_reported() -> None:
    bench = Bench()
    bench.fill()
    await bench.engine.round()
    del bench.kernel.state[WEB]
    bench.kernel.state[Route("203.0.113.7", 1, "TCP")] = ("left", "over")
    bench.engine.report_drift("table deleted")
    report = await bench.engine.round()
    assert report.drift == "table deleted"
    assert report.drifted_items == 2
    assert WEB in bench.kernel.state
    assert Route("203.0.113.7", 1, "TCP") not in bench.kernel.state


async def test_what_an_earlier_run_left_is_adopted_not_counted_as_drift() -> None:
    first = Bench()
    first.fill()
    await first.engine.round()
    again = Bench(kernel=first.kernel)
    again.fill()
    report = await again.engine.round()
    assert (report.changes, report.drifted_items) == (0, 0)


async def test_the_kernel_is_read_again_every_hour() -> None:
    bench = Bench()
    bench.fill()
    await bench.engine.round()
    bench.clock.advance(FULL_SYNC_SECONDS - 1)
    assert not (await bench.engine.round()).is_full
    bench.clock.advance(2)
    assert (await bench.engine.round()).is_full


async def test_a_node_change_renders_everything_but_writes_only_differences() -> None:
    bench = Bench()
    bench.fill(5)
    await bench.engine.round()
    bench.engine.set_node(node(addresses=["192.0.2.10", "192.0.2.11"]))
    report = await bench.engine.round()
    assert report.changes == 1
    assert Listed("192.0.2.11") in bench.kernel.state


async def test_udp_changes_forget_stale_flows_once_they_are_programmed() -> None:
    bench = Bench()
    dns = port(53, name="dns", protocol=Protocol.UDP)
    bench.store.set_service(service("kube-system/dns", ports=[dns]))
    bench.store.set_slice(
        endpoint_slice("kube-system/dns", [endpoint()], port_name="dns", protocol=Protocol.UDP)
    )
    bench.kernel.fail = Busy("lock")
    await bench.engine.round()
    assert bench.conntrack.asked == []
    bench.kernel.fail = None
    report = await bench.engine.round()
    assert len(bench.conntrack.asked) == 1
    assert report.conntrack_deleted == 1
    await bench.engine.round()
    assert len(bench.conntrack.asked) == 1


async def test_latency_is_measured_from_the_trigger_time_even_over_a_failure() -> None:
    bench = Bench()
    bench.fill()
    bench.store.set_slice(endpoint_slice("default/web-0", []), trigger_time=bench.clock.now - 2)
    bench.kernel.fail = Busy("lock")
    assert (await bench.engine.round()).programming_latencies == ()
    bench.kernel.fail = None
    bench.clock.advance(3)
    assert (await bench.engine.round()).programming_latencies == (5.0,)


async def test_nothing_is_requested_before_both_lists_are_complete() -> None:
    bench = Bench()
    bench.engine.request()
    assert bench.heard.requests == []
    bench.engine.mark_synced()
    assert bench.heard.requests == [Family.IPV4]


async def test_ports_without_local_endpoints_are_counted() -> None:
    bench = Bench()
    bench.fill()
    bench.store.set_service(
        service("default/web-0", cluster_ip="10.96.0.1", node_port=30080, external_local=True)
    )
    report = await bench.engine.round()
    assert (report.no_local_internal, report.no_local_external) == (0, 1)
    bench.store.delete_service(service("default/web-0").name)
    assert (await bench.engine.round()).no_local_external == 0


async def test_health_ports_count_distinct_local_ready_addresses() -> None:
    bench = Bench()
    facts = service(load_balancer_ips=["203.0.113.1"], external_local=True,
                    health_check_node_port=32000)  # fmt: skip
    bench.store.set_service(facts)
    here = [endpoint("10.244.1.5", local=True), endpoint("10.244.1.5", 81, local=True),
            endpoint("10.244.1.6", local=True, ready=False), endpoint("10.244.2.7")]  # fmt: skip
    bench.store.set_slice(endpoint_slice(endpoints=here))
    await bench.engine.round()
    assert bench.engine.pipeline.health_check_ports == {facts.name: 32000}
    assert bench.engine.pipeline.local_ready == {facts.name: 1}
