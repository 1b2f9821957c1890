"""Flows from bytes, without a kernel."""

from __future__ import annotations

import errno
import struct

import pytest
from tests.support.conntrack_kit import entry, packed

from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.conntrack.wire import (
    FILTER_LIMIT,
    IPCTNL_MSG_CT_NEW,
    Flow,
    ListingPart,
    format_listing,
    narrow,
    parse_listing,
)
from kubeproxy.kernel.netlink import codec

UDP, TCP = Protocol.UDP, Protocol.TCP
SYSLOG, BEHIND = ("10.96.90.2", 514), ("10.244.1.102", 5514)
VIP, ENDPOINT = packed(*SYSLOG), packed(*BEHIND)


def message(body: bytes, kind: int = IPCTNL_MSG_CT_NEW, flags: int = 0) -> bytes:
    return codec.message(kind, flags, 1, body)


def parse(data: bytes, addresses: set[bytes] | None = None) -> ListingPart:
    return parse_listing(data, Family.IPV4, UDP, addresses)


def zoned(body: bytes) -> bytes:
    """The same entry with a zone in its tuples, which moves everything behind it."""
    tuples = codec.parse_attrs(body, 4)
    return body[:4] + b"".join(
        codec.attr_nested(kind, tuples[kind] + codec.attr_be16(3, 7)) for kind in (1, 2)
    )


@pytest.mark.parametrize("spell", [bytes, zoned])
def test_a_flow_is_found_whatever_its_layout(spell: type[bytes]) -> None:
    """Usual, or with a zone in its tuple: then its attributes are walked."""
    data = message(spell(entry(SYSLOG, BEHIND))) + message(bytes(4), codec.NLMSG_DONE)
    for addresses in (None, {VIP[:4]}):
        (flow,) = parse(data, addresses).flows
        assert (flow.destination, flow.reply_source) == (VIP, ENDPOINT)
    assert parse(data, {ENDPOINT[:4]}).flows == []


@pytest.mark.parametrize("spell", [bytes, zoned])
def test_other_protocols_are_left_out(spell: type[bytes]) -> None:
    """A kernel that knows no filter sends them all."""
    tcp = message(spell(entry(SYSLOG, BEHIND, protocol=TCP)))
    assert parse(tcp).flows == []
    (flow,) = parse_listing(tcp, Family.IPV4, TCP).flows
    assert (flow.destination, flow.reply_source) == (VIP, ENDPOINT)


def test_a_reply_of_another_layout_is_walked() -> None:
    """Only the second tuple has a zone."""
    body = entry(SYSLOG, BEHIND)
    tuples = codec.parse_attrs(body, 4)
    odd = codec.attr_nested(2, tuples[2] + codec.attr_be16(3, 7))
    odd_body = body[:4] + codec.attr_nested(1, tuples[1]) + odd
    (flow,) = parse(message(odd_body)).flows
    assert flow.reply_source == ENDPOINT


def test_the_end_of_a_listing_carries_its_error() -> None:
    """Zero for a good end, None while it goes on."""
    done = message(bytes(4), codec.NLMSG_DONE)
    failed = message(struct.pack("=i", -errno.EPERM) + bytes(200), codec.NLMSG_ERROR)
    assert parse(b"").errno is None
    assert parse(message(entry(SYSLOG, BEHIND))).errno is None
    assert parse(message(entry(SYSLOG, BEHIND)) + done).errno == 0
    assert parse(failed).errno == errno.EPERM


def test_an_interrupted_listing_is_marked() -> None:
    """The kernel marks messages of a table that changed under it, or the last one."""
    plain, done = entry(SYSLOG, BEHIND), message(bytes(4), codec.NLMSG_DONE, codec.NLM_F_DUMP_INTR)
    marked = parse(message(plain, flags=codec.NLM_F_DUMP_INTR))
    assert marked.is_interrupted
    assert len(marked.flows) == 1
    assert parse(message(plain) + done).is_interrupted
    assert not parse(message(plain)).is_interrupted


def test_a_listing_that_is_cut_short_is_no_fault() -> None:
    whole = message(entry(SYSLOG, BEHIND)) + message(bytes(4), codec.NLMSG_DONE)
    for length in range(len(whole)):
        parse(whole[:length])


def test_what_identifies_a_flow_does_not_change_with_its_counters() -> None:
    """The tuple, the zone and the id; not time-outs or status."""
    plain = entry(SYSLOG, BEHIND, zone=7)[4:]
    assert Flow(VIP, ENDPOINT, plain).key == Flow(VIP, ENDPOINT, plain + codec.attr_be32(7, 1)).key
    assert format_listing(Family.IPV4, UDP) != format_listing(Family.IPV4, UDP, VIP)


def test_few_destinations_are_asked_for_one_by_one_and_many_by_port_or_not_at_all() -> None:
    """Each listing walks the kernel's whole table, so there are few of them."""
    few = {packed(f"10.96.0.{n}", 53) for n in range(FILTER_LIMIT)}
    assert narrow(Family.IPV4, few) == sorted(few)
    dns = {packed(f"10.96.0.{n}", 53) for n in range(100)}
    assert narrow(Family.IPV4, dns) == [packed("10.96.0.1", 53)[-2:]]
    assert narrow(Family.IPV4, {packed("10.96.0.1", n) for n in range(100)}) == [b""]
    assert narrow(Family.IPV4, ()) == [b""]


def test_ipv6_destinations_are_asked_for_by_port() -> None:
    """The kernel's comparison of IPv6 addresses is the wrong way round."""
    wanted = {packed(f"fd00:96::{n}", 53) for n in range(1, 5)} | {packed("fd00:96::1", 54)}
    assert narrow(Family.IPV6, wanted) == [b"\x00\x35", b"\x00\x36"]
