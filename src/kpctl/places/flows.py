"""Flows in the connection tracking table of a namespace, made without packets.

For tests and benchmarks: half a million of them take seconds. The kernel needs no rule and no route
for it; a flow is answered from another place than it was sent to because the request has it so.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.conntrack.table import Conntrack
from kubeproxy.kernel.conntrack.wire import IPCTNL_MSG_CT_NEW
from kubeproxy.kernel.netlink import codec
from kubeproxy.plan.conntrack import PORT_BYTES

_PER_DATAGRAM = 200
_ESTABLISHED = 3

_CTA_STATUS = 3
_CTA_PROTOINFO = 4
_CTA_TIMEOUT = 7
_CTA_ZONE = 18

_CONFIRMED = 1 << 3
REPLIED = 1 << 1
ASSURED = 1 << 2
"""The kernel drops others first when the table is full."""


class NewFlow(NamedTuple):
    """A flow to be. Ends are packed: address and port in network byte order."""

    client: bytes
    destination: bytes
    reply_source: bytes
    protocol: Protocol = Protocol.UDP
    status: int = 0
    zone: int = 0
    seconds: int = 600


def format_flow(flow: NewFlow) -> bytes:
    """Body of IPCTNL_MSG_CT_NEW."""
    is_four = len(flow.client) == 4 + PORT_BYTES
    number = flow.protocol.number
    parts = [
        codec.nfgen((Family.IPV4 if is_four else Family.IPV6).af),
        _one_way(1, flow.client, flow.destination, number),
        _one_way(2, flow.reply_source, flow.client, number),
        codec.attr_be32(_CTA_TIMEOUT, flow.seconds),
        codec.attr_be32(_CTA_STATUS, _CONFIRMED | flow.status),
    ]
    if flow.protocol is Protocol.TCP:
        state = codec.attr_nested(1, codec.attr_u8(1, _ESTABLISHED))
        parts.append(codec.attr_nested(_CTA_PROTOINFO, state))
    if flow.zone:
        parts.append(codec.attr_be16(_CTA_ZONE, flow.zone))
    return b"".join(parts)


def _one_way(kind: int, source: bytes, destination: bytes, number: int) -> bytes:
    first = 1 if len(source) == 4 + PORT_BYTES else 3
    addresses = codec.attr(first, source[:-PORT_BYTES])
    addresses += codec.attr(first + 1, destination[:-PORT_BYTES])
    ports = codec.attr(2, source[-PORT_BYTES:]) + codec.attr(3, destination[-PORT_BYTES:])
    return codec.attr_nested(
        kind, codec.attr_nested(1, addresses), codec.attr_nested(2, codec.attr_u8(1, number), ports)
    )


def insert_flows(flows: Iterable[NewFlow]) -> int:
    """Insert these into the table of the current network namespace. Return how many.

    Raises KernelError if the kernel refuses one.
    """
    left, count = iter(flows), 0
    with Conntrack(Family.IPV4) as table:
        while some := [format_flow(flow) for flow in islice(left, _PER_DATAGRAM)]:
            _insert(table, some)
            count += len(some)
    return count


def _insert(table: Conntrack, bodies: list[bytes]) -> None:
    first = table.reserve(len(bodies))
    flags = codec.NLM_F_REQUEST | codec.NLM_F_CREATE | codec.NLM_F_EXCL
    failures = table.transact(
        b"".join(
            codec.message(IPCTNL_MSG_CT_NEW, flags, first + number, body)
            for number, body in enumerate(bodies)
        )
    )
    if failures:
        raise KernelError(f"insert a flow: {failures[0]}", errno=failures[0].errno)
