"""Any history of events ends like a fresh start on the final objects.

Sockets and carrier are real, in a namespace of their own; iptables is interpreted. Proxy ports
differ from run to run, so they are compared by whose they are.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.effort import examples
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.fake_xtables import FakeXtables

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.userspace.items import SocketItem, SocketValue
from kubeproxy.modes.userspace.mode import UserspaceBackend
from kubeproxy.modes.userspace.options import Options
from kubeproxy.modes.userspace.scaffold import SCOPE
from kubeproxy.sync.engine import Engine

NODE_IP = "192.0.2.10"
NAMES = ("default/a", "default/b", "default/c")
State: TypeAlias = tuple[Mapping[str, list[str]], Mapping[SocketItem, SocketValue]]


@st.composite
def services(draw: st.DrawFn, name: str) -> ServiceFacts:
    """Few addresses and ports, so that Services contest them."""
    ports = [
        port(80, node_port=draw(st.sampled_from((0, 30080, 30081)))),
        port(53, name="dns", protocol=Protocol.UDP, node_port=draw(st.sampled_from((0, 30080)))),
    ]
    return service(
        name,
        cluster_ip=f"10.96.0.{1 + NAMES.index(name)}",
        ports=ports[: draw(st.integers(1, 2))],
        external_ips=draw(st.lists(st.sampled_from((NODE_IP, "203.0.113.9")), unique=True)),
        external_local=draw(st.booleans()),
        internal_local=draw(st.booleans()),
        affinity_seconds=draw(st.sampled_from((0, 60))),
    )


class Event:
    """A Service appears, changes or goes; or its endpoints do."""

    def __init__(self, name: str, facts: ServiceFacts | None, pods: Sequence[int] | None) -> None:
        self._name = name
        self._facts = facts
        self._pods = pods

    def __repr__(self) -> str:
        return f"Event({self._name}, {self._facts}, {self._pods})"

    def happen(self, host: Host) -> None:
        store = host.engine.pipeline.store
        namespace, _, short = self._name.partition("/")
        if self._pods is not None:
            ready = [endpoint(f"10.244.1.{n}", local=n % 2 == 0) for n in self._pods]
            store.set_slice(endpoint_slice(self._name, ready, slice_name=short))
        elif self._facts is not None:
            store.set_service(self._facts)
        else:
            store.delete_service(ServiceName(namespace, short))


@st.composite
def events(draw: st.DrawFn) -> Event:
    name = draw(st.sampled_from(NAMES))
    if draw(st.booleans()):
        return Event(name, draw(st.none() | services(name)), None)
    return Event(name, None, draw(st.lists(st.integers(1, 4), unique=True)))


class Host:
    """An engine over real sockets and interpreted rules."""

    def __init__(self) -> None:
        self.backend = UserspaceBackend(Family.IPV4, Options())
        self.tables = FakeXtables()
        self.backend.netfilter = NetfilterSink(self.tables, SCOPE)
        self.engine = Engine(
            self.backend,
            node(ip=NODE_IP, addresses=("127.0.0.1", NODE_IP)),
            clock=FakeClock(),
            listener=RecordedRounds(),
        )

    async def run(self, history: Sequence[Sequence[Event]]) -> State:
        """Rounds, each after some events; what stands in the end."""
        await self.backend.start(self.engine.pipeline.node)
        try:
            for batch in history:
                for event in batch:
                    event.happen(self)
                report = await self.engine.round()
                assert report.failure_text == ""
            return self._rules(), await self.backend.sockets.read()
        finally:
            await self.backend.close()

    def _rules(self) -> Mapping[str, list[str]]:
        owners = {
            str(number): f"<{item.owner} {item.pool}>"
            for item, number in self.backend.sockets.learned.ports.items()
        }
        return {
            chain: [_named(rule, owners) for rule in rules]
            for chains in self.tables.chains.values()
            for chain, rules in chains.items()
            if chain.startswith("KUBE-")
        }


def _named(rule: str, owners: Mapping[str, str]) -> str:
    """The rule with the owners of proxy ports in place of their numbers."""
    return re.sub(r"\d{4,5}", lambda found: owners.get(found[0], found[0]), rule)


@pytest.mark.kernel
@settings(max_examples=examples(12), derandomize=True)
@given(st.lists(st.lists(events(), max_size=4), min_size=1, max_size=5))
def test_any_history_ends_like_a_fresh_start(history: list[list[Event]]) -> None:
    with scratch_namespace():
        subprocess.run(["ip", "addr", "add", f"{NODE_IP}/32", "dev", "lo"], check=True)
        lived = asyncio.run(Host().run(history))
        everything = [[event for batch in history for event in batch]]
        fresh = asyncio.run(Host().run(everything))
    assert lived == fresh


@pytest.mark.kernel
def test_of_two_services_on_one_node_port_the_smaller_name_has_it() -> None:
    """And when it leaves, the other takes over; upstream refused the second for good."""
    first, second = (service(name, node_port=30080) for name in NAMES[:2])
    pods = [Event(name, None, [1]) for name in NAMES[:2]]
    both = [[*pods, Event(NAMES[1], second, None)], [Event(NAMES[0], first, None)]]
    with scratch_namespace():
        rules, _ = asyncio.run(Host().run(both))
        assert [("default/a" in rule) for rule in rules["KUBE-NODEPORT-CONTAINER"]] == [True]
        rules, _ = asyncio.run(Host().run([*both, [Event(NAMES[0], None, None)]]))
        assert [("default/b" in rule) for rule in rules["KUBE-NODEPORT-CONTAINER"]] == [True]
