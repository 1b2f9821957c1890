"""Searches through the conntrack table of a real kernel, in a namespace of its own."""

from __future__ import annotations

import asyncio
import errno
import threading
import tracemalloc
from collections.abc import Iterator

import pytest
from tests.support.conntrack_kit import Faults, flow, listed, packed
from tests.support.waiting import limit, until

from kpctl.places.flows import insert_flows
from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.conntrack import table as table_module
from kubeproxy.kernel.conntrack.table import Conntrack, Search, Searched, delete_stale
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink import socket as socket_module

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("namespace")]

UDP, TCP = Protocol.UDP, Protocol.TCP
SYSLOG, SYSLOG_2, BEHIND = ("10.96.90.2", 514), ("10.96.90.3", 514), ("10.244.1.102", 5514)
VIP, OTHER, ENDPOINT = packed(*SYSLOG), packed(*SYSLOG_2), packed(*BEHIND)


@pytest.fixture
def namespace() -> Iterator[None]:
    with scratch_namespace():
        yield


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Faults of every netlink socket that is opened from here on."""
    made = Faults()
    monkeypatch.setattr(socket_module, "_open", made.around(socket_module._open))
    return made


def to_any(*destinations: bytes, family: Family = Family.IPV4, narrowed: bool = False) -> Search:
    """A search that deletes the UDP flows to these, and looks at all, or only at those."""
    stale = set(destinations)
    return Search(
        family,
        UDP,
        lambda to, _: to in stale,
        destinations if narrowed else (),
        {to[:-2] for to in stale} if narrowed else None,
    )


def clean(search: Search) -> Searched:
    return asyncio.run(delete_stale(search))


def test_udp_flows_are_listed_with_their_translation() -> None:
    """TCP entries are left out."""
    insert_flows([flow(SYSLOG, BEHIND), flow(SYSLOG, BEHIND, protocol=TCP)])
    assert listed() == listed(protocol=TCP) == {(VIP, ENDPOINT)}
    assert clean(to_any(VIP)) == Searched(1)
    assert (listed(), listed(protocol=TCP)) == (set(), {(VIP, ENDPOINT)})


def test_ipv6_flows_are_a_table_of_their_own() -> None:
    """Each family sees its own flows."""
    insert_flows([flow(SYSLOG, BEHIND), flow(("fd00:96::2", 514), ("fd00:244::5", 5514))])
    six = packed("fd00:96::2", 514)
    assert listed(Family.IPV6) == {(six, packed("fd00:244::5", 5514))}
    assert clean(to_any(six, family=Family.IPV6)) == Searched(1)
    assert listed(Family.IPV6) == set()
    assert listed() == {(VIP, ENDPOINT)}


def test_the_kernel_filters_by_destination_and_by_port() -> None:
    """What does not match never leaves the kernel."""
    more = flow(("10.96.90.2", 515), ("10.244.1.102", 5515))
    insert_flows([flow(SYSLOG, BEHIND), flow(SYSLOG_2, ("10.244.1.103", 5514)), more])
    assert {to for to, _ in listed(destination=VIP)} == {VIP}
    assert {to for to, _ in listed(destination=VIP[-2:])} == {VIP, OTHER}


@pytest.mark.parametrize("family", Family)
def test_a_narrow_search_loses_no_flow(family: Family) -> None:
    """The kernel's own comparison of IPv6 addresses would leave out just those that match."""
    vip = "10.96.90.%d" if family is Family.IPV4 else "fd00:96::%d"
    pod = "10.244.1.%d" if family is Family.IPV4 else "fd00:244::%d"
    insert_flows(flow((vip % n, 514 + n), (pod % n, 5514), source_port=n + 1) for n in range(9))
    wanted = [packed(vip % n, 514 + n) for n in range(9)]
    for count, left in ((1, 8), (3, 6), (9, 0)):
        assert not clean(to_any(*wanted[:count], family=family, narrowed=True)).error
        assert {to for to, _ in listed(family)} == set(wanted[9 - left :])


@pytest.mark.parametrize("narrowed", [True, False])
def test_only_stale_flows_are_deleted(narrowed: bool) -> None:
    """However the list was narrowed down, and each is counted once."""
    insert_flows(flow(SYSLOG, BEHIND, source_port=1000 + n) for n in range(200))
    insert_flows([flow(SYSLOG_2, BEHIND)])
    assert clean(to_any(VIP, narrowed=narrowed)) == Searched(200)
    assert listed() == {(OTHER, ENDPOINT)}


def test_flows_in_zones_are_found_and_deleted() -> None:
    """An entry of a zone is another entry, even with equal ends."""
    insert_flows([flow(SYSLOG, BEHIND), flow(SYSLOG, BEHIND, zone=7)])
    assert clean(to_any(VIP)) == Searched(2)
    assert listed() == set()


def test_a_flow_that_has_gone_counts_as_deleted() -> None:
    """Another process may have been quicker; that is no error."""
    insert_flows([flow(SYSLOG, BEHIND)])
    with Conntrack(Family.IPV4) as table:
        flows = [each for flows in table.listing(UDP) for each in flows]
        assert table.delete(flows) == []
        assert table.delete(flows) == []
    assert listed() == set()


