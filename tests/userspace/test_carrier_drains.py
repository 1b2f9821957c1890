"""Connections to endpoints that go, through a real carrier process and by a clock of the test."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from collections.abc import Collection

import pytest
from tests.support.userspace_kit import HERE, Proxy, Servers, close, until_readable
from tests.support.waiting import LIMIT_SECONDS, within_limit

from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.drains import Drain, Drains
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.carrier.reactor import Reactor
from kubeproxy.modes.userspace.carrier.shared import Shared
from kubeproxy.modes.userspace.carrier.tcp import TcpListener
from kubeproxy.modes.userspace.carrier.udp import UdpListener, UdpSessions

A, B = Target("10.244.1.1", 80), Target("10.244.1.2", 80)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
        await writer.drain()
    await close(writer)


class Client:
    """An open connection through the proxy to an echo server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def connect(port: int) -> Client:
        client = Client(*await asyncio.open_connection(HERE, port))
        await client.ask()
        return client

    async def ask(self) -> None:
        self.writer.write(b"who?")
        assert await within_limit(self.reader.readexactly(4)) == b"who?"

    async def notice(self) -> None:
        """Fail with a reset, without sending."""
        with pytest.raises(ConnectionResetError):
            await within_limit(self.reader.read(1))
        self.writer.close()


async def test_connections_to_an_endpoint_that_goes_are_reset(
    proxy: Proxy, servers: Servers
) -> None:
    first, second = await servers.tcp(echo), await servers.tcp(echo)
    port = await proxy.serve([first], drain_seconds=0.0)
    going = await Client.connect(port)
    await proxy.serve([second], drain_seconds=0.0, keep=[second])
    staying = await Client.connect(port)
    await going.notice()
    await proxy.serve([], keep=[second], drain_seconds=0.0)
    await staying.ask()
    await proxy.serve([], drain_seconds=0.0)
    await staying.notice()
    assert any("connections reset" in message.text for message in proxy.logged)


async def test_connections_are_kept_without_an_annotation(proxy: Proxy, servers: Servers) -> None:
    port = await proxy.serve([await servers.tcp(echo)])
    client = await Client.connect(port)
    await proxy.serve([await servers.tcp(echo)])
    await client.ask()
    await close(client.writer)


def test_a_limit_is_waited_for_also_when_the_listener_is_closed() -> None:
    now = 100.0
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(socket.create_server((HERE, 0)))
        reactor = stack.enter_context(contextlib.closing(Reactor(lambda: now)))
        shared = Shared(reactor, limit=1000, write=lambda text, service: None)
        handle = socket.create_server((HERE, 0))
        place = handle.getsockname()
        listener = TcpListener(handle, "default/web", shared)
        balance = Balance((Target(HERE, endpoint.getsockname()[1]),), drain_seconds=10.0)
        listener.update(balance)
        client = stack.enter_context(socket.create_connection(place))
        until_readable(reactor, endpoint)
        accepted = stack.enter_context(endpoint.accept()[0])

        def is_carried() -> bool:
            client.sendall(b"?")
            until_readable(reactor, accepted)
            return accepted.recv(10) == b"?"

        assert is_carried()
        listener.update(Balance((), drain_seconds=10.0))
        assert is_carried()
        listener.close()
        now += 9.0
        assert is_carried()
        now += 1.0
        reactor.run_once()
        client.settimeout(LIMIT_SECONDS)
        with pytest.raises(ConnectionResetError):
            client.recv(10)
        assert len(shared.hops) == 0


class Moment(float):
    """Counts how often times are compared."""

    compared = 0

    def __add__(self, seconds: float) -> Moment:
        return Moment(super().__add__(seconds))

    def __lt__(self, other: float) -> bool:
        Moment.compared += 1
        return super().__lt__(other)

    def __le__(self, other: float) -> bool:
        Moment.compared += 1
        return super().__le__(other)


class Ended:
    """Stands for a listener, and keeps what it is asked to end."""

    def __init__(self) -> None:
        self.all: list[Collection[Target]] = []

    def end(self, targets: Collection[Target]) -> None:
        self.all.append(targets)


def test_a_listener_that_drains_is_not_compared_with_all_others() -> None:
    """Neither when it changes nor when its time is up."""
    drains, ended = Drains(), Ended()
    listeners = [Drain(drains, ended.end) for _ in range(500)]
    for number, drain in enumerate(listeners):
        drain.update(Balance((B,), drain_seconds=10.0), [A, B], now=Moment(number))
    Moment.compared = 0
    drains.expire(Moment(10))
    listeners[7].update(Balance((A, B), drain_seconds=10.0), [A, B], now=Moment(10))
    assert (len(ended.all), drains.next_deadline()) == (1, 11)
    assert Moment.compared < 50


def test_each_endpoint_has_its_time_and_one_that_is_back_goes_on() -> None:
    drains, ended = Drains(), Ended()
    drain = Drain(drains, ended.end)
    drain.update(Balance((B,), drain_seconds=10.0), [A, B], now=0)
    assert drains.next_deadline() == 10
    drain.update(Balance((A,), drain_seconds=10.0), [A, B], now=5)
    assert drains.next_deadline() == 15
    drains.expire(14)
    assert ended.all == []
    drains.expire(15)
    assert (ended.all, drains.next_deadline()) == ([{B}], None)
    drain.update(Balance((), drain_seconds=10.0), [A], now=20)
    drain.update(Balance((), drain_seconds=None), [A], now=21)
    assert drains.next_deadline() is None


@pytest.mark.parametrize("protocol", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_closed_listener_is_freed_without_the_garbage_collector(
    protocol: socket.SocketKind,
) -> None:
    """Names come and go all day: what waits for a full collection is a quarter of all memory."""
    shared = Shared(Reactor(lambda: 0.0), limit=1000, write=lambda text, service: None)
    handle = socket.socket(socket.AF_INET, protocol)
    handle.bind((HERE, 0))
    listener: TcpListener | UdpListener
    if protocol is socket.SOCK_STREAM:
        handle.listen()
        listener = TcpListener(handle, "default/web", shared)
    else:
        listener = UdpListener(handle, "default/web", UdpSessions(shared, 1.0))
    listener.update(Balance((A,), drain_seconds=10.0))
    held = weakref.ref(listener)
    gc.disable()
    try:
        listener.close()
        del listener
        assert held() is None
    finally:
        gc.enable()
        shared.reactor.close()
