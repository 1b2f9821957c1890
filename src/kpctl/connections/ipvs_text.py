"""The connections of IPVS as /proc/net/ip_vs_conn shows them. Pure.

    Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
    TCP 0AF40102 A3D2 0A600001 0050 0AF40205 1F90 ESTABLISHED     898

An IPv4 address is eight hexadecimal digits, an IPv6 address is spelled out. Ports are hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kubeproxy.facts.address import pack_address, parse_ip
from kubeproxy.facts.ids import Family, Protocol

_COLUMNS = 9
_IPV4_DIGITS = 8


class IpvsConnection(NamedTuple):
    """One line. Ends are packed: address and port in network byte order."""

    family: Family
    protocol: Protocol
    client: bytes
    virtual: bytes
    real: bytes
    state: str


def parse_connections(lines: Iterable[str]) -> Iterator[IpvsConnection]:
    """The connections in these lines; the heading and what is not understood are left out.

    Session affinity makes an entry per client that is no connection: its port is 0.
    """
    for line in lines:
        found = _parse_line(line.split())
        if found is not None and found.client[-2:] != b"\0\0":
            yield found


def _parse_line(words: list[str]) -> IpvsConnection | None:
    if len(words) < _COLUMNS or words[0] not in Protocol.__members__:
        return None
    try:
        ends = [_parse_end(words[at], words[at + 1]) for at in (1, 3, 5)]
    except ValueError:
        return None
    family = Family.IPV4 if len(ends[1]) == _IPV4_DIGITS // 2 + 2 else Family.IPV6
    return IpvsConnection(family, Protocol(words[0]), ends[0], ends[1], ends[2], words[7])


def _parse_end(address: str, port: str) -> bytes:
    number = int(port, 16).to_bytes(2, "big")
    if len(address) == _IPV4_DIGITS and ":" not in address:
        return bytes.fromhex(address) + number
    found = parse_ip(address)
    if found is None:
        raise ValueError(address)
    return pack_address(found[1]) + number
