"""`kpctl trace` in ipvs mode, over a kernel in memory that interprets every message."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.fake_ipvs import FakeTables
from tests.support.fake_xtables import FakeXtables

from kpctl.snapshot.types import Snapshot
from kpctl.trace.cli import exit_code
from kpctl.trace.packets import Ruling
from kpctl.trace.question import Answer, Question, answer
from kpctl.trace.subject import parse_destination
from kpctl.trace.text import answer_lines
from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.facts.ids import Family
from kubeproxy.modes.ipvs.mode import IpvsBackend
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.sync.engine import Engine, EngineTimes

VIPS = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00:10:96::a"}
PODS = {Family.IPV4: "10.244.1.5", Family.IPV6: "fd00:244:1::5"}
OWN = {Family.IPV4: "192.0.2.10", Family.IPV6: "fd00:c0:2::a"}


class Proxy:
    """A proxy that has programmed one Service."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.tables, self.xtables = FakeTables(), FakeXtables(is_nft=False)
        facts = replace(
            node(),
            family=family,
            ip=OWN[family],
            addresses=(OWN[family], family.loopback),
            node_port_cidrs=(family.zero_cidr,),
        )
        self.backend = IpvsBackend(family, Options(), tables=self.tables, rules=self.xtables)
        self.engine = Engine(
            self.backend,
            facts,
            clock=FakeClock(),
            listener=RecordedRounds(),
            times=EngineTimes(min_seconds=0),
        )
        store = self.engine.pipeline.store
        store.set_service(service(cluster_ip=VIPS[family], ports=[port()]))
        store.set_slice(endpoint_slice(endpoints=[endpoint(PODS[family])]))
        self.engine.mark_synced()
        asyncio.run(self._round())

    async def _round(self) -> None:
        self.engine.request(full=True)
        await self.engine.round()

    def trace(self, number: int = 80) -> Answer:
        settings = parse_command_line(["--proxy-mode=ipvs"])
        assert isinstance(settings, Settings)
        snapshot = Snapshot(
            origin="a test",
            node="n",
            settings=settings,
            backends={self.family: self.backend},
            pipelines={self.family: self.engine.pipeline},
            held={},
        )
        address = VIPS[self.family]
        place = f"[{address}]" if ":" in address else address
        question = Question("outside", parse_destination(f"{place}:{number}"))
        return asyncio.run(answer(snapshot, question, is_live=True))

    def lines(self, found: Answer) -> list[str]:
        facts = self.engine.pipeline.node
        return list(answer_lines(found.comparison, found.wanted, self.backend, facts, mode="ipvs"))


@pytest.fixture(params=list(Family), ids=lambda family: family.value)
def proxy(request: pytest.FixtureRequest) -> Proxy:
    return Proxy(request.param)


def test_a_virtual_server_forwards(proxy: Proxy) -> None:
    found = proxy.trace()
    assert exit_code(found.comparison) == 0, proxy.lines(found)
    assert found.comparison.verdict is Ruling.FORWARD
    assert "Verdict: forwarded; plan, rules and kernel agree." in proxy.lines(found)


def test_a_port_that_is_not_served_is_rejected(proxy: Proxy) -> None:
    found = proxy.trace(81)
    assert found.comparison.verdict is Ruling.REJECT
    assert exit_code(found.comparison) == 3, proxy.lines(found)


def test_a_real_server_that_was_removed_is_the_first_difference(proxy: Proxy) -> None:
    for real in proxy.tables.ipvs.real.values():
        real.clear()
    found = proxy.trace()
    assert exit_code(found.comparison) == 1
    text = "\n".join(proxy.lines(found))
    assert "the kernel has another virtual server" in text
    assert "of default/web:http/TCP" in text
    assert found.comparison.verdict is Ruling.REJECT


def test_an_address_that_was_removed_from_the_link_is_the_first_difference(proxy: Proxy) -> None:
    proxy.tables.route.bound = set()
    found = proxy.trace()
    assert exit_code(found.comparison) == 1
    assert any("the kernel has no address" in line for line in proxy.lines(found))


def test_a_limit_for_draining_is_no_difference() -> None:
    """Another process cannot read it: only the proxy that serves knows it."""
    proxy = Proxy(Family.IPV4)
    drained = service(cluster_ip=VIPS[Family.IPV4], ports=[port()], drain_seconds=30.0)
    proxy.engine.pipeline.store.set_service(drained)
    asyncio.run(proxy._round())
    proxy.backend = IpvsBackend(Family.IPV4, Options(), tables=proxy.tables, rules=proxy.xtables)
    assert proxy.trace().comparison.difference is None
