"""Sockets of a real kernel, closed from outside, in a namespace of its own."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest
from tests.support.conntrack_kit import packed

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.sock_diag import wire
from kubeproxy.kernel.sock_diag.table import SockDiag, close_sockets
from kubeproxy.kernel.sock_diag.wire import Closed, Ends

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("namespace")]

LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
ELSEWHERE = {Family.IPV4: "10.244.1.5", Family.IPV6: "fd00::5"}
every = pytest.mark.parametrize(
    ("family", "protocol"), [(family, protocol) for family in Family for protocol in KINDS]
)


@pytest.fixture
def namespace() -> Iterator[None]:
    with scratch_namespace():
        yield


class Pair:
    """A server and a client that is connected to it."""

    def __init__(self, family: Family, protocol: Protocol) -> None:
        self.server = socket.socket(family.af, KINDS[protocol])
        self.server.bind((LOOPBACK[family], 0))
        if protocol is Protocol.TCP:
            self.server.listen()
        self.client = socket.socket(family.af, KINDS[protocol])
        self.client.connect(self.server.getsockname()[:2])
        self.client.setblocking(False)

    @property
    def ends(self) -> Ends:
        return Ends(packed(*self.client.getsockname()[:2]), packed(*self.client.getpeername()[:2]))

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.close()
        self.server.close()


@every
def test_the_sender_of_a_flow_notices(family: Family, protocol: Protocol) -> None:
    with Pair(family, protocol) as pair, Pair(family, protocol) as other:
        assert close_sockets(family, protocol, [pair.ends]) == Closed(1)
        with pytest.raises(ConnectionAbortedError):
            pair.client.recv(1)
        with pytest.raises(BlockingIOError):
            other.client.recv(1)


@every
def test_a_flow_of_another_host_closes_nothing_here(family: Family, protocol: Protocol) -> None:
    """The kernel would find who listens on the same port: a client elsewhere chooses its port."""
    with Pair(family, protocol) as pair:
        port = pair.server.getsockname()[1]
        target = packed(ELSEWHERE[family], 80)
        for address in (LOOPBACK[family], ELSEWHERE[family]):
            assert (
                close_sockets(family, protocol, [Ends(packed(address, port), target)]) == Closed()
            )
        again = socket.socket(family.af, KINDS[protocol])
        again.connect(pair.server.getsockname()[:2])
        again.send(b"still there")
        again.close()


def test_a_socket_of_both_families_is_found() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET6) as client,
    ):
        port = server.getsockname()[1]
        client.connect(("::ffff:127.0.0.1", port))
        ends = Ends(packed("127.0.0.1", client.getsockname()[1]), packed("127.0.0.1", port))
        assert close_sockets(Family.IPV4, Protocol.TCP, [ends]).count == 1


def test_many_are_closed_at_once() -> None:
    pairs = [Pair(Family.IPV4, Protocol.TCP) for _ in range(150)]
    nowhere = Ends(packed("192.0.2.1", 1), packed("192.0.2.2", 2))
    flows = [ends for pair in pairs for ends in (pair.ends, nowhere)]
    assert close_sockets(Family.IPV4, Protocol.TCP, flows) == Closed(150)
    for pair in pairs:
        pair.__exit__()


def test_a_kernel_that_cannot_is_named_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SOCK_DESTROY is refused: that is a message, never an exception."""

    def refuse(self: object, datagram: bytes) -> list[codec.Failure]:
        return [codec.Failure(errno.EOPNOTSUPP, m.seq) for m in codec.iter_messages(datagram)]

    with Pair(Family.IPV4, Protocol.TCP) as pair:
        monkeypatch.setattr("kubeproxy.kernel.netlink.socket.NetlinkSocket.transact", refuse)
        closed = close_sockets(Family.IPV4, Protocol.TCP, [pair.ends])
    assert (closed.count, "CONFIG_INET_DIAG_DESTROY" in closed.error) == (0, True)


def test_one_that_is_gone_meanwhile_is_no_error() -> None:
    with Pair(Family.IPV4, Protocol.TCP) as pair, SockDiag() as sockets:
        found = list(sockets.find(Family.IPV4, Protocol.TCP, [pair.ends]))
        assert sockets.destroy(Family.IPV4, Protocol.TCP, found) == []
        assert sockets.destroy(Family.IPV4, Protocol.TCP, found) == [""]


def test_a_reply_that_is_cut_short_is_no_socket() -> None:
    assert wire.parse_socket(b"\x02\x01\x00", Family.IPV4) is None
