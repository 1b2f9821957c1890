"""What stays of the mode when another one serves: open connections, and all they need."""

from __future__ import annotations

import pytest
from tests.support.fake_ipvs import FakeTables

from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipset.wire import Entry, SetHead, SetType
from kubeproxy.kernel.ipvs.wire import Destination, Service
from kubeproxy.modes.ipvs.sinks.retiring import Remainder, remove_idle
from kubeproxy.plan.conntrack import pack_socket

TCP, UDP = 6, 17
BUSY, IDLE = (TCP, "10.96.0.10", 80), (TCP, "10.96.0.11", 80)
DNS, NODE_PORT = (UDP, "10.96.0.10", 53), (TCP, "192.0.2.10", 30080)
FOREIGN = (TCP, "172.16.0.1", 80)
A, B = ("10.244.1.1", 8080), ("10.244.1.2", 8080)


@pytest.fixture
def tables() -> FakeTables:
    """Virtual servers of ours and one of other software, each with two real servers."""
    made = FakeTables()
    for key in (BUSY, IDLE, DNS, NODE_PORT, FOREIGN):
        made.ipvs.held[key] = Service(*key, "rr", 0, 0)
        made.ipvs.real[key] = {place: Destination(*place, 1) for place in (A, B)}
    made.route.bound = {"10.96.0.10", "10.96.0.11"}
    head = SetHead(SetType.PORT, False)
    made.ipset.sets["KUBE-NODE-PORT-TCP"] = (head, {Entry(port=30080)})
    return made


async def remove(tables: FakeTables, *, is_patient: bool = True) -> Remainder:
    return await remove_idle(Family.IPV4, tables, is_patient=is_patient)


async def test_what_has_no_connection_goes_and_other_software_keeps_its_own(
    tables: FakeTables,
) -> None:
    rest = await remove(tables)
    assert rest.connections == 0
    assert tables.ipvs.held.keys() == {FOREIGN}
    assert tables.route.bound == set()


async def test_open_connections_keep_their_virtual_server_and_its_address(
    tables: FakeTables,
) -> None:
    """It takes no new connection, and goes with the last one."""
    tables.ipvs.connections = {(BUSY, A): 2, (NODE_PORT, B): 1}
    rest = await remove(tables)
    assert rest.connections == 3
    assert tables.ipvs.held.keys() == {BUSY, NODE_PORT, FOREIGN}
    assert {real.weight for real in tables.ipvs.real[BUSY].values()} == {0}
    assert tables.route.bound == {"10.96.0.10"}
    messages = tables.ipvs.messages
    assert (await remove(tables)).connections == 3
    assert tables.ipvs.messages == messages
    tables.ipvs.connections = {}
    assert (await remove(tables)).connections == 0
    assert tables.ipvs.held.keys() == {FOREIGN}
    assert tables.route.bound == set()


async def test_without_patience_open_connections_are_cut(tables: FakeTables) -> None:
    tables.ipvs.connections = {(BUSY, A): 2}
    assert (await remove(tables, is_patient=False)).connections == 0
    assert tables.ipvs.held.keys() == {FOREIGN}


async def test_udp_is_cut_and_its_flows_must_be_forgotten(tables: FakeTables) -> None:
    """Conntrack knows them as not translated; only a new flow meets the rules of the new mode."""
    tables.ipvs.connections = {(DNS, A): 5}
    rest = await remove(tables)
    assert DNS not in tables.ipvs.held
    assert rest.untranslated == {pack_socket(*DNS[1:])}
