"""IPVS and ipset messages: what a kernel once answered, and what is written parses back."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipset import wire as ipset
from kubeproxy.kernel.ipset.wire import Entry, SetHead, SetType
from kubeproxy.kernel.ipvs import wire as ipvs
from kubeproxy.kernel.ipvs.wire import Destination, Service, Timeouts
from kubeproxy.kernel.netlink import generic

# Recorded from Linux 6.1: a persistent service, its destination, and a set with a network and a
# host in it.
SERVICE_REPLY = bytes.fromhex(
    "010100005401010006000100020000000600020006000000140003000a600001000000000000000000000000"
    "060004000050000007000600727200000c00070003000000ffffffff080008002c01000008000900ffffffff"
    "60000a000800010000000000080002000000000008000300000000000c000400000000000000000004000b00"
    "0c0005000000000000000000080006000000000008000700000000000800080000000000080009000000000008"
    "000a0000000000a0000c000c000100000000000000000004000b000c000200000000000000000004000b000c00"
    "0300000000000000000004000b000c000400000000000000000004000b000c000500000000000000000004000b"
    "000c000600000000000000000004000b000c000700000000000000000004000b000c00080000000000000000000"
    "4000b000c000900000000000000000004000b000c000a000000000000000000"
)
DESTINATION_REPLY = bytes.fromhex(
    "0501000078000200140001000af40001000000000000000000000000060002001f9000000800030000000000"
    "080004000100000005000d000000000006000e000000000006000f0000000000080005000000000008000600"
    "00000000080007000300000008000800040000000800090000000000" + "06000b0002000000"
)
SET_REPLY = bytes.fromhex(
    "020000000500010006000000090002004e4554530000000015000300686173683a69702c706f72742c6e6574"
    "00000000050005000200000005000400080000003c00078008001240000004000800134000010000050015000c"
    "00000008001140f06aae8f080019400000000008001a400000023808001840000000026c000880340007800c00"
    "0180080001000a0000010c001480080001000a010000060004400050000005001500100000000500070006000000"
    "340007800c000180080001000a0000010c001480080001000a01000706000440005000000500150020000000"
    "0500070006000000"
)


def test_a_service_as_the_kernel_reports_it() -> None:
    """The kernel's own flag is not ours to compare."""
    assert ipvs.parse_service(SERVICE_REPLY) == Service(
        6, "10.96.0.1", 80, "rr", ipvs.IP_VS_SVC_F_PERSISTENT, 300
    )


def test_a_destination_as_the_kernel_reports_it() -> None:
    found = ipvs.parse_destination(DESTINATION_REPLY, Family.IPV4)
    assert found == Destination("10.244.0.1", 8080, 1, ipvs.IP_VS_CONN_F_MASQ, active=3, inactive=4)
    assert found.connections == 7


def test_a_set_as_the_kernel_reports_it() -> None:
    """A host in a set of networks has its whole prefix length, so it equals what was asked for."""
    assert ipset.parse_head(SET_REPLY) == SetHead(SetType.IP_PORT_NET)
    assert list(ipset.parse_entries(SET_REPLY, SetType.IP_PORT_NET)) == [
        Entry("10.0.0.1", 6, 80, "10.1.0.0", 16),
        Entry("10.0.0.1", 6, 80, "10.1.0.7", 32),
    ]


addresses = st.one_of(
    st.integers(1, 2**32 - 1).map(lambda n: str(ipaddress.IPv4Address(n))),
    st.integers(2**112, 2**128 - 1).map(lambda n: str(ipaddress.IPv6Address(n))),
)
ports = st.integers(1, 65535)
protocols = st.sampled_from([6, 17, 132])
services = st.builds(
    Service,
    protocol=protocols,
    address=addresses,
    port=ports,
    scheduler=st.sampled_from(["rr", "wlc", "mh"]),
    flags=st.sampled_from([0, ipvs.IP_VS_SVC_F_PERSISTENT, ipvs.IP_VS_SVC_F_SCHED_MH_PORT]),
    timeout_seconds=st.integers(0, 86400),
    firewall_mark=st.just(0),
)
entries_of_two = st.builds(Entry, addresses, protocols, ports, addresses, st.just(0))


@given(services)
def test_services_parse_back(service: Service) -> None:
    assert ipvs.parse_service(ipvs.format_service(ipvs.IPVS_CMD_NEW_SERVICE, service)) == service


@given(services, ports, st.integers(0, 65535))
def test_destinations_parse_back(service: Service, port: int, weight: int) -> None:
    key = ipvs.format_key(service.protocol, service.address, service.port)
    body = ipvs.format_destination(ipvs.IPVS_CMD_NEW_DEST, key, service.address, port, weight)
    parsed = ipvs.parse_destination(body, family_of(service.address))
    assert parsed == Destination(service.address, port, weight)
    assert ipvs.parse_service(body).port == service.port


@given(st.lists(entries_of_two, max_size=20))
def test_entries_parse_back(entries: list[Entry]) -> None:
    body = ipset.format_entries("SET", entries)
    assert list(ipset.parse_entries(body, SetType.IP_PORT_IP)) == entries


@pytest.mark.parametrize("port", [0, 1, 65535])
def test_entries_of_a_bitmap_are_ports(port: int) -> None:
    body = ipset.format_entries("SET", [Entry(port=port)])
    assert list(ipset.parse_entries(body, SetType.PORT)) == [Entry(port=port)]


def test_timeouts_parse_back() -> None:
    assert ipvs.parse_timeouts(ipvs.format_timeouts(Timeouts(1, 2, 3))) == Timeouts(1, 2, 3)


def test_ipsets_own_errors_are_put_in_words() -> None:
    assert ipset.error_text(4352) == "the set is full (65536 entries)"
    assert ipset.error_text(2) == ""


def test_a_generic_family_is_asked_for_by_name() -> None:
    assert b"IPVS\0" in generic.format_family_request("IPVS")
    assert generic.parse_family(bytes.fromhex("01010000060001001d000000")) == 0x1D