def test_a_flow_with_equal_ends_but_another_id_is_not_deleted() -> None:
    """It began after the list was made."""
    insert_flows([flow(SYSLOG, BEHIND)])
    with Conntrack(Family.IPV4) as table:
        (found,) = [each for flows in table.listing(UDP) for each in flows]
        older = found._replace(attributes=found.attributes + codec.attr_be32(12, 1))
        assert table.delete([older]) == []
    assert listed() == {(VIP, ENDPOINT)}


# --- what goes wrong ---


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM, errno.EINTR, errno.EPERM])
def test_a_listing_that_fails_is_an_error_and_no_exception(number: int, faults: Faults) -> None:
    insert_flows([flow(SYSLOG, BEHIND)])
    faults.receive = [number]
    searched = clean(to_any(VIP))
    assert searched.error.startswith("netlink receive: ")
    assert clean(to_any(VIP)) == Searched(1)


def test_an_interrupted_listing_is_repeated_and_at_last_an_error(faults: Faults) -> None:
    """What was found is deleted all the same."""
    insert_flows([flow(SYSLOG, BEHIND)])
    faults.interrupted = 2
    assert clean(to_any(VIP)) == Searched(1)
    insert_flows([flow(SYSLOG, BEHIND)])
    faults.interrupted = 1000
    searched = clean(to_any(VIP))
    assert "kept changing" in searched.error
    assert searched.deleted == 1
    faults.interrupted = 0
    assert clean(to_any(VIP)) == Searched(0)


def test_a_refused_deletion_names_its_destination_and_the_others_go(faults: Faults) -> None:
    insert_flows([flow(SYSLOG, BEHIND), flow(SYSLOG_2, BEHIND, source_port=50000)])
    faults.refuse = [errno.EPERM]
    searched = clean(to_any(VIP, narrowed=True))
    assert (searched.deleted, list(searched.refused), searched.error) == (0, [VIP], "")
    assert "CAP_NET_ADMIN" in searched.refused[VIP]
    assert clean(to_any(VIP, OTHER)) == Searched(2)


@pytest.mark.parametrize(
    ("numbers", "deleted", "is_refused"),
    [
        ([errno.ENOENT], 1, False),
        ([errno.EINTR, errno.EAGAIN], 1, False),
        ([errno.EAGAIN] * 5, 0, True),
        ([errno.EBUSY], 0, True),
    ],
)
def test_what_an_answer_to_a_deletion_means(
    numbers: list[int], deleted: int, is_refused: bool, faults: Faults
) -> None:
    """Gone: as good as deleted. Not now: at once again, a few times. Offloaded: refused."""
    insert_flows([flow(SYSLOG, BEHIND)])
    faults.refuse = list(numbers)
    searched = clean(to_any(VIP))
    assert (searched.deleted, bool(searched.refused)) == (deleted, is_refused)
    assert faults.refuse == []


def test_a_search_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "LONGEST_SEARCH_SECONDS", -1.0)
    monkeypatch.setattr(table_module, "DATAGRAMS_PER_STEP", 1)
    insert_flows([flow(SYSLOG, BEHIND)])
    assert "not seen through" in clean(to_any(VIP)).error


def test_a_cancelled_search_leaves_the_table_as_far_as_it_got() -> None:
    insert_flows(flow(SYSLOG, BEHIND, source_port=1000 + n) for n in range(1000))
    began, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        go_on.wait()

    async def cancelled() -> None:
        search = Search(Family.IPV4, UDP, lambda to, _: to == VIP, wait_turn=wait)
        task = asyncio.create_task(delete_stale(search))
        await until(began.is_set)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        go_on.set()

    asyncio.run(cancelled())
    left = clean(to_any(VIP)).deleted
    assert left > 0
    assert listed() == set()


# --- beside everything else ---


async def test_the_event_loop_goes_on_while_the_kernel_is_searched() -> None:
    """The search stands still in its thread, and the loop runs a thousand times."""
    insert_flows([flow(SYSLOG, BEHIND)])
    turns, go_on = 0, threading.Event()

    def wait() -> None:
        go_on.wait()

    search = Search(Family.IPV4, UDP, lambda to, _: to == VIP, wait_turn=wait)
    async with limit():
        task = asyncio.create_task(delete_stale(search))
        while turns < 1000:
            await asyncio.sleep(0)
            turns += 1
        assert not task.done()
        go_on.set()
        assert await task == Searched(1)


async def test_each_datagram_is_deleted_before_the_next_is_read(faults: Faults) -> None:
    """So memory does not grow with the number of flows, stale or not."""
    insert_flows(flow(SYSLOG, BEHIND, source_port=1000 + n) for n in range(20000))
    search = to_any(VIP)
    tracemalloc.start()
    try:
        searched = await delete_stale(search)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert searched == Searched(20000)
    assert faults.received > 20 * faults.largest
    assert peak < 3_000_000, "three buffers of a socket, and one datagram's worth of flows"
