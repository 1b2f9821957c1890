"""UDP through a real carrier process: sessions, idle time, refusals and large datagrams."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from tests.support.userspace_kit import HERE, IDLE_SECONDS, Proxy, Servers, running
from tests.support.waiting import LIMIT_SECONDS, until_async

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
        self._handle.send(data)  # also an empty one, which sock_sendall would not send
        return await asyncio.wait_for(loop.sock_recv(self._handle, 65535), timeout_seconds)

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
    """A listener of this process with its clock, and an endpoint that answers when asked to."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.now = 100.0
        self.reactor = Reactor(lambda: self.now)
        self.shared = Shared(self.reactor, limit=1000, write=lambda text, service: None)
        self.endpoint = stack.enter_context(_bound())
        handle = _bound()
        self.port = int(handle.getsockname()[1])
        listener = UdpListener(handle, "default/dns", UdpSessions(self.shared, IDLE_SECONDS))
        listener.update(Balance((Target(HERE, int(self.endpoint.getsockname()[1])),)))
        self.client = stack.enter_context(_bound())
        stack.callback(self.reactor.close)
        stack.callback(listener.close)

    def ask(self) -> None:
        self.client.sendto(b"?", (HERE, self.port))
        self.reactor.run_once()

    def answer(self) -> None:
        _, session = self.endpoint.recvfrom(10)
        self.endpoint.sendto(b"!", session)
        self.reactor.run_once()
        assert self.client.recv(10) == b"!"


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


async def test_after_an_idle_session_the_next_datagram_picks_again(servers: Servers) -> None:
    both = (await servers.udp(answering("a")), await servers.udp(answering("b")))
    async with running(idle_seconds=0.1) as proxy:
        client = Client(await serve(proxy, *both))
        first = await client.ask()

        async def has_ended() -> bool:
            return (await proxy.counts()).sessions == 0

        await until_async(has_ended)
        assert await client.ask() != first
        client.close()


async def test_an_endpoint_that_refuses_is_passed_over_for_a_while(
    proxy: Proxy, servers: Servers
) -> None:
    """New clients do not lose their first datagram to it again."""
    port = await serve(proxy, closed_port(), await servers.udp(answering("b")))
    # One of the first two clients meets it. The refusal comes after a datagram was sent in vain.
    for client in (Client(port), Client(port)):

        async def is_served(client: Client = client) -> bool:
            with contextlib.suppress(TimeoutError):
                return await client.ask(timeout_seconds=0.5) == b"b"
            return False

        await until_async(is_served)
        client.close()
    for _ in range(10):
        client = Client(port)
        assert await client.ask() == b"b"
        client.close()


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
