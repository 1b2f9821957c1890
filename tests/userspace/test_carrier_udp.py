"""UDP through a carrier: sessions, idle time, refusals and large datagrams.

Mostly a real process; where time decides, it is one of this process with a clock of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Sequence

from tests.support.userspace_kit import (
    HERE,
    IDLE_SECONDS,
    Proxy,
    Servers,
    running,
    until_readable,
)
from tests.support.waiting import LIMIT_SECONDS, until_async, within_limit

from kubeproxy.facts.ids import Protocol
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.carrier.reactor import Reactor
from kubeproxy.modes.userspace.carrier.shared import Shared
from kubeproxy.modes.userspace.carrier.udp import UdpListener, UdpSessions


class Client:
    """One UDP socket that asks and waits."""

    def __init__(self, port: int, address: str = HERE) -> None:
        self._handle = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._handle.setblocking(False)
        self._handle.connect((address, port))

    async def ask(self, data: bytes = b"?", timeout_seconds: float = LIMIT_SECONDS) -> bytes:
        loop = asyncio.get_running_loop()
        self.tell(data)
        return await asyncio.wait_for(loop.sock_recv(self._handle, 65535), timeout_seconds)

    def tell(self, data: bytes = b"?") -> None:
        self._handle.send(data)  # also an empty one, which sock_sendall would not send

    def close(self) -> None:
        self._handle.close()


def answering(name: str) -> Callable[[bytes], bytes]:
    return lambda _data: name.encode()


def closed_port() -> Target:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        handle.bind((HERE, 0))
        return Target(HERE, int(handle.getsockname()[1]))


async def serve(proxy: Proxy, *targets: Target, keep: tuple[Target, ...] = ()) -> int:
    return await proxy.serve(targets, name="dns", protocol=Protocol.UDP, keep=keep)


async def test_a_client_keeps_its_endpoint_while_it_talks(proxy: Proxy, servers: Servers) -> None:
    """And different clients are spread."""
    port = await serve(proxy, await servers.udp(answering("a")), await servers.udp(answering("b")))
    one, two = Client(port), Client(port)
    answers = [(await one.ask(), await two.ask()) for _ in range(4)]
    assert len(set(answers)) == 1
    assert set(answers[0]) == {b"a", b"b"}
    one.close()
    two.close()


class ByHand:
    """A listener of this process with its clock, and endpoints that answer when asked to."""

    def __init__(
        self, stack: contextlib.ExitStack, endpoints: int = 1, others: Sequence[Target] = ()
    ) -> None:
        self.now = 100.0
        self.reactor = Reactor(lambda: self.now)
        self.shared = Shared(self.reactor, limit=1000, write=lambda text, service: None)
        self.endpoints = [stack.enter_context(_bound()) for _ in range(endpoints)]
        handle = _bound()
        self.port = int(handle.getsockname()[1])
        listener = UdpListener(handle, "default/dns", UdpSessions(self.shared, IDLE_SECONDS))
        targets = (Target(HERE, int(each.getsockname()[1])) for each in self.endpoints)
        listener.update(Balance((*others, *targets)))
        self.client = stack.enter_context(_bound())
        stack.callback(self.reactor.close)
        stack.callback(listener.close)

    def ask(self) -> None:
        self.client.sendto(b"?", (HERE, self.port))
        self.reactor.run_once()

    def answer(self) -> None:
        (endpoint,) = self.endpoints
        self.answer_from(endpoint, self.client)

    def answer_from(self, endpoint: socket.socket, client: socket.socket) -> None:
        _, session = endpoint.recvfrom(10)
        endpoint.sendto(b"!", session)
        until_readable(self.reactor, client)
        assert client.recv(10) == b"!"

    def exchange(self, client: socket.socket) -> socket.socket | None:
        """Send one datagram, and an answer. Return the endpoint; None if none got the datagram."""
        client.sendto(b"?", (HERE, self.port))
        self.reactor.run_once()
        places = [self.reactor._epoll.fileno(), *(each.fileno() for each in self.endpoints)]
        ready = select.select(places, [], [], LIMIT_SECONDS)[0]
        for endpoint in self.endpoints:
            if endpoint.fileno() in ready:
                self.answer_from(endpoint, client)
                return endpoint
        self.reactor.run_once()  # the refusal
        return None


def _bound() -> socket.socket:
    handle = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    handle.settimeout(LIMIT_SECONDS)
    handle.bind((HERE, 0))
    return handle


def test_a_busy_session_goes_on_and_an_idle_one_ends() -> None:
    """Each datagram pushes the deadline, either way."""
    with contextlib.ExitStack() as stack:
        carrier = ByHand(stack)
        for _ in range(6):
            carrier.ask()
            carrier.now += IDLE_SECONDS * 0.9
            carrier.answer()
            carrier.now += IDLE_SECONDS * 0.9
        assert carrier.shared.sessions == 1
        assert len(carrier.shared.hops) == 1
        carrier.now += IDLE_SECONDS
        carrier.reactor.run_once()
        assert carrier.shared.sessions == 0
        assert len(carrier.shared.hops) == 0


def test_after_an_idle_session_the_next_datagram_picks_again() -> None:
    with contextlib.ExitStack() as stack:
        carrier = ByHand(stack, endpoints=2)
        first = carrier.exchange(carrier.client)
        assert carrier.exchange(carrier.client) is first
        carrier.now += IDLE_SECONDS
        carrier.reactor.run_once()
        assert carrier.exchange(carrier.client) not in (first, None)


async def test_an_idle_session_ends_by_itself(servers: Servers) -> None:
    arrived = asyncio.Event()
    async with running(idle_seconds=0.1) as proxy:
        client = Client(await serve(proxy, await servers.udp(lambda _data: arrived.set())))
        client.tell()
        await within_limit(arrived.wait())

        async def has_ended() -> bool:
            return (await proxy.counts()).sessions == 0

        await until_async(has_ended)
        client.close()


def test_an_endpoint_that_refuses_is_passed_over_for_a_while() -> None:
    """New clients do not lose their first datagram to it again."""
    with contextlib.ExitStack() as stack:
        carrier = ByHand(stack, others=[closed_port()])
        clients = [stack.enter_context(_bound()) for _ in range(12)]
        # One of the first two meets it. The refusal comes after a datagram was sent in vain.
        lost = sum(carrier.exchange(client) is None for client in clients[:2])
        assert lost == 1
        assert all(carrier.exchange(client) for client in clients)


async def test_large_datagrams_pass_whole(proxy: Proxy, servers: Servers) -> None:
    """v1.25 cut them at 4096 bytes."""
    port = await serve(proxy, await servers.udp(lambda data: data))
    client = Client(port)
    for size in (0, 1, 4096, 4097, 65507):
        sent = bytes(n % 251 for n in range(size))
        assert await client.ask(sent) == sent
    client.close()


async def test_an_answer_leaves_from_the_address_that_was_asked(servers: Servers) -> None:
    """A connected client takes answers from nowhere else, and neither does address translation."""
    async with running(address="0.0.0.0") as proxy:
        port = await serve(proxy, await servers.udp(answering("a")))
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            client = Client(port, address)
            assert await client.ask() == b"a"
            client.close()


async def test_a_session_ends_when_its_endpoint_no_longer_serves(
    proxy: Proxy, servers: Servers
) -> None:
    """A busy flow to a removed endpoint would otherwise never leave it."""
    a, b = await servers.udp(answering("a")), await servers.udp(answering("b"))
    port = await serve(proxy, a)
    client = Client(port)
    assert await client.ask() == b"a"
    await serve(proxy, b, keep=(a,))
    assert await client.ask() == b"a"
    await serve(proxy, b)
    assert await client.ask() == b"b"
    client.close()


async def test_without_endpoints_datagrams_are_dropped(proxy: Proxy) -> None:
    client = Client(await serve(proxy))
    try:
        await client.ask(timeout_seconds=0.2)
    except TimeoutError:
        client.close()
        return
    raise AssertionError("an answer came")


async def test_closing_a_service_ends_its_sessions(proxy: Proxy, servers: Servers) -> None:
    port = await serve(proxy, await servers.udp(answering("a")))
    client = Client(port)
    await client.ask()
    await proxy.stop("dns", Protocol.UDP)
    assert (await proxy.sink.supervisor.execute([])).sessions == 0
    client.close()
