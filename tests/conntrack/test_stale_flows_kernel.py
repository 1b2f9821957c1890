"""Which flows of a real table are gone after each kind of change, and that all others stay.

Flows are put into the table without packets, so that also those are there that no packet of this
test could make. With packets, and in every mode, the flows `10-udp-*` of the corpus do the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from msgspec import Struct
from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.conntrack_kit import flow, listed, packed
from tests.support.engine_kit import FakeClock, RecordedRounds

from kpctl.places.flows import insert_flows
from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.kernel.conntrack.table import delete_stale
from kubeproxy.modes.base import AnyBackend
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options as IptablesOptions
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.options import Options as NftablesOptions
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.flows import FlowCleaner

pytestmark = pytest.mark.kernel

UDP = Protocol.UDP
NAME = "default/dns"

FOUR = {"vip": "10.96.0.10", "external": "203.0.113.9", "node": "192.0.2.10", "a": "10.244.1.1",
        "b": "10.244.1.2", "else": "10.96.0.99", "far": "198.51.100.7"}  # fmt: skip
SIX = {"vip": "fd00:96::a", "external": "2001:db8:9::9", "node": "2001:db8:10::10",
       "a": "fd00:244::1", "b": "fd00:244::2", "else": "fd00:96::99",
       "far": "2001:db8:7::7"}  # fmt: skip


class State(Struct, frozen=True):
    """The Service as it is at one time, with names in place of addresses."""

    endpoints: tuple[str, ...] = ("a",)
    port: int = 53
    target: int = 5353
    node_port: int = 30053
    external: bool = True
    is_local: bool = False
    is_serving: bool = True


class Host:
    """One family's engine and cleaner in a namespace; made again, it is a restarted proxy."""

    def __init__(self, family: Family, create: Callable[[Family], AnyBackend]) -> None:
        self.family = family
        self.names = FOUR if family is Family.IPV4 else SIX
        self._create = create
        self.start()

    def start(self) -> None:
        self.backend, listener, clock = self._create(self.family), RecordedRounds(), FakeClock()
        self.flows = FlowCleaner(self.family, delete_stale, clock=clock, listener=listener)
        self.engine = Engine(
            self.backend,
            node(self.family, addresses=[self.names["node"]]),
            clock=clock,
            listener=listener,
            flows=self.flows,
        )

    async def become(self, state: State | None) -> None:
        """Serve this, or nothing, and delete what is stale."""
        store = self.engine.pipeline.store
        if state is None:
            store.delete_service(ServiceName("default", "dns"))
        else:
            store.set_service(self._service(state))
            found = [
                endpoint(
                    self.names[n], state.target, ready=state.is_serving, serving=state.is_serving
                )
                for n in state.endpoints
            ]
            store.set_slice(endpoint_slice(NAME, found, port_name="dns", protocol=UDP))
        assert (await self.engine.round()).failure_text == ""
        await self.flows.clean()
        assert self.engine.flows_owed == 0

    def _service(self, state: State) -> ServiceFacts:
        return service(
            NAME,
            cluster_ip=self.names["vip"],
            ports=[port(state.port, name="dns", protocol=UDP, node_port=state.node_port)],
            external_ips=[self.names["external"]] if state.external else [],
            external_local=state.is_local,
        )

    async def restart(self) -> None:
        await self.backend.close()
        self.start()

    def fill(self) -> None:
        """Put every flow of the test into the table."""
        flows = [*OURS, *FOREIGN]
        insert_flows(
            flow(self._place(to), self._place(by), source_port=20000 + number)
            for number, (to, by) in enumerate(flows)
        )
        insert_flows(
            flow(self._place(to), self._place(by), source_port=20000 + n, protocol=Protocol.TCP)
            for n, (to, by) in enumerate(flows)
        )

    def _place(self, text: str) -> tuple[str, int]:
        name, _, number = text.partition(":")
        return self.names[name], int(number)

    def left(self, protocol: Protocol = UDP) -> set[tuple[str, str]]:
        """The flows of the test that are in the table."""
        found = listed(self.family, protocol=protocol)
        return {
            (to, by)
            for to, by in (*OURS, *FOREIGN)
            if (packed(*self._place(to)), packed(*self._place(by))) in found
        }


