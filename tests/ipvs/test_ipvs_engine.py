"""The mode behind an engine, on a kernel in memory that interprets every message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.effort import examples
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.fake_ipvs import FakeTables
from tests.support.fake_xtables import FakeXtables

from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.kernel.ipvs.wire import Destination, Service
from kubeproxy.modes.ipvs.items import VirtualServer
from kubeproxy.modes.ipvs.mode import IpvsBackend
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.modes.ipvs.sinks.draining import CUT_AFTER_SECONDS
from kubeproxy.sync.edits import edits_of
from kubeproxy.sync.engine import Engine, EngineTimes
from kubeproxy.sync.report import RoundReport

TCP = (6, "10.96.0.10", 80)
A, B = ("10.244.1.1", 8080), ("10.244.1.2", 8080)


class Proxy:
    """One process; `restart` makes another over the same kernel."""

    def __init__(self, options: Options | None = None) -> None:
        self.tables = FakeTables()
        self.xtables = FakeXtables(is_nft=False)
        self.clock = FakeClock()
        self.options = options or Options()
        self.restart()

    def restart(self) -> None:
        backend = IpvsBackend(Family.IPV4, self.options, tables=self.tables, rules=self.xtables)
        self.engine = Engine(
            backend,
            node(),
            clock=self.clock,
            listener=RecordedRounds(),
            times=EngineTimes(min_seconds=0),
        )
        self.store = self.engine.pipeline.store
        self.engine.mark_synced()

    def serve(self, *places: tuple[str, int], protocol: Protocol = Protocol.TCP) -> None:
        ends = [endpoint(address, number) for address, number in places]
        self.store.set_service(service(ports=[port(protocol=protocol)]))
        self.store.set_slice(endpoint_slice(endpoints=ends, protocol=protocol))

    async def round(self, *, full: bool = False) -> RoundReport:
        self.engine.request(full=full)
        return await self.engine.round()

    def weights(self, key: tuple[int, str, int] = TCP) -> dict[tuple[str, int], int]:
        return {place: real.weight for place, real in self.tables.ipvs.real[key].items()}


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


async def test_an_idle_endpoint_goes_at_once(proxy: Proxy) -> None:
    proxy.serve(A, B)
    await proxy.round()
    proxy.serve(B)
    await proxy.round()
    assert proxy.weights() == {B: 1}


async def test_a_busy_endpoint_drains_until_its_connections_are_gone(proxy: Proxy) -> None:
    proxy.serve(A, B)
    await proxy.round()
    proxy.tables.ipvs.connections[TCP, A] = 1
    proxy.serve(B)
    await proxy.round()
    assert proxy.weights() == {A: 0, B: 1}
    await proxy.round(full=True)
    assert proxy.weights() == {A: 0, B: 1}
    del proxy.tables.ipvs.connections[TCP, A]
    proxy.clock.advance(59)
    await proxy.round()
    assert proxy.weights() == {A: 0, B: 1}
    proxy.clock.advance(1)
    await proxy.round()
    assert proxy.weights() == {B: 1}


async def test_a_service_without_local_endpoints_counts_once_whatever_its_ports() -> None:
    """As upstream does in this mode; the other modes count service ports."""
    proxy = Proxy()
    names = ("http", "https")
    ports = [port(80 + n, name=name, node_port=30080 + n) for n, name in enumerate(names)]
    facts = service(ports=ports, internal_local=True, external_local=True)
    for name in names:
        found = endpoint_slice(endpoints=[endpoint("10.244.1.1")], slice_name=name, port_name=name)
        proxy.store.set_slice(found)
    proxy.store.set_service(facts)
    report = await proxy.round()
    assert (report.no_local_internal, report.no_local_external) == (1, 1)
    proxy.store.set_service(replace(facts, is_internal_policy_local=False))
    report = await proxy.round()
    assert (report.no_local_internal, report.no_local_external) == (0, 1)
    proxy.store.delete_service(facts.name)
    report = await proxy.round()
    assert (report.no_local_internal, report.no_local_external) == (0, 0)


async def test_an_external_policy_without_external_frontends_counts_nothing() -> None:
    """Upstream looks at a policy only where it programs a virtual server by it."""
    proxy = Proxy()
    proxy.store.set_service(service(external_local=True))
    proxy.store.set_slice(endpoint_slice(endpoints=[endpoint("10.244.1.1")]))
    assert (await proxy.round()).no_local_external == 0


async def test_draining_ends_after_its_limit() -> None:
    """A connection that is never closed does not keep a real server for ever."""
    proxy = Proxy(Options(drain_limit_seconds=600.0))
    proxy.serve(A, B)
    await proxy.round()
    proxy.tables.ipvs.connections[TCP, A] = 1
    proxy.serve(B)
    await proxy.round()
    proxy.clock.advance(599)
    await proxy.round()
    assert proxy.weights() == {A: 0, B: 1}
    proxy.clock.advance(60)
    await proxy.round()
    assert proxy.weights() == {B: 1}


async def test_a_service_sets_no_limit_where_another_one_has_the_place(proxy: Proxy) -> None:
    """Anyone may name an address of another Service as an external IP."""
    attacker = service(
        "zeta/attacker", cluster_ip="10.96.0.66", external_ips=[TCP[1]], drain_seconds=0.0
    )
    proxy.store.set_service(attacker)
    proxy.serve(A, B)
    await proxy.round()
    proxy.tables.ipvs.connections[TCP, A] = 1
    proxy.serve(B)
    await proxy.round()
    for _ in range(3):
        proxy.clock.advance(60)
        await proxy.round()
    assert proxy.weights() == {A: 0, B: 1}
    proxy.store.delete_service(ServiceName("default", "web"))
    proxy.store.set_slice(endpoint_slice("zeta/attacker", [endpoint(*A)], slice_name="attacker"))
    await proxy.round()
    proxy.store.set_slice(endpoint_slice("zeta/attacker", [endpoint(*B)], slice_name="attacker"))
    await proxy.round()
    proxy.clock.advance(CUT_AFTER_SECONDS)
    await proxy.round()
    assert proxy.weights() == {B: 1}, "with the place it has the limit"


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP])
async def test_a_limit_of_a_service_holds_also_after_a_restart(
    proxy: Proxy, protocol: Protocol
) -> None:
    """The kernel does not keep it: to set it again costs no message, and reading shows no drift."""
    key = (protocol.number, "10.96.0.10", 80)
    asked = service(ports=[port(protocol=protocol)], drain_seconds=30.0)

    def serve(*places: tuple[str, int]) -> None:
        ends = [endpoint(*place) for place in places]
        proxy.store.set_slice(endpoint_slice(endpoints=ends, protocol=protocol))
        proxy.store.set_service(asked)

    serve(A, B)
    await proxy.round()
    proxy.tables.ipvs.connections[key, A] = 1
    messages = proxy.tables.ipvs.messages
    proxy.restart()
    serve(A, B)
    await proxy.round()
    assert proxy.tables.ipvs.messages == messages
    assert (await proxy.round(full=True)).drifted_items == 0
    serve(B)
    await proxy.round()
    proxy.clock.advance(30)
    await proxy.round()
    assert proxy.weights(key) == {A: 0, B: 1}
    proxy.clock.advance(CUT_AFTER_SECONDS)
    await proxy.round()
    assert proxy.weights(key) == {B: 1}


async def test_a_process_that_only_reads_takes_a_limit_for_no_drift(proxy: Proxy) -> None:
    """It cannot know the limit: only the process that serves remembers it."""
    proxy.serve(A, B)
    proxy.store.set_service(service(drain_seconds=30.0))
    await proxy.round()
    reader = Proxy()
    reader.tables, reader.xtables = proxy.tables, proxy.xtables
    reader.restart()
    reader.serve(A, B)
    reader.store.set_service(service(drain_seconds=30.0))
    pipeline, backend = reader.engine.pipeline, reader.engine.backend
    pipeline.recompute()
    for sink in backend.kernel_sinks:
        pipeline.resync(sink, await sink.read())
    differing = pipeline.ledger.difference()
    assert [change.item for change in differing] == [VirtualServer(*TCP)]
    assert all(map(backend.is_under_way, differing))
    assert not list(edits_of(backend, differing, "nobody"))


async def test_an_endpoint_that_comes_back_while_draining_is_kept(proxy: Proxy) -> None:
    """One message sets its weight: it is never deleted in between."""
    proxy.serve(A, B)
    await proxy.round()
    proxy.tables.ipvs.connections[TCP, A] = 1
    proxy.serve(B)
    await proxy.round()
    proxy.serve(A, B)
    await proxy.round()
    assert proxy.weights() == {A: 1, B: 1}
    assert proxy.tables.ipvs.connections == {(TCP, A): 1}
    proxy.clock.advance(120)
    await proxy.round()
    assert proxy.weights() == {A: 1, B: 1}


@pytest.mark.parametrize("protocol", [Protocol.UDP, Protocol.SCTP])
async def test_udp_and_sctp_endpoints_go_at_once(proxy: Proxy, protocol: Protocol) -> None:
    key = (protocol.number, "10.96.0.10", 80)
    proxy.serve(A, B, protocol=protocol)
    await proxy.round()
    proxy.tables.ipvs.connections[key, A] = 1
    proxy.serve(B, protocol=protocol)
    await proxy.round()
    assert proxy.weights(key) == {B: 1}


async def test_a_restart_repairs_weights_and_goes_on_draining(proxy: Proxy) -> None:
    proxy.serve(A, B)
    await proxy.round()
    proxy.tables.ipvs.connections |= {(TCP, A): 1, (TCP, B): 1}
    proxy.tables.ipvs.real[TCP] = {A: Destination(*A, 0), B: Destination(*B, 0)}
    proxy.restart()
    proxy.serve(B)
    await proxy.round()
    assert proxy.weights() == {A: 0, B: 1}
    del proxy.tables.ipvs.connections[TCP, A]
    proxy.clock.advance(60)
    await proxy.round()
    assert proxy.weights() == {B: 1}


async def test_a_restart_over_its_own_state_writes_nothing(proxy: Proxy) -> None:
    proxy.serve(A, B)
    await proxy.round()
    messages, restores = proxy.tables.ipvs.messages, len(proxy.xtables.restores)
    entries = proxy.tables.ipset.entries_changed
    proxy.restart()
    proxy.serve(A, B)
    report = await proxy.round()
    assert report.changes == 0
    assert proxy.tables.ipvs.messages == messages
    assert proxy.tables.ipset.entries_changed == entries
    assert len(proxy.xtables.restores) == restores


async def test_one_changed_endpoint_costs_three_messages_at_any_size(proxy: Proxy) -> None:
    """Added, quiesced, deleted; one listing to see that it is idle; no rules, no sets."""
    for number in range(300):
        name = f"default/other-{number}"
        address = f"10.97.{number // 250}.{number % 250 + 1}"
        proxy.store.set_service(service(name, cluster_ip=address))
        proxy.store.set_slice(
            endpoint_slice(name, [endpoint(*A), endpoint(*B)], slice_name=f"s-{number}")
        )
    proxy.serve(A)
    await proxy.round()
    ipvs, sets = proxy.tables.ipvs, proxy.tables.ipset
    before = (ipvs.messages, ipvs.listings, sets.entries_changed, sets.listings)
    restores = len(proxy.xtables.restores)
    proxy.serve(B)
    report = await proxy.round()
    after = (ipvs.messages, ipvs.listings, sets.entries_changed, sets.listings)
    assert [new - old for new, old in zip(after, before, strict=True)] == [3, 1, 0, 0]
    assert len(proxy.xtables.restores) == restores
    assert report.changes == 1


async def test_rules_come_with_the_first_entry_and_go_with_the_last(proxy: Proxy) -> None:
    proxy.serve(A)
    await proxy.round()
    accept = "-m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT"
    assert accept in proxy.xtables.chains["nat"]["KUBE-SERVICES"]
    proxy.store.set_service(service("default/second", cluster_ip="10.96.0.11"))
    await proxy.round()
    proxy.store.delete_service(ServiceName("default", "web"))
    await proxy.round()
    assert accept in proxy.xtables.chains["nat"]["KUBE-SERVICES"]
    proxy.store.delete_service(ServiceName("default", "second"))
    await proxy.round()
    assert accept not in proxy.xtables.chains["nat"]["KUBE-SERVICES"]
    assert proxy.tables.ipvs.held == {}
    assert proxy.tables.route.bound == set()


async def test_foreign_virtual_servers_are_left_alone(proxy: Proxy) -> None:
    foreign = Service(6, "172.20.0.1", 80, "wrr", 0, 0)
    proxy.tables.ipvs.held[6, "172.20.0.1", 80] = foreign
    proxy.tables.ipvs.real[6, "172.20.0.1", 80] = {}
    proxy.serve(A)
    await proxy.round()
    await proxy.round(full=True)
    assert (6, "172.20.0.1", 80) in proxy.tables.ipvs.held


async def test_a_foreign_virtual_server_on_a_wanted_address_is_taken_over(proxy: Proxy) -> None:
    proxy.tables.ipvs.held[TCP] = Service(*TCP, "wlc", 0, 0)
    proxy.tables.ipvs.real[TCP] = {("10.9.9.9", 1): Destination("10.9.9.9", 1, 5)}
    proxy.serve(A)
    report = await proxy.round()
    assert report.is_success
    assert proxy.tables.ipvs.held[TCP].scheduler == "rr"
    assert proxy.weights() == {A: 1}


async def test_what_others_deleted_is_repaired_by_the_next_full_round(
    proxy: Proxy,
) -> None:
    proxy.serve(A, B)
    await proxy.round()
    del proxy.tables.ipvs.held[TCP], proxy.tables.ipvs.real[TCP]
    proxy.tables.route.bound = set()
    proxy.tables.ipset.sets["KUBE-CLUSTER-IP"][1].clear()
    report = await proxy.round(full=True)
    assert report.drifted_items == 3
    assert proxy.weights() == {A: 1, B: 1}
    assert proxy.tables.route.bound == {"10.96.0.10"}


async def test_a_vanished_virtual_server_is_noticed_by_a_change(proxy: Proxy) -> None:
    proxy.serve(A)
    await proxy.round()
    del proxy.tables.ipvs.held[TCP], proxy.tables.ipvs.real[TCP]
    proxy.serve(A, B)
    assert not (await proxy.round()).is_success
    assert (await proxy.round()).is_success
    assert proxy.weights() == {A: 1, B: 1}


async def test_one_bad_endpoint_is_named_and_the_others_serve(proxy: Proxy) -> None:
    proxy.tables.ipvs.refused_addresses = {A[0]}
    proxy.serve(A, B)
    proxy.store.set_service(service("default/fine", cluster_ip="10.96.0.11"))
    report = await proxy.round()
    (failure,) = report.refused
    assert str(failure.owner) == "default/web:http/TCP"
    assert failure.message == (
        "virtual server 10.96.0.10:80/TCP: real server 10.244.1.1 port 8080: Invalid argument"
    )
    assert proxy.weights() == {B: 1}
    assert (6, "10.96.0.11", 80) in proxy.tables.ipvs.held


async def test_a_full_set_is_reported_with_the_service(proxy: Proxy) -> None:
    await proxy.round()
    proxy.tables.ipset.full = {"KUBE-CLUSTER-IP"}
    proxy.serve(A)
    report = await proxy.round()
    assert [str(f.owner) for f in report.refused] == ["default/web:http/TCP"]
    assert "KUBE-CLUSTER-IP: 10.96.0.10,80: the set is full" in report.refused[0].message


async def test_an_address_that_cannot_be_bound_is_reported(proxy: Proxy) -> None:
    proxy.tables.route.refused = {"10.96.0.10"}
    proxy.serve(A)
    report = await proxy.round()
    assert [f.message for f in report.refused] == ["address 10.96.0.10: refused"]


PLACES = st.lists(st.sampled_from([A, B, ("10.244.1.3", 9090)]), unique=True)
STEPS = st.lists(st.tuples(st.sampled_from(["web", "db"]), PLACES), min_size=1, max_size=6)


def _put(proxy: Proxy, name: str, places: list[tuple[str, int]]) -> None:
    full, address = f"default/{name}", {"web": "10.96.0.10", "db": "10.96.0.11"}[name]
    if not places:
        proxy.store.delete_service(ServiceName("default", name))
        return
    ends = [endpoint(*place, local=place == A) for place in places]
    proxy.store.set_service(service(full, cluster_ip=address, external_ips=["203.0.113.7"]))
    proxy.store.set_slice(endpoint_slice(full, ends, slice_name=name))


@given(STEPS)
@settings(max_examples=examples(40))
async def test_any_history_ends_like_a_fresh_start(
    steps: list[tuple[str, list[tuple[str, int]]]],
) -> None:
    """Both services claim one external address; the smaller one has it, whatever came first."""
    worn, fresh = Proxy(), Proxy()
    for name, places in steps:
        _put(worn, name, places)
        assert (await worn.round()).is_success
    for name, places in dict(steps).items():
        _put(fresh, name, places)
    assert (await fresh.round()).is_success
    assert worn.tables.ipvs.held == fresh.tables.ipvs.held
    assert worn.tables.ipvs.real == fresh.tables.ipvs.real
    assert worn.tables.ipset.sets == fresh.tables.ipset.sets
    assert worn.tables.route.bound == fresh.tables.route.bound
    assert worn.xtables.chains == fresh.xtables.chains


def _state(proxy: Proxy) -> tuple[object, ...]:
    tables = proxy.tables
    held = {key: (tables.ipvs.held[key], tables.ipvs.real[key]) for key in tables.ipvs.held}
    return (held, tables.ipset.sets, tables.route.bound, proxy.xtables.chains)


@pytest.mark.parametrize("calls", range(28))
async def test_a_cut_anywhere_and_a_restart_converge(calls: int) -> None:
    """Whichever call was the last of a process, the next process ends where a fresh one does."""
    cut, fresh = Proxy(), Proxy()
    _put(cut, "web", [A, B])
    assert (await cut.round()).is_success
    cut.tables.patience.calls_left = calls
    _put(cut, "web", [])
    _put(cut, "db", [B])
    await cut.round()
    cut.tables.patience.calls_left = None
    cut.restart()
    for proxy in (cut, fresh):
        _put(proxy, "db", [B])
        assert (await proxy.round()).is_success
    assert _state(cut) == _state(fresh)


@pytest.mark.parametrize("calls", range(28))
async def test_a_cut_cold_start_converges(calls: int) -> None:
    cut, fresh = Proxy(), Proxy()
    cut.tables.patience.calls_left = calls
    _put(cut, "web", [A, B])
    await cut.round()
    cut.tables.patience.calls_left = None
    cut.restart()
    for proxy in (cut, fresh):
        _put(proxy, "web", [A, B])
        assert (await proxy.round()).is_success
    assert _state(cut) == _state(fresh)
