"""The conntrack table of a real kernel, in a namespace of its own."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
from collections.abc import Iterator

import pytest

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.conntrack.table import Cleaned, Conntrack, clean_udp
from kubeproxy.kernel.conntrack.wire import IPCTNL_MSG_CT_NEW, Flow, format_listing, parse_listing
from kubeproxy.kernel.netlink import codec

UDP, TCP = Protocol.UDP.number, Protocol.TCP.number
CREATE = codec.NLM_F_CREATE | codec.NLM_F_EXCL
CLIENT4, CLIENT6 = "192.0.2.1", "2001:db8::1"


def packed(address: str, port: int) -> bytes:
    return ipaddress.ip_address(address).packed + port.to_bytes(2, "big")


def entry(
    destination: tuple[str, int],
    reply_source: tuple[str, int],
    *,
    source_port: int = 40000,
    protocol: int = UDP,
    zone: int = 0,
) -> bytes:
    """A request that makes one conntrack entry, translated from destination to reply source."""
    is_six = ":" in destination[0]
    client = (CLIENT6 if is_six else CLIENT4, source_port)
    parts = [
        codec.nfgen(Family.IPV6.af if is_six else Family.IPV4.af),
        one_way(1, client, destination, protocol),
        one_way(2, reply_source, client, protocol),
        codec.attr_be32(7, 600),
        codec.attr_be32(3, 8),
    ]
    if protocol == TCP:
        state = codec.attr_nested(1, codec.attr_u8(1, 3))
        parts.append(codec.attr_nested(4, state))
    if zone:
        parts.append(codec.attr_be16(18, zone))
    return b"".join(parts)


def one_way(
    kind: int, source: tuple[str, int], destination: tuple[str, int], protocol: int
) -> bytes:
    first = 3 if ":" in source[0] else 1
    return codec.attr_nested(
        kind,
        codec.attr_nested(
            1,
            codec.attr(first, ipaddress.ip_address(source[0]).packed),
            codec.attr(first + 1, ipaddress.ip_address(destination[0]).packed),
        ),
        codec.attr_nested(
            2,
            codec.attr_u8(1, protocol),
            codec.attr_be16(2, source[1]),
            codec.attr_be16(3, destination[1]),
        ),
    )


def insert(*entries: bytes) -> None:
    with Conntrack(Family.IPV4) as table:
        for body in entries:
            table.request(IPCTNL_MSG_CT_NEW, body, CREATE, what="insert")


def listed(family: Family = Family.IPV4, destination: bytes = b"") -> set[tuple[bytes, bytes]]:
    with Conntrack(family) as table:
        return {(f.destination, f.reply_source) for fs in table.listing(destination) for f in fs}


def clean(family: Family, stale: set[bytes], destinations: tuple[bytes, ...] = ()) -> Cleaned:
    return asyncio.run(clean_udp(family, lambda to, _: to in stale, destinations))


@pytest.fixture
def namespace() -> Iterator[None]:
    with scratch_namespace():
        yield


VIP, OTHER = packed("10.96.90.2", 514), packed("10.96.90.3", 514)
ENDPOINT = packed("10.244.1.102", 5514)


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
def test_udp_flows_are_listed_with_their_translation() -> None:
    """TCP entries are left out."""
    insert(
        entry(("10.96.90.2", 514), ("10.244.1.102", 5514)),
        entry(("10.96.90.2", 514), ("10.244.1.102", 5514), protocol=TCP),
    )
    assert listed() == {(VIP, ENDPOINT)}


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
def test_ipv6_flows_are_a_table_of_their_own() -> None:
    """Each family sees its own flows."""
    insert(
        entry(("10.96.90.2", 514), ("10.244.1.102", 5514)),
        entry(("fd00:96::2", 514), ("fd00:244::5", 5514)),
    )
    assert listed(Family.IPV6) == {(packed("fd00:96::2", 514), packed("fd00:244::5", 5514))}
    assert clean(Family.IPV6, {packed("fd00:96::2", 514)}) == Cleaned(1)
    assert listed(Family.IPV6) == set()
    assert listed() == {(VIP, ENDPOINT)}


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
def test_the_kernel_filters_by_destination_and_by_port() -> None:
    """What does not match never leaves the kernel."""
    insert(
        entry(("10.96.90.2", 514), ("10.244.1.102", 5514)),
        entry(("10.96.90.3", 514), ("10.244.1.103", 5514)),
        entry(("10.96.90.2", 515), ("10.244.1.102", 5515)),
    )
    assert {to for to, _ in listed(destination=VIP)} == {VIP}
    assert {to for to, _ in listed(destination=VIP[-2:])} == {VIP, OTHER}


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
def test_a_filter_loses_no_flow_of_either_family() -> None:
    """The kernel's own comparison of IPv6 addresses would leave out just those that match."""
    wanted = {
        Family.IPV4: (("10.96.90.2", 514), ("10.244.1.102", 5514)),
        Family.IPV6: (("fd00:96::2", 514), ("fd00:244::5", 5514)),
    }
    others = ((("10.96.90.3", 515), ("10.244.1.103", 1)), (("fd00:96::3", 515), ("fd00:244::6", 1)))
    insert(*(entry(*flow) for flow in (*wanted.values(), *others)))
    for family, (destination, reply_source) in wanted.items():
        asked = packed(*destination)
        assert listed(family, asked) == {(asked, packed(*reply_source))}
        assert clean(family, {asked}, (asked,)) == Cleaned(1)


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("destinations", [(), (VIP,), (VIP, VIP[-2:])])
def test_only_stale_flows_are_deleted(destinations: tuple[bytes, ...]) -> None:
    """However the list was narrowed down, and each is counted once."""
    insert(
        *(
            entry(("10.96.90.2", 514), ("10.244.1.102", 5514), source_port=1000 + n)
            for n in range(200)
        ),
        entry(("10.96.90.3", 514), ("10.244.1.102", 5514)),
    )
    assert clean(Family.IPV4, {VIP}, destinations) == Cleaned(200)
    assert listed() == {(OTHER, ENDPOINT)}


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
def test_flows_in_zones_are_found_and_deleted() -> None:
    """An entry of a zone is another entry, even with equal ends."""
    flow = (("10.96.90.2", 514), ("10.244.1.102", 5514))
    insert(entry(*flow), entry(*flow, zone=7))
    assert clean(Family.IPV4, {VIP}) == Cleaned(2)
    assert listed() == set()


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
def test_a_flow_that_has_gone_counts_as_deleted() -> None:
    """Another process may have been quicker; that is no error."""
    insert(entry(("10.96.90.2", 514), ("10.244.1.102", 5514)))
    with Conntrack(Family.IPV4) as table:
        flows = [flow for flows in table.listing() for flow in flows]
        assert table.delete(flows) == []
        assert table.delete(flows) == []
    assert listed() == set()


