"""Addresses have one spelling behind the edge."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.facts.address import (
    contains,
    join_host_port,
    pack_address,
    parse_cidr,
    parse_ip,
    unpack_address,
)
from kubeproxy.facts.ids import Family


@pytest.mark.parametrize(
    ("text", "family", "canonical"),
    [
        ("10.0.0.1", Family.IPV4, "10.0.0.1"),
        ("010.000.0.001", Family.IPV4, "10.0.0.1"),
        ("::ffff:203.0.113.17", Family.IPV4, "203.0.113.17"),
        ("::FFFF:203.000.113.017", Family.IPV4, "203.0.113.17"),
        ("FD00:0:0:0::0A", Family.IPV6, "fd00::a"),
        ("64:ff9b::192.0.2.033", Family.IPV6, "64:ff9b::c000:221"),
    ],
)
def test_every_spelling_becomes_the_canonical_one(
    text: str, family: Family, canonical: str
) -> None:
    assert parse_ip(text) == (family, canonical)


@pytest.mark.parametrize(
    "text",
    ["", " 10.0.0.1", "10.0.0.1 ", "10.0.0", "10.0.0.0.1", "256.0.0.1", "fe80::1%eth0", "[::1]",
     "1.2.3.٤", "::1::", "a.b.c.d", "1" * 1_000_000, "10.0.0.1\n"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    assert parse_ip(text) is None


@pytest.mark.parametrize(
    ("text", "family", "canonical"),
    [
        ("203.0.113.129/025", Family.IPV4, "203.0.113.128/25"),
        ("10.1.2.3/16", Family.IPV4, "10.1.0.0/16"),
        ("0.0.0.0/0", Family.IPV4, "0.0.0.0/0"),
        ("2001:DB8::1/32", Family.IPV6, "2001:db8::/32"),
        ("::ffff:10.0.0.0/104", Family.IPV4, "10.0.0.0/8"),
    ],
)
def test_networks_are_masked(text: str, family: Family, canonical: str) -> None:
    assert parse_cidr(text) == (family, canonical)


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.0/33", "10.0.0.0/-1", "fd00::/129", "/8", ""])
def test_what_is_no_network_is_refused(text: str) -> None:
    assert parse_cidr(text) is None


@given(st.ip_addresses(v=4))
def test_ipv4_round_trips(address: ipaddress.IPv4Address) -> None:
    assert parse_ip(str(address)) == (Family.IPV4, str(address))


@given(st.ip_addresses(v=6))
def test_ipv6_is_printed_as_python_does_unless_mapped(address: ipaddress.IPv6Address) -> None:
    parsed = parse_ip(str(address))
    assert parsed is not None
    expected = str(address.ipv4_mapped) if address.ipv4_mapped else address.compressed
    assert parsed[1] == expected


@given(st.text(max_size=50))
def test_any_text_is_an_answer_not_a_crash(text: str) -> None:
    parse_ip(text)
    parse_cidr(text)


def test_contains_needs_the_same_family() -> None:
    assert contains("10.0.0.0/8", "10.255.0.1")
    assert not contains("10.0.0.0/8", "11.0.0.1")
    assert not contains("::/0", "10.0.0.1")


def test_host_and_port_are_joined_with_brackets_for_ipv6() -> None:
    assert join_host_port("10.0.0.1", 80) == "10.0.0.1:80"
    assert join_host_port("fd00::1", 80) == "[fd00::1]:80"


ipv4 = st.binary(min_size=4, max_size=4)
groups = st.sampled_from([b"\0\0", b"\0\1", b"\xfd\0", b"\xff\xff"])
ipv6 = st.lists(groups, min_size=8, max_size=8).map(b"".join) | st.binary(min_size=16, max_size=16)


@given(ipv4 | ipv6)
def test_addresses_are_packed_and_unpacked_as_the_standard_library_does(raw: bytes) -> None:
    text = str(ipaddress.ip_address(raw))
    assert unpack_address(raw) == text
    assert pack_address(text) == raw


_SPELLINGS = (str, lambda address: address.exploded, lambda address: str(address).upper())


@given(st.ip_addresses(), st.sampled_from(_SPELLINGS), st.integers(0, 0xFFFF))
def test_what_is_remembered_of_networks_does_not_show(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
    spell: Callable[[ipaddress.IPv4Address | ipaddress.IPv6Address], str],
    last: int,
) -> None:
    """Of any address, another one of its network, and both again."""
    sibling = type(address)(int(address) >> 16 << 16 | last)
    for found in (address, sibling, address):
        mapped = None if found.version == 4 else found.ipv4_mapped
        wanted = found if mapped is None else mapped
        family = Family.IPV4 if wanted.version == 4 else Family.IPV6
        assert parse_ip(spell(found)) == (family, str(wanted))
