"""The kernel's trace of a packet through nf_tables, as bytes: a message for each rule. Pure.

A packet with the `nftrace` mark is reported rule by rule to the group NFNLGRP_NFTRACE. Rules of
iptables-nft are rules of nf_tables and so are reported as well.
"""

from __future__ import annotations

import ipaddress

from msgspec import Struct

from kubeproxy.kernel.netlink.codec import NFGEN_LENGTH, Message, be, parse_attrs
from kubeproxy.kernel.nftables.wire import NFTA_DATA_VERDICT, SUBSYSTEM, Verdict, name, verdict_in

# nfnetlink.h and nf_tables.h
NFNLGRP_NFTRACE = 9
NFT_MSG_TRACE = 17
NFT_META_NFTRACE = 12
NFT_TABLE_F_OWNER = 0x2
"""Such a table goes away with the socket that made it, however its process ends."""

NFTA_TRACE_TABLE, NFTA_TRACE_CHAIN, NFTA_TRACE_RULE_HANDLE = 1, 2, 3
NFTA_TRACE_VERDICT, NFTA_TRACE_ID = 5, 6
NFTA_TRACE_NETWORK_HEADER, NFTA_TRACE_TRANSPORT_HEADER, NFTA_TRACE_POLICY = 8, 9, 16


class TraceEvent(Struct, frozen=True):
    """One report. `handle` is the rule's, 0 for the end of a chain, where `verdict` is the policy.

    `destination` is where the packet is sent at this moment, if its headers are in the report.
    """

    packet: int
    family: int
    table: str
    chain: str
    handle: int
    verdict: Verdict | None
    destination: tuple[str, int] | None


def parse_trace(message: Message) -> TraceEvent | None:
    """The report in a message, or None if it is none."""
    if message.type != SUBSYSTEM | NFT_MSG_TRACE:
        return None
    found = parse_attrs(message.body, NFGEN_LENGTH)
    network = found.get(NFTA_TRACE_NETWORK_HEADER, b"")
    policy = found.get(NFTA_TRACE_POLICY)
    verdict = verdict_in({NFTA_DATA_VERDICT: found.get(NFTA_TRACE_VERDICT, b"")})
    return TraceEvent(
        packet=be(found.get(NFTA_TRACE_ID, b"")),
        family=message.body[0],
        table=name(found.get(NFTA_TRACE_TABLE, b"")),
        chain=name(found.get(NFTA_TRACE_CHAIN, b"")),
        handle=be(found.get(NFTA_TRACE_RULE_HANDLE, b"")),
        verdict=verdict if policy is None else Verdict(be(policy)),
        destination=destination_of(network, found.get(NFTA_TRACE_TRANSPORT_HEADER, b"")),
    )


def destination_of(network: bytes, transport: bytes) -> tuple[str, int] | None:
    """Address and port out of the headers of a packet; None if they are cut short."""
    version = network[0] >> 4 if network else 0
    length, start, size = {4: (20, 16, 4), 6: (40, 24, 16)}.get(version, (1 << 16, 0, 0))
    if len(network) < length or len(transport) < 4:
        return None
    address = ipaddress.ip_address(network[start : start + size])
    return str(address), int.from_bytes(transport[2:4], "big")
