"""Many independent requests in few system calls.

Why: IPVS, ipset and rtnetlink have no transactions, but their kernel side executes every message
of a datagram and replies only to refused ones when no acknowledgement is requested. Promise:
requests are executed in order, each on its own, and every refusal is reported with the position of
its request. Leaves to others: what a refusal means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import Failure
from kubeproxy.kernel.netlink.socket import NetlinkSocket

MESSAGES_PER_CALL = 128
"""All of them may be refused, and the refusals must fit the default receive buffer."""


class Request(NamedTuple):
    """One message without its envelope."""

    kind: int
    flags: int
    body: bytes


class Refusal(NamedTuple):
    """The request at this place was refused."""

    place: int
    failure: Failure


def send_bulk(socket: NetlinkSocket, requests: Sequence[Request]) -> list[Refusal]:
    """Execute all requests in order. Return the refusals."""
    return list(_refusals(socket, requests))


def _refusals(socket: NetlinkSocket, requests: Sequence[Request]) -> Iterator[Refusal]:
    for start in range(0, len(requests), MESSAGES_PER_CALL):
        part = requests[start : start + MESSAGES_PER_CALL]
        first = socket.reserve(len(part))
        datagram = b"".join(
            codec.message(
                request.kind, request.flags | codec.NLM_F_REQUEST, first + n, request.body
            )
            for n, request in enumerate(part)
        )
        for failure in socket.transact(datagram):
            yield Refusal(start + failure.seq - first, failure)
