"""Any history of events ends like a fresh start on the final objects: fake, then real kernel."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.effort import examples
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.fake_xtables import FakeXtables

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.base import AnySink
from kubeproxy.modes.iptables.check import probe_features
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.iptables.scaffold import SCOPE
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.rules.text import parse_save
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.xtables import Tables, Xtables
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.pipeline import Pipeline
from kubeproxy.sync.refused import FIRST_PAUSE_SECONDS

NAMES = ("a/one", "a/two", "b/one", "c/x-1", "c/x")


@st.composite
def services(draw: st.DrawFn, name: str) -> ServiceFacts:
    """A Service of any shape."""
    number = NAMES.index(name) + 1
    kind = draw(st.integers(0, 4))
    protocol = draw(st.sampled_from([Protocol.TCP, Protocol.UDP]))
    external_local = draw(st.booleans()) and kind > 1
    return service(
        name,
        cluster_ip=f"10.96.0.{number}",
        ports=[
            port(80, protocol=protocol, node_port=30000 + number if kind in (1, 2) else 0),
            port(81, name="other"),
        ][: draw(st.integers(1, 2))],
        external_ips=[f"203.0.113.{number}"] if kind == 3 else [],
        load_balancer_ips=[f"198.51.100.{number}"] if kind in (2, 4) else [],
        source_ranges=["192.0.2.0/24", "203.0.113.0/25"] if draw(st.booleans()) else [],
        affinity_seconds=draw(st.sampled_from([0, 0, 600])),
        external_local=external_local,
        internal_local=draw(st.booleans()),
        health_check_node_port=32000 + number if external_local else 0,
    )


_ENDPOINTS = st.lists(
    st.builds(
        lambda host, local, state: endpoint(
            f"10.244.{host % 3}.{host}",
            local=local,
            ready=state == 0,
            serving=state < 2,
            terminating=state == 1,
        ),
        st.integers(1, 12),
        st.booleans(),
        st.integers(0, 2),
    ),
    max_size=6,
    unique_by=lambda e: e.address,
)


@st.composite
def _events(draw: st.DrawFn) -> tuple[str, str, object]:
    name = draw(st.sampled_from(NAMES))
    what = draw(st.sampled_from(["set", "set", "slice", "slice", "slice", "drop", "zone", "read"]))
    if what == "set":
        return (what, name, draw(services(name)))
    return (what, name, draw(_ENDPOINTS) if what == "slice" else draw(st.booleans()))


class History:
    """A proxy without engine: store, plans, ledger, sink."""

    def __init__(self, tables: Tables) -> None:
        self.backend = IptablesBackend(Family.IPV4, Options())
        self.tables = tables
        self.sink: AnySink = NetfilterSink(tables, SCOPE)
        self.pipeline = Pipeline(self.backend, node())

    async def read(self) -> None:
        self.pipeline.ledger.resync(await self.sink.read())

    def take(self, what: str, name: str, value: object) -> None:
        store = self.pipeline.store
        if isinstance(value, ServiceFacts):
            store.set_service(value)
        elif isinstance(value, list):
            found: list[Endpoint] = sorted(value, key=lambda e: e.text)
            store.set_slice(endpoint_slice(name, found, slice_name=f"{name}-1"))
        elif what == "drop":
            store.delete_service(ServiceName(*name.split("/")))
        elif what == "zone":
            self.pipeline.set_node(node(zone="z", masquerade_all=bool(value)))

    async def sync(self) -> None:
        self.pipeline.recompute()
        for batch in self.sink.compile(self.pipeline.ledger.difference()):
            await self.sink.apply(batch)
            self.pipeline.ledger.confirm(batch.changes)

    def copy_facts_to(self, other: History) -> None:
        """Only what holds now, not how it came about."""
        mine, theirs = self.pipeline.store, other.pipeline.store
        for name in sorted(mine.names()):
            facts = mine.service(name)
            if facts is not None:
                theirs.set_service(facts)
            found = [e for endpoints in mine.endpoints(name).values() for e in endpoints]
            theirs.set_slice(endpoint_slice(str(name), found, slice_name=f"{name}-1"))
        other.pipeline.set_node(self.pipeline.node)


_HISTORIES = st.lists(_events(), min_size=1, max_size=25)


@settings(max_examples=examples(40))
@given(_HISTORIES, st.booleans())
async def test_any_history_ends_like_a_fresh_start(
    events: list[tuple[str, str, object]], is_nft: bool
) -> None:
    """Rules, chains and their order depend on the facts alone; a re-read finds nothing to do."""
    history = History(FakeXtables(is_nft=is_nft))
    await history.read()
    for event in events:
        history.take(*event)
        if event[0] == "read":
            await history.read()
        await history.sync()
    fresh = History(FakeXtables(is_nft=is_nft))
    history.copy_facts_to(fresh)
    await fresh.read()
    await fresh.sync()
    assert isinstance(history.tables, FakeXtables)
    assert isinstance(fresh.tables, FakeXtables)
    assert history.tables.meaning() == fresh.tables.meaning()
    await history.read()
    assert not history.pipeline.ledger.has_pending


@settings(max_examples=examples(20))
@given(_HISTORIES, st.data())
async def test_a_cut_anywhere_and_a_restart_converge(
    events: list[tuple[str, str, object]], data: st.DataObject
) -> None:
    """A proxy that dies between two batches leaves nothing a new one cannot take over."""
    tables = FakeXtables()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kubeproxy.modes.netfilter.sinks.rules.NFT_BATCH_LINES", 6)
        history = History(tables)
        await history.read()
        for event in events:
            history.take(*event)
        history.pipeline.recompute()
        changes = history.pipeline.ledger.difference()
        cut = data.draw(st.integers(0, len(list(history.sink.compile(changes)))))
        for batch in islice(history.sink.compile(changes), cut):
            await history.sink.apply(batch)
        successor = History(tables)
        history.copy_facts_to(successor)
        await successor.read()
        await successor.sync()
        fresh = History(FakeXtables())
        history.copy_facts_to(fresh)
        await fresh.read()
        await fresh.sync()
        assert isinstance(fresh.tables, FakeXtables)
        assert tables.meaning() == fresh.tables.meaning()


async def _settled(tables: Xtables) -> Mapping[str, object]:
    found = parse_save("".join([await tables.save(table) for table in SCOPE.tables]))
    return {table.name: table for table in found}


@pytest.mark.kernel
@pytest.mark.parametrize("variant", ["nft", "legacy"])
@settings(max_examples=examples(8))
@given(st.lists(_events(), min_size=3, max_size=10))
async def test_histories_in_a_kernel_end_like_a_fresh_start(
    variant: str, events: list[tuple[str, str, object]]
) -> None:
    """The same with the real tools: iptables-save after increments equals that after one sync."""
    with scratch_namespace():
        tables = Xtables(Family.IPV4, ToolOptions(variant=variant))
        await probe_features(tables)
        history = History(tables)
        await history.read()
        for event in events:
            history.take(*event)
            if event[0] == "read":
                await history.read()
            await history.sync()
        grown = await _settled(tables)
    with scratch_namespace():
        tables = Xtables(Family.IPV4, ToolOptions(variant=variant))
        await probe_features(tables)
        fresh = History(tables)
        history.copy_facts_to(fresh)
        await fresh.read()
        await fresh.sync()
        assert await _settled(tables) == grown


async def test_a_refused_service_does_not_stop_the_others() -> None:
    """The culprit is named, the rest goes through; once it is mended, so does it."""
    tables = FakeXtables()
    tables.refuse_containing = "recent"
    backend = IptablesBackend(Family.IPV4, Options())
    backend.netfilter = NetfilterSink(tables, SCOPE)
    clock = FakeClock()
    engine = Engine(
        backend,
        node(),
        clock=clock,
        listener=RecordedRounds(),
    )
    store = engine.pipeline.store
    names = [f"a/s{number}" for number in range(9)]
    for number, name in enumerate(names):
        seconds = 60 if name == "a/s5" else 0
        facts = service(name, cluster_ip=f"10.96.0.{number}", affinity_seconds=seconds)
        store.set_service(facts)
        store.set_slice(endpoint_slice(name, [endpoint()], slice_name=name))
    report = await engine.round()
    assert [str(failure.owner) for failure in report.refused] == ["a/s5:http/TCP"]
    assert "refused was" in report.refused[0].message
    assert len(tables.chains["nat"]["KUBE-SERVICES"]) == 9
    tables.refuse_containing = ""
    clock.advance(FIRST_PAUSE_SECONDS)
    assert (await engine.round()).failure_text == ""
    assert len(tables.chains["nat"]["KUBE-SERVICES"]) == 10
    assert backend.netfilter.statistics.failures > 0


@pytest.mark.parametrize("has_succeeded", [True, False], ids=["just broken", "broken before"])
async def test_a_tool_that_refuses_everything_is_not_asked_for_every_service(
    has_succeeded: bool,
) -> None:
    """No Service is to blame: the round fails, and is repeated as a whole."""
    tables = FakeXtables()
    backend = IptablesBackend(Family.IPV4, Options())
    backend.netfilter = NetfilterSink(tables, SCOPE)
    engine = Engine(
        backend,
        node(),
        clock=FakeClock(),
        listener=RecordedRounds(),
    )
    store = engine.pipeline.store
    if has_succeeded:
        assert (await engine.round()).failure_text == ""
    for number in range(300):
        name = f"a/s{number}"
        store.set_service(service(name, cluster_ip=f"10.96.{number // 250}.{number % 250 + 1}"))
        store.set_slice(endpoint_slice(name, [endpoint()], slice_name=name))
    tables.restores.clear()
    tables.refuse_containing = "comment"
    report = await engine.round()
    assert "no Service is to blame" in report.error
    assert report.refused == ()
    assert len(tables.restores) <= 4
    tables.refuse_containing = ""
    assert (await engine.round()).failure_text == ""
    assert len(tables.chains["nat"]["KUBE-SERVICES"]) >= 300