ARRIVING = ("vip:53", "external:53", "node:30053")
OURS = {(to, by) for to in ARRIVING for by in ("a:5353", "b:5353", to)}
"""To each frontend: translated to each endpoint, and not translated."""
FOREIGN = {
    ("far:30053", "far:30053"),
    ("far:53", "far:53"),
    ("a:5353", "a:5353"),
    ("vip:54", "a:5353"),
    ("else:53", "b:5353"),
    ("node:30054", "a:5353"),
    ("node:53", "node:53"),
}
"""To other hosts at the same ports, directly to an endpoint, to another Service."""


def to_endpoint(name: str) -> set[tuple[str, str]]:
    return {(to, by) for to, by in OURS if by == f"{name}:5353"}


def untranslated(*places: str) -> set[tuple[str, str]]:
    return {(to, to) for to in places}


CASES: dict[str, tuple[State | None, State | None, set[tuple[str, str]]]] = {
    "the Service appears": (None, State(), to_endpoint("a")),
    "its endpoint is replaced": (State(), State(("b",)), to_endpoint("b")),
    "one of two endpoints goes": (State(("a", "b")), State(("b",)), to_endpoint("b")),
    "the first endpoint comes": (State(()), State(), to_endpoint("a")),
    "the last endpoint goes": (State(), State(()), untranslated(*ARRIVING)),
    "the last endpoint stops serving": (State(), State(is_serving=False), OURS),
    "the Service is deleted": (State(), None, OURS - to_endpoint("a")),
    "another port": (
        State(),
        State(port=55),
        {("vip:53", "b:5353"), ("vip:53", "vip:53"), ("external:53", "b:5353"),
         ("external:53", "external:53"), ("node:30053", "a:5353")},
    ),
    "another node port": (
        State(),
        State(node_port=30055),
        {("vip:53", "a:5353"), ("external:53", "a:5353"), ("node:30053", "b:5353"),
         ("node:30053", "node:30053")},
    ),
    "another target port": (State(), State(target=5354), set()),
    "its external IP goes": (
        State(),
        State(external=False),
        (to_endpoint("a") - {("external:53", "a:5353")})
        | {("external:53", "b:5353"), ("external:53", "external:53")},
    ),
    "its policy becomes Local": (State(("a", "b")), State(("a", "b"), is_local=True), OURS),
    "one more endpoint": (State(), State(("a", "b")), OURS),
}  # fmt: skip
"""What was, what is, and which of our flows are left then."""


@pytest.fixture(params=["nftables", "iptables"])
def create(request: pytest.FixtureRequest) -> Callable[[Family], AnyBackend]:
    if request.param == "nftables":
        return lambda family: NftablesBackend(family, NftablesOptions())
    return lambda family: IptablesBackend(family, IptablesOptions())


@pytest.fixture
def namespace() -> Iterator[None]:
    with scratch_namespace():
        yield


@pytest.fixture(params=Family)
async def host(
    request: pytest.FixtureRequest, namespace: None, create: Callable[[Family], AnyBackend]
) -> AsyncIterator[Host]:
    made = Host(request.param, create)
    await made.backend.start(made.engine.node)
    yield made
    await made.backend.close()


@pytest.mark.parametrize("name", CASES)
async def test_what_is_left_after_a_change(name: str, host: Host) -> None:
    before, after, left = CASES[name]
    await host.become(before)
    host.fill()
    await host.become(after)
    assert host.left() == left | FOREIGN
    assert host.left(Protocol.TCP) == OURS | FOREIGN


@pytest.mark.parametrize("after", [State(("b",)), State(()), State(("b",), node_port=30056)])
async def test_a_restart_finds_what_changed_meanwhile(after: State, host: Host) -> None:
    """Every UDP port that exists is owed a search then, as upstream's."""
    await host.become(State())
    host.fill()
    await host.restart()
    await host.become(after)
    left = to_endpoint("b") if after.endpoints else untranslated(*ARRIVING)
    if after.node_port != 30053:
        left |= {(to, by) for to, by in OURS if to == "node:30053"}
    assert host.left() == left | FOREIGN
