"""The lab's wire formats."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpctl.lab.packets import (
    ABORT,
    INIT,
    INIT_ACK,
    IcmpError,
    SctpPacket,
    crc32c,
    format_sctp,
    parse_icmp_error,
    parse_sctp,
)
from kubeproxy.facts.ids import Family, Protocol

ports = st.integers(0, 65535)
tags = st.integers(0, 2**32 - 1)


def packets() -> st.SearchStrategy[SctpPacket]:
    cookies = st.binary(max_size=200)
    return st.one_of(
        st.builds(SctpPacket, ports, ports, tags, st.just(INIT), tags),
        st.builds(SctpPacket, ports, ports, tags, st.just(INIT_ACK), tags, cookies),
        st.builds(SctpPacket, ports, ports, tags, st.just(ABORT), st.just(0)),
    )


@settings(deadline=None)  # a checksum in Python on a busy machine
@given(packets())
def test_sctp_parses_what_it_formats(packet: SctpPacket) -> None:
    assert parse_sctp(format_sctp(packet)) == packet


@given(st.binary(max_size=80))
def test_sctp_parser_survives_any_bytes(data: bytes) -> None:
    packet = parse_sctp(data)
    assert packet is None or packet.chunk in (INIT, INIT_ACK, ABORT)


def test_checksum_is_castagnoli() -> None:
    """The check value every CRC-32C implementation publishes."""
    assert crc32c(b"123456789") == 0xE3069283


def test_checksum_stands_in_the_header_little_end_first() -> None:
    data = format_sctp(SctpPacket(1, 2, 3, ABORT, 0))
    assert struct.unpack_from("<I", data, 8)[0] == crc32c(data[:8] + b"\0\0\0\0" + data[12:])


def ipv4_quote(protocol: int) -> bytes:
    header = bytearray(20)
    header[0], header[9] = 0x45, protocol
    return bytes(header) + struct.pack("!HH", 40000, 80) + b"\0" * 4


@pytest.mark.parametrize(("code", "is_port"), [(3, True), (0, False)])
def test_icmp_error_tells_port_unreachable_from_the_rest(code: int, is_port: bool) -> None:
    message = bytes([3, code]) + b"\0" * 6 + ipv4_quote(6)
    expected = IcmpError(is_port, Protocol.TCP, 40000, 80)
    assert parse_icmp_error(message, Family.IPV4) == expected


def test_icmpv6_error_is_read() -> None:
    quoted = bytes(6) + bytes([17]) + bytes(33) + struct.pack("!HH", 5, 53)
    error = parse_icmp_error(bytes([1, 4]) + bytes(6) + quoted, Family.IPV6)
    assert error == IcmpError(True, Protocol.UDP, 5, 53)


@given(st.binary(max_size=80), st.sampled_from(Family))
def test_icmp_parser_survives_any_bytes(data: bytes, family: Family) -> None:
    error = parse_icmp_error(data, family)
    assert error is None or 0 <= error.source_port <= 65535