@pytest.mark.kernel
@pytest.mark.usefixtures("namespace")
def test_a_flow_with_equal_ends_but_another_id_is_not_deleted() -> None:
    """It began after the list was made."""
    insert(entry(("10.96.90.2", 514), ("10.244.1.102", 5514)))
    with Conntrack(Family.IPV4) as table:
        (flow,) = [flow for flows in table.listing() for flow in flows]
        older = flow._replace(attributes=flow.attributes + codec.attr_be32(12, 1))
        assert table.delete([older]) == []
        assert listed() == {(VIP, ENDPOINT)}


def message(body: bytes, kind: int = IPCTNL_MSG_CT_NEW, flags: int = 0) -> bytes:
    return codec.message(kind, flags, 1, body)


def test_a_flow_with_a_zone_in_its_tuple_is_parsed_alike() -> None:
    """That one does not have the common layout, so its attributes are walked."""
    plain = entry(("10.96.90.2", 514), ("10.244.1.102", 5514))
    tuples = plain[4:].split(codec.attr_be32(7, 600))[0]
    zoned = codec.parse_attrs(tuples)
    body = codec.nfgen(2) + b"".join(
        codec.attr_nested(kind, zoned[kind] + codec.attr_be16(3, 7)) for kind in (1, 2)
    )
    for listing in (message(plain), message(body)):
        (flow,) = parse_listing(listing, Family.IPV4).flows
        assert (flow.destination, flow.reply_source) == (VIP, ENDPOINT)


def test_other_protocols_are_not_flows_of_ours() -> None:
    """A kernel that knows no filter sends them all."""
    tcp = entry(("10.96.90.2", 514), ("10.244.1.102", 5514), protocol=TCP)
    assert parse_listing(message(tcp), Family.IPV4).flows == []


def test_the_end_of_a_listing_carries_its_error() -> None:
    """Zero for a good end, None while it goes on."""
    done = message(bytes(4), codec.NLMSG_DONE)
    failed = message((-errno.EPERM).to_bytes(4, "little", signed=True), codec.NLMSG_ERROR)
    assert parse_listing(b"", Family.IPV4).errno is None
    assert parse_listing(done, Family.IPV4).errno == 0
    assert parse_listing(failed, Family.IPV4).errno == errno.EPERM


def test_an_interrupted_listing_says_so() -> None:
    """The kernel marks messages of a table that changed under it."""
    plain = entry(("10.96.90.2", 514), ("10.244.1.102", 5514))
    marked = parse_listing(message(plain, flags=codec.NLM_F_DUMP_INTR), Family.IPV4)
    assert marked.is_interrupted
    assert len(marked.flows) == 1


def test_what_identifies_a_flow_does_not_change_with_its_counters() -> None:
    """The tuple, the zone and the id; not time-outs or status."""
    plain = entry(("10.96.90.2", 514), ("10.244.1.102", 5514), zone=7)[4:]
    assert Flow(VIP, ENDPOINT, plain).key == Flow(VIP, ENDPOINT, plain + codec.attr_be32(7, 1)).key
    assert format_listing(Family.IPV4) != format_listing(Family.IPV4, VIP)
