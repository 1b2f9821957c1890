"""Sockets of this network namespace, closed from outside by what they are connected to.

Why: a client that only waits for its endpoint learns nothing from a flow that is deleted, so
Services may ask that it notices (`plan.draining`). A socket that is closed this way returns
ECONNABORTED, and one of TCP sends a reset to its peer. Promises: no other socket is closed than the
one that has sent the flow; one that is gone, or is in another network namespace, is no error.
Leaves to others: which flows.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Iterator, Sequence

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.socket import NetlinkSocket, kernel_error
from kubeproxy.kernel.sock_diag import wire
from kubeproxy.kernel.sock_diag.wire import Closed, Ends, FoundSocket

NETLINK_SOCK_DIAG = 4

_AT_ONCE = 64
"""Requests in one datagram: all replies must fit the receive buffer."""
_GONE = frozenset({errnos.ENOENT, errnos.ESTALE})
_NO_DESTROY = "the kernel cannot close sockets (CONFIG_INET_DIAG_DESTROY)"


def close_sockets(family: Family, protocol: Protocol, flows: Sequence[Ends]) -> Closed:
    """Close the sockets here that have sent these flows. Failures are part of the result."""
    count, failures = 0, list[str]()
    try:
        with SockDiag() as sockets:
            for start in range(0, len(flows), _AT_ONCE):
                found = list(sockets.find(family, protocol, flows[start : start + _AT_ONCE]))
                refused = sockets.destroy(family, protocol, found) if found else []
                count += len(found) - len(refused)
                failures += (text for text in refused if text)
    except KernelError as error:
        failures.append(str(error))
    return Closed(count, failures[0] if failures else "")


class SockDiag:
    """The sockets of the network namespace in which this object was made."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_SOCK_DIAG)

    def __enter__(self) -> SockDiag:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def find(
        self, family: Family, protocol: Protocol, flows: Sequence[Ends]
    ) -> Iterator[FoundSocket]:
        """The open sockets that have sent these flows; most flows are of other hosts."""
        bodies = [wire.format_find(family, protocol, *ends) for ends in flows]
        first, replies = self._socket.ask(wire.SOCK_DIAG_BY_FAMILY, bodies)
        for data in replies:
            for reply in codec.iter_messages(data):
                place = reply.seq - first
                if reply.type != wire.SOCK_DIAG_BY_FAMILY or not 0 <= place < len(flows):
                    continue
                found = wire.parse_socket(reply.body, family)
                if found is not None and found.is_sender(*flows[place]):
                    yield found

    def destroy(
        self, family: Family, protocol: Protocol, found: Sequence[FoundSocket]
    ) -> list[str]:
        """Close these sockets. Return why some are not closed; empty for one that is gone."""
        first = self._socket.reserve(len(found))
        failures = self._socket.transact(
            b"".join(
                codec.message(
                    wire.SOCK_DESTROY,
                    codec.NLM_F_REQUEST,
                    first + place,
                    wire.format_destroy(family, protocol, each),
                )
                for place, each in enumerate(found)
            )
        )
        return [_problem(failure) for failure in failures]


def _problem(failure: codec.Failure) -> str:
    if failure.errno in _GONE:
        return ""
    text = _NO_DESTROY if failure.errno == errnos.EOPNOTSUPP else failure.text
    return str(kernel_error(failure.errno, "close socket", text))
