"""Whole conntrack entries and events: from bytes, and from a real kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.conntrack_kit import entry, flow, packed

from kpctl.places.flows import insert_flows
from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.conntrack import table
from kubeproxy.kernel.conntrack.entries import Entry, parse_entries, parse_events
from kubeproxy.kernel.conntrack.table import Conntrack, ConntrackEvents
from kubeproxy.kernel.conntrack.wire import IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_NEW
from kubeproxy.kernel.netlink import codec

VIP, ENDPOINT = ("10.96.0.10", 80), ("10.244.1.5", 8080)


@pytest.fixture
def namespace() -> Iterator[None]:
    with scratch_namespace():
        yield


def parsed(body: bytes, family: Family = Family.IPV4) -> Entry:
    ((found,), _, _) = parse_entries(codec.message(IPCTNL_MSG_CT_NEW, 0, 1, body), family)
    return found


def test_an_entry_has_both_ends_of_both_directions() -> None:
    found = parsed(entry(VIP, ENDPOINT, protocol=Protocol.TCP))
    assert found.protocol is Protocol.TCP
    assert found.destination == packed(*VIP)
    assert found.reply_source == packed(*ENDPOINT)
    assert found.source == found.reply_destination == packed("192.0.2.1", 40000)
    assert found.state == "ESTABLISHED"
    assert found.expires_seconds == 600
    assert found.counters is None
    assert found.is_translated
    assert not parsed(entry(VIP, VIP)).is_translated


def test_an_unusual_layout_gives_the_same_entry() -> None:
    """A zone within the tuples moves everything behind it."""
    body = entry(VIP, ENDPOINT)
    usual = parsed(body)
    attributes = codec.parse_attrs(body, 4)
    turned = body[:4] + b"".join(
        codec.attr(kind | 0x8000 if kind in (1, 2) else kind, attributes[kind])
        for kind in sorted(attributes, reverse=True)
    )
    assert turned != body
    unusual = parsed(turned)
    assert unusual[:5] == usual[:5]
    assert unusual.state == usual.state == "UNREPLIED"


def test_counters_are_there_where_the_kernel_counts() -> None:
    counted = b"".join(
        codec.attr_nested(kind, codec.attr(1, packets.to_bytes(8)), codec.attr(2, size.to_bytes(8)))
        for kind, packets, size in ((9, 3, 180), (10, 2, 3000))
    )
    assert parsed(entry(VIP, ENDPOINT) + counted).counters == ((3, 180), (2, 3000))


def test_what_is_not_understood_is_left_out() -> None:
    """Other protocols, other families, and a message that is cut short."""
    udp = codec.attr_u8(1, Protocol.UDP.number)
    icmp = codec.message(
        IPCTNL_MSG_CT_NEW, 0, 1, entry(VIP, ENDPOINT).replace(udp, codec.attr_u8(1, 1))
    )
    assert parse_entries(icmp, Family.IPV4).entries == []
    assert parse_events(icmp) == []
    whole = codec.message(IPCTNL_MSG_CT_NEW, 0, 1, entry(VIP, ENDPOINT))
    for length in range(len(whole)):
        parse_events(whole[:length])
        parse_entries(whole[:length], Family.IPV4)


def test_an_event_says_whether_a_flow_has_come_or_gone() -> None:
    body = entry(VIP, ENDPOINT)
    data = codec.message(IPCTNL_MSG_CT_NEW, 0, 0, body)
    data += codec.message(IPCTNL_MSG_CT_DELETE, 0, 0, body)
    assert [event.is_new for event in parse_events(data)] == [True, False]


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
def test_the_kernel_lists_and_announces_entries() -> None:
    events = ConntrackEvents()
    six = (("fd00:96::2", 53), ("fd00:244::5", 5353))
    insert_flows([flow(VIP, ENDPOINT, protocol=Protocol.TCP), flow(*six, zone=3)])
    found = list(events.read(100))
    events.close()
    assert [(e.family, e.is_new) for e in found] == [(Family.IPV4, True), (Family.IPV6, True)]
    assert found[1].entry.reply_source == packed("fd00:244::5", 5353)
    with Conntrack(Family.IPV4) as four:
        (listed,) = [each for entries in four.entries() for each in entries]
    assert listed.reply_source == packed(*ENDPOINT)


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
def test_lost_events_are_counted_and_the_buffer_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FIRST_BUFFER", 4096)
    events = ConntrackEvents()
    insert_flows(flow(VIP, ENDPOINT, source_port=10000 + n) for n in range(300))
    seen = len(list(events.read(1000)))
    assert 0 < seen < 300
    assert events.overruns == 1
    insert_flows(flow(VIP, ENDPOINT, source_port=20000 + n) for n in range(4))
    assert len(list(events.read(1000))) == 4
    events.close()
