"""What is owed a search for stale flows, and until when."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import node

from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.plan.conntrack import FlowRule, FlowRules, Standing
from kubeproxy.sync.flow_debts import LONGEST_PAUSE_SECONDS, FlowDebts

UDP = Protocol.UDP
DNS = ServicePortId("kube-system", "dns", "dns", UDP)
SYSLOG = ServicePortId("default", "syslog", "", UDP)
VIP, OTHER_VIP = b"\x0a\x60\x00\x0a\x00\x35", b"\x0a\x60\x00\x0b\x00\x35"
FIRST, SECOND, THIRD = (b"\x0a\xf4\x00%c\x00\x35" % number for number in (1, 2, 3))


def served(*endpoints: bytes, at: bytes = VIP) -> FlowRules:
    standing = Standing.SERVED if endpoints else Standing.EMPTY
    return {at: FlowRule(standing, frozenset(endpoints))}


def moved(debts: FlowDebts, before: FlowRules, after: FlowRules, now: float = 0) -> None:
    debts.change(DNS, before)
    debts.programmed(DNS, after, now)


def test_a_search_settles_what_it_began_with() -> None:
    debts = FlowDebts()
    moved(debts, served(FIRST), served(SECOND))
    searched = debts.due(UDP, 0)
    assert list(searched) == [DNS]
    debts.settle(UDP, searched, (), 1)
    assert not debts
    assert debts.next_due() == float("inf")
    assert not debts.is_stale(UDP, VIP, FIRST)


def test_a_failed_search_is_tried_again_after_a_growing_pause() -> None:
    debts, now = FlowDebts(), 0.0
    moved(debts, served(FIRST), served(SECOND))
    pauses = []
    for _ in range(9):
        searched = debts.due(UDP, now)
        assert list(searched) == [DNS]
        debts.postpone(searched, now)
        assert not debts.due(UDP, now)
        pauses.append(debts.next_due() - now)
        now = debts.next_due()
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    debts.settle(UDP, debts.due(UDP, now), (), now)
    assert not debts


def test_a_new_debt_does_not_wait_for_one_that_failed() -> None:
    debts = FlowDebts()
    moved(debts, served(FIRST), served(SECOND))
    debts.postpone(debts.due(UDP, 0), 0)
    debts.change(SYSLOG, {})
    debts.programmed(SYSLOG, served(THIRD, at=OTHER_VIP), 0)
    assert list(debts.due(UDP, 0)) == [SYSLOG]


def test_only_the_service_port_whose_flow_was_refused_stays_owed() -> None:
    debts = FlowDebts()
    moved(debts, served(FIRST), served(SECOND))
    debts.change(SYSLOG, served(FIRST, at=OTHER_VIP))
    debts.programmed(SYSLOG, served(SECOND, at=OTHER_VIP), 0)
    debts.settle(UDP, debts.due(UDP, 0), [OTHER_VIP], 0)
    assert len(debts) == 1
    assert list(debts.due(UDP, 1)) == [SYSLOG]


def test_what_changes_during_a_search_is_judged_by_its_newest_rules_and_stays_owed() -> None:
    """A flow to an endpoint that was added meanwhile is right."""
    debts = FlowDebts()
    moved(debts, served(FIRST), served(SECOND))
    searched = debts.due(UDP, 0)
    assert debts.is_stale(UDP, VIP, THIRD)
    debts.change(DNS, served(SECOND))
    assert not debts.is_stale(UDP, VIP, FIRST), "between two states of the rules"
    debts.programmed(DNS, served(SECOND, THIRD), 1)
    assert not debts.is_stale(UDP, VIP, THIRD)
    assert debts.is_stale(UDP, VIP, FIRST)
    debts.settle(UDP, searched, (), 2)
    assert list(debts.due(UDP, 2)) == [DNS]


def test_nothing_is_due_while_its_rules_are_between_two_states() -> None:
    debts = FlowDebts()
    moved(debts, served(FIRST), served(SECOND))
    searched = debts.due(UDP, 0)
    debts.change(DNS, served(SECOND))
    debts.settle(UDP, searched, (), 0)
    assert (len(debts), debts.next_due(), dict(debts.due(UDP, 9))) == (1, float("inf"), {})


def test_all_that_was_served_since_the_last_search_is_remembered() -> None:
    """Also what came and went between two rounds that failed."""
    debts = FlowDebts()
    debts.change(DNS, served(FIRST))
    debts.change(DNS, served(SECOND))
    debts.programmed(DNS, served(THIRD), 0)
    debts.postpone(debts.due(UDP, 0), 0)
    moved(debts, served(THIRD), {}, 1)
    assert [debts.is_stale(UDP, VIP, by) for by in (FIRST, SECOND, THIRD, VIP)] == [
        *(True, True, True),
        False,
    ]
    assert len(debts) == 1


def test_a_place_that_two_service_ports_claim_is_decided_by_the_one_that_serves_it() -> None:
    debts = FlowDebts()
    debts.change(SYSLOG, {})
    debts.programmed(SYSLOG, served(FIRST, SECOND), 0)
    moved(debts, served(SECOND, THIRD), {})
    assert [debts.is_stale(UDP, VIP, by) for by in (FIRST, SECOND, THIRD)] == [False, False, True]


# --- any history ---

OWNERS = (DNS, SYSLOG)
PLACES = {DNS: (VIP, b"\x75\x35"), SYSLOG: (OTHER_VIP, b"\x75\x36")}
NODE_ADDRESS = b"\xc0\x00\x02\x0a"
FOREIGN = (b"\x08\x08\x08\x08\x00\x35", b"\xcb\x00\x71\x01\x75\x35")

states = st.none() | st.tuples(st.booleans(), st.sets(st.sampled_from((FIRST, SECOND, THIRD))))
"""No Service; or whether it has a node port, and its serving endpoints."""

steps = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.sampled_from(OWNERS), states),
        st.tuples(st.just("round"), st.sampled_from(("done", "failed"))),
        st.tuples(st.just("search"), st.sampled_from(("done", "failed", "refused", "begun"))),
    ),
    max_size=12,
)


def rules_of(owner: ServicePortId, state: tuple[bool, set[bytes]] | None) -> FlowRules:
    if state is None:
        return {}
    has_node_port, endpoints = state
    rule = served(*endpoints)[VIP]
    return dict.fromkeys(PLACES[owner][: 2 if has_node_port else 1], rule)


def destination(place: bytes) -> bytes:
    return place if len(place) > 2 else NODE_ADDRESS + place


class World:
    """Two service ports, a kernel with rules and flows, and clients that never stop sending."""

    def __init__(self) -> None:
        self.debts = FlowDebts()
        self.debts.set_node(node(addresses=("192.0.2.10",)))
        self.wanted: dict[ServicePortId, FlowRules] = {owner: {} for owner in OWNERS}
        self.kernel = dict(self.wanted)
        self.flows = {(to, to) for to in FOREIGN}
        self.under_way: dict[ServicePortId, int] | None = None
        self.now = 0.0
        self.send()

    def send(self) -> None:
        """A client for everything that a packet may meet now begins a flow."""
        for owner in OWNERS:
            for place in PLACES[owner]:
                to, rule = destination(place), self.kernel[owner].get(place)
                if rule is None:
                    self.flows.add((to, to))
                self.flows |= {(to, by) for by in (rule.endpoints if rule else ())}

    def change(self, owner: ServicePortId, state: tuple[bool, set[bytes]] | None) -> None:
        before, self.wanted[owner] = self.wanted[owner], rules_of(owner, state)
        if before != self.wanted[owner]:
            self.debts.change(owner, before)

    def round(self, outcome: str) -> None:
        """A failed one may have programmed everything all the same."""
        self.kernel = dict(self.wanted)
        self.send()
        if outcome == "done":
            for owner in list(self.debts.changing()):
                self.debts.programmed(owner, self.wanted[owner], self.now)

    def search(self, outcome: str) -> None:
        """Look at the front half of the table and then at the back half, now or with a later step.

        A refused flow stays, and a search that fails does so before it has seen the back half.
        """
        if self.under_way is None:
            self.now += LONGEST_PAUSE_SECONDS
            self.under_way = dict(self.debts.due(UDP, self.now))
            self.refused: set[bytes] = set()
            self._look_at(front=True, is_refused=outcome == "refused")
        if outcome == "begun":
            return
        searched, self.under_way = self.under_way, None
        if outcome == "failed":
            self.debts.postpone(searched, self.now)
            return
        self._look_at(front=False, is_refused=outcome == "refused")
        self.debts.settle(UDP, searched, self.refused, self.now)

    def _look_at(self, *, front: bool, is_refused: bool) -> None:
        half = {flow for flow in self.flows if (sum(flow[0] + flow[1]) % 2 == 0) is front}
        stale = {flow for flow in half if self.debts.is_stale(UDP, *flow)}
        self.refused |= {to for to, _ in stale if is_refused}
        self.flows -= set() if is_refused else stale

    def wrong(self) -> Iterator[tuple[bytes, bytes]]:
        for owner in OWNERS:
            for place in PLACES[owner]:
                rule = self.kernel[owner].get(place)
                for to, by in self.flows:
                    if to == destination(place) and (rule.is_stale(to, by) if rule else to != by):
                        yield to, by


@given(steps)
def test_whatever_happens_no_stale_flow_is_left_and_no_other_is_touched(
    history: list[tuple[object, ...]],
) -> None:
    world = World()
    for name, *arguments in history:
        getattr(world, str(name))(*arguments)
    world.round("done")
    while world.debts:
        world.search("done")
    assert not list(world.wrong())
    assert {flow for flow in world.flows if flow[0] in FOREIGN} == {(to, to) for to in FOREIGN}
    before = set(world.flows)
    world.send()
    assert world.flows == before, "a flow that is right was deleted"
