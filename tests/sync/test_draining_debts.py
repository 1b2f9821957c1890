"""Connections to endpoints that go: spared until their limit, then owed a search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.builders import endpoint, node, port, service

from kubeproxy.facts.endpoint import PortKey
from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.plan.conntrack import NO_FLOWS, FlowRules, flow_rules, pack_socket
from kubeproxy.plan.frontends import Frontends
from kubeproxy.plan.service import plan_service
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync.flow_debts import MOST_LEAVING, FlowDebts

TCP, UDP = Protocol.TCP, Protocol.UDP
NODE = node(addresses=("192.0.2.10",))
VIP = pack_socket("10.96.0.10", 80)
OUTSIDE = pack_socket("203.0.113.7", 80)
A, B, C = (pack_socket(f"10.244.1.{number}", 8080) for number in (1, 2, 3))
WEB = ServicePortId("default", "web", "http", TCP)
LIMIT = 30.0


def plan_of(
    *numbers: int,
    drain: float | None = LIMIT,
    name: str = "default/web",
    protocol: Protocol = TCP,
    external_ips: Sequence[str] = (),
) -> ServicePlan:
    ports = [port(protocol=protocol)]
    asked = service(name, ports=ports, drain_seconds=drain, external_ips=external_ips)
    found = tuple(endpoint(f"10.244.1.{number}") for number in numbers)
    (plan,) = plan_service(asked, {PortKey("http", protocol): found}, NODE)
    return plan


def rules_of(
    *numbers: int, drain: float | None = LIMIT, external_ips: Sequence[str] = ()
) -> FlowRules:
    return flow_rules(plan_of(*numbers, drain=drain, external_ips=external_ips))


def debts_with(*plans: ServicePlan) -> FlowDebts:
    debts = FlowDebts()
    debts.set_node(NODE)
    debts.frontends = Frontends(NODE, plans or [plan_of(1)])
    return debts


def move(debts: FlowDebts, before: FlowRules, after: FlowRules, now: float) -> None:
    debts.change(WEB, before)
    debts.programmed(WEB, after, now)


def search(debts: FlowDebts, now: float, *, settles: bool = True) -> set[bytes]:
    """The endpoints whose flows a search at this time deletes; none if it was not due at all."""
    return {by for to, by in search_all(debts, now, settles=settles) if to == VIP}


def search_all(debts: FlowDebts, now: float, *, settles: bool = True) -> set[tuple[bytes, bytes]]:
    owners = debts.due(TCP, now)
    debts.begin(owners, now)
    looked_at = product((VIP, OUTSIDE), (VIP, A, B, C)) if owners else ()
    found = {flow for flow in looked_at if debts.is_stale(TCP, *flow)}
    if settles:
        debts.settle(TCP, owners, (), now)
    else:
        debts.postpone(owners, now)
    return found


def test_flows_to_an_endpoint_that_goes_are_spared_until_the_limit() -> None:
    debts = debts_with()
    move(debts, rules_of(1, 2), rules_of(2), now=10)
    assert (len(debts), debts.next_due()) == (0, 40)
    assert not debts.is_stale(TCP, VIP, A), "another search judges by it too"
    assert search(debts, 40) == {A, C}
    assert debts.next_due() == float("inf")


def test_flows_are_reset_at_once_without_a_limit_and_never_those_that_were_not_translated() -> None:
    debts = debts_with()
    move(debts, rules_of(1, 2, drain=0), rules_of(2, drain=0), now=10)
    assert (debts.next_due(), search(debts, 10)) == (10, {A, C})
    assert VIP not in search(debts, 10)


def test_an_endpoint_that_is_back_in_time_is_not_reset() -> None:
    debts = debts_with()
    move(debts, rules_of(1, 2), rules_of(2), now=0)
    move(debts, rules_of(2), rules_of(1, 2), now=20)
    assert debts.next_due() == float("inf")
    move(debts, rules_of(1, 2), rules_of(2), now=25)
    assert debts.next_due() == 55


def test_each_endpoint_has_its_own_time() -> None:
    debts = debts_with()
    move(debts, rules_of(1, 2, 3), rules_of(2, 3), now=0)
    move(debts, rules_of(2, 3), rules_of(3), now=10)
    assert search(debts, 30) == {A}
    assert debts.next_due() == 40
    assert search(debts, 40) == {A, B}


def test_after_a_restart_everything_has_the_whole_limit_again() -> None:
    """Nothing tells who has gone meanwhile: whatever is no endpoint is found at the end of it."""
    debts = debts_with()
    move(debts, NO_FLOWS, rules_of(2), now=0)
    assert (debts.next_due(), debts.is_stale(TCP, VIP, A)) == (LIMIT, False)
    move(debts, rules_of(2), rules_of(3), now=5)
    assert search(debts, LIMIT) == {A}
    assert search(debts, LIMIT + 5) == {A, B}


def test_a_search_that_fails_is_owed_still() -> None:
    debts = debts_with()
    move(debts, rules_of(1, 2), rules_of(2), now=0)
    assert search(debts, 30, settles=False) == {A, C}
    assert (len(debts), debts.next_due()) == (1, 31)
    assert search(debts, 31) == {A, C}
    assert debts.next_due() == float("inf")


def test_a_service_that_keeps_its_connections_again_owes_nothing() -> None:
    debts = debts_with()
    move(debts, rules_of(1, 2), rules_of(2), now=0)
    move(debts, rules_of(2), rules_of(2, drain=None), now=5)
    assert debts.next_due() == float("inf")


def test_connections_of_a_service_that_is_removed_are_left_alone() -> None:
    debts = debts_with()
    move(debts, rules_of(1, drain=0), NO_FLOWS, now=5)
    assert (debts.next_due(), debts.is_stale(TCP, VIP, A)) == (float("inf"), False)


def test_a_change_by_which_no_endpoint_goes_costs_no_search() -> None:
    debts = debts_with()
    move(debts, rules_of(1), rules_of(1, 2), now=0)
    move(debts, rules_of(1, 2, drain=0), rules_of(1, 2, 3, drain=0), now=0)
    assert debts.next_due() == float("inf")


def test_a_place_of_another_service_is_left_alone() -> None:
    """Any user may name an external IP: that must not reset the connections of who has it."""
    debts = debts_with(plan_of(1), plan_of(3, name="default/a", drain=None))
    move(debts, NO_FLOWS, rules_of(2, drain=0), now=0)
    assert search(debts, 0) == set()
    assert not debts.is_noticed(TCP, VIP, A)


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_services_that_owe_the_one_that_has_the_place_decides(first: int) -> None:
    """Also of UDP, and whichever was programmed or searched for last."""
    having = plan_of(1, drain=None, name="default/a", protocol=UDP)
    other = plan_of(2, drain=0, protocol=UDP)
    debts = debts_with(having, other)
    for plan in (having, other) if first == 0 else (other, having):
        debts.change(plan.id, NO_FLOWS)
        debts.programmed(plan.id, flow_rules(plan), now=0)
    debts.begin({having.id: 0} if first == 0 else {other.id: 0}, now=0)
    assert [debts.is_stale(UDP, VIP, by) for by in (A, B)] == [False, True]
    assert not debts.is_noticed(UDP, VIP, B), "who has the place did not ask for it"


def test_a_service_ends_no_udp_flows_to_a_place_of_another_one() -> None:
    """Although the one that has it owes nothing."""
    having = plan_of(1, drain=None, name="default/a", protocol=UDP)
    other = plan_of(2, drain=0, protocol=UDP)
    debts = debts_with(having, other)
    debts.change(other.id, NO_FLOWS)
    debts.programmed(other.id, flow_rules(other), now=0)
    assert not debts.is_stale(UDP, VIP, A)
    assert not debts.is_noticed(UDP, VIP, A)


def test_a_flow_is_noticed_only_by_the_rule_that_ends_it() -> None:
    debts = debts_with()
    move(debts, rules_of(1, 2, drain=0), rules_of(2, drain=0), now=0)
    assert (debts.is_noticed(TCP, VIP, A), debts.is_noticed(TCP, VIP, B)) == (True, False)


def test_a_search_does_not_change_which_claim_is_the_latest() -> None:
    """Where it is not known who has the place, the one that was programmed last decides."""
    debts = FlowDebts()
    first, second = (
        plan_of(number, drain=None, name=name, protocol=UDP)
        for number, name in ((1, "default/a"), (2, "default/b"))
    )
    for plan in (first, second):
        debts.change(plan.id, NO_FLOWS)
        debts.programmed(plan.id, flow_rules(plan), now=0)
    versions = debts.due(UDP, 0)
    debts.begin({first.id: versions[first.id]}, 0)
    assert [debts.is_stale(UDP, VIP, by) for by in (A, B)] == [True, False]


def test_a_new_frontend_does_not_prolong_the_limit_of_the_others() -> None:
    """What flows there were is not known of the new one alone."""
    debts = debts_with(plan_of(2, external_ips=["203.0.113.7"]))
    move(debts, rules_of(1, 2), rules_of(2), now=0)
    move(debts, rules_of(2), rules_of(2, external_ips=["203.0.113.7"]), now=20)
    debts.begin(debts.due(TCP, 30), 30)
    assert [debts.is_stale(TCP, to, A) for to in (VIP, OUTSIDE)] == [True, False]
    debts.settle(TCP, debts.due(TCP, 30), (), 30)
    assert debts.next_due() == 50
    debts.begin(debts.due(TCP, 50), 50)
    assert debts.is_stale(TCP, OUTSIDE, A)


class CountedPort(ServicePortId, frozen=True):
    """Counts how often one of them is looked up."""

    looks = 0

    def __hash__(self) -> int:
        CountedPort.looks += 1
        return super().__hash__()


def test_what_only_drains_costs_nothing_until_its_time_is_up() -> None:
    """However many service ports drain, an event looks at none of them but its own."""
    debts = debts_with()
    for number in range(500):
        owner = CountedPort("default", f"web-{number}", "http", TCP)
        debts.change(owner, rules_of(1, 2))
        debts.programmed(owner, rules_of(2), now=number)
    CountedPort.looks = 0
    move(debts, rules_of(1, 2, drain=0), rules_of(2, drain=0), now=0)
    assert (len(debts), debts.next_due(), list(debts.due(TCP, 29))) == (1, 0, [WEB])
    assert CountedPort.looks < 5
    assert len(debts.due(TCP, LIMIT + 9)) == 1 + 10
    assert CountedPort.looks < 5 * 10 + 50


def test_endpoints_that_come_and_go_all_the_time_are_remembered_only_up_to_a_limit() -> None:
    """Else one slice that is rewritten each second makes every round longer than the one before."""
    debts = debts_with()
    former = rules_of(1)
    for number in range(5 * MOST_LEAVING):
        gone = pack_socket(f"10.9.{number // 256}.{number % 256}", 8080)
        rules = {VIP: replace(former[VIP], endpoints=frozenset({gone}))}
        move(debts, former, rules, now=0.0)
        former = rules
    (debt,) = debts._owed.values()
    assert len(debt.leaving) <= MOST_LEAVING + 1
    assert len(debt.former[VIP].endpoints) <= MOST_LEAVING + 2
    move(debts, former, rules_of(3), now=1.0)
    assert search(debts, now=LIMIT - 0.1) == set(), "never early"
    assert search(debts, now=2 * LIMIT) == {A, B}


def test_what_a_process_of_this_node_carries_is_left_alone() -> None:
    """Unless it was an endpoint: a proxy of userspace mode that is replaced carries on."""
    debts = debts_with()
    own = pack_socket("192.0.2.10", 8080)
    former = {VIP: flow_rules(plan_of(1, drain=0))[VIP]}
    move(debts, former, rules_of(2, drain=0), now=0)
    assert (debts.is_stale(TCP, VIP, A), debts.is_stale(TCP, VIP, own)) == (True, False)


def test_clients_notice_only_where_a_service_asks_for_it() -> None:
    debts = debts_with()
    move(debts, rules_of(1, drain=0), rules_of(2, drain=0), now=0)
    assert debts.is_noticed(TCP, VIP, A)
    assert not debts.is_noticed(TCP, VIP, VIP)


# --- any history ---

steps = st.lists(
    st.one_of(
        st.tuples(st.just("endpoints"), st.sets(st.sampled_from((1, 2, 3)))),
        st.tuples(st.just("drain"), st.sampled_from((None, 0.0, 10.0, LIMIT))),
        st.tuples(st.just("outside"), st.booleans()),
        st.tuples(st.just("wait"), st.integers(1, 20)),
        st.tuples(st.just("restart"), st.none()),
        st.tuples(st.just("failing search"), st.none()),
    ),
    max_size=12,
)


@given(steps)
def test_any_history_ends_like_a_fresh_start(history: list[tuple[str, object]]) -> None:
    """Once the limit is over, just those flows are left that a proxy would leave that starts now.

    And no flow went before its time: an endpoint that is there all the while keeps its flows, and
    a frontend that comes has the whole limit. One that is gone leaves its flows alone.
    """
    now, numbers = 0.0, {1, 2, 3}
    drain: float | None = None
    has_plan = plan_of(1, external_ips=["203.0.113.7"])
    debts, rules = debts_with(has_plan), rules_of(1, 2, 3, drain=None)
    flows, left_at = {(VIP, by) for by in (A, B, C)}, dict[bytes, float]()
    sockets = {1: A, 2: B, 3: C}
    came_at = {VIP: 0.0}

    def work(until: float) -> None:
        while debts.next_due() <= until:
            at = max(debts.next_due(), now)
            gone = flows & search_all(debts, at)
            limit = drain or 0.0
            for to, by in gone:
                since = max(left_at.get(by, float("inf")), came_at.get(to, float("inf")))
                assert at - since >= limit, "too early"
            flows.difference_update(gone)

    for verb, value in history:
        if verb == "endpoints":
            assert isinstance(value, set)
            left_at |= {sockets[n]: now for n in numbers - value}
            numbers = value
            for number in value:
                left_at.pop(sockets[number], None)
        elif verb == "drain":
            assert value is None or isinstance(value, float)
            drain = value
        elif verb == "outside":
            if value:
                came_at.setdefault(OUTSIDE, now)
            else:
                came_at.pop(OUTSIDE, None)
        elif verb == "wait":
            assert isinstance(value, int)
            work(now + value)
            now += value
            continue
        elif verb == "failing search":
            search(debts, now, settles=False)
            continue
        else:
            debts, rules = debts_with(has_plan), NO_FLOWS
        outside = ["203.0.113.7"] if OUTSIDE in came_at else []
        before, rules = rules, rules_of(*sorted(numbers), drain=drain, external_ips=outside)
        move(debts, before, rules, now)
        flows |= {(to, sockets[n]) for to in came_at for n in numbers}
        if drain == 0.0:
            work(now)
    work(now + 1000)
    kept = {(to, sockets[n]) for to in came_at for n in numbers}
    assert kept <= flows
    assert drain is None or {flow for flow in flows if flow[0] in came_at} == kept
