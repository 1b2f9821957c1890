"""Node ports on the loopback address: what is wanted, and listeners that really relay."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest
from tests.support.builders import endpoint, node, plan, port, service

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.modes.base import Change, OwnedChange
from kubeproxy.modes.nftables.compile.listeners import Close, Open, Retarget, compile_listeners
from kubeproxy.modes.nftables.items import Address, ListenerItem, Target
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import listener_items
from kubeproxy.modes.nftables.sinks.localhost import LocalhostSink
from kubeproxy.modes.nftables.sinks.relay import Picker

PODS = [endpoint("10.244.1.1", 8080, local=True), endpoint("10.244.1.2", 8080)]


def test_nothing_listens_by_default() -> None:
    """The option is off by default, as upstream has no such thing."""
    facts = plan(service(node_port=30000), PODS)
    off = NftablesBackend(Family.IPV4, Options())
    on = NftablesBackend(Family.IPV4, Options(localhost_node_ports=True))
    extra = on.render(facts, node()).keys() - off.render(facts, node()).keys()
    assert extra == {ListenerItem(Protocol.TCP, 30000)}
    assert [sink.name for sink in off.sinks] == ["nftables"]


@pytest.mark.parametrize(
    ("protocol", "listens"), [(Protocol.TCP, True), (Protocol.UDP, True), (Protocol.SCTP, False)]
)
def test_tcp_and_udp_are_relayed(protocol: Protocol, listens: bool) -> None:
    """SCTP has no user-space relay."""
    facts = service(ports=[port(protocol=protocol, node_port=30000)])
    assert bool(listener_items(plan(facts, PODS))) is listens


def test_the_nodes_own_clients_use_all_endpoints_under_policy_local() -> None:
    """As on every other address of the node."""
    facts = plan(service(node_port=30000, external_local=True), PODS)
    assert listener_items(facts) == {
        ListenerItem(Protocol.TCP, 30000): Target((("10.244.1.1", 8080), ("10.244.1.2", 8080)))
    }


def test_a_port_without_endpoints_is_not_listened_on() -> None:
    """A refused connection is the truth."""
    assert listener_items(plan(service(node_port=30000))) == {}


def test_affinity_pins_all_local_clients_to_one_endpoint_while_it_is_used() -> None:
    """The pin slides with use, and falls when its time is over or its endpoint goes."""
    order = iter(range(10))

    def in_turn(endpoints: Sequence[Address]) -> Address:
        return endpoints[next(order) % len(endpoints)]

    one, two = ("10.0.0.1", 1), ("10.0.0.2", 2)
    picker = Picker(Target((one, two), affinity_seconds=10), in_turn)
    assert [picker.pick(now) for now in (0, 9, 18)] == [one, one, one]
    assert picker.pick(28) == two
    picker.retarget(Target((one,), affinity_seconds=10))
    assert picker.pick(29) == one


def test_what_is_open_is_retargeted_and_what_is_not_is_opened() -> None:
    """Also if the ledger believes in a listener whose port could not be had."""
    item, target = ListenerItem(Protocol.TCP, 30000), Target((("10.0.0.1", 1),))
    changed: Change[ListenerItem, Target] = OwnedChange(None, item, Target(()), target)
    gone: Change[ListenerItem, Target] = OwnedChange(None, item, target, None)
    assert [b.payload for b in compile_listeners([changed], {item})] == [Retarget(item, target)]
    assert [b.payload for b in compile_listeners([changed], ())] == [Open(item, target)]
    assert [b.payload for b in compile_listeners([gone], ())] == [Close(item)]


@pytest.fixture
async def sink() -> AsyncIterator[LocalhostSink]:
    with scratch_namespace():
        found = LocalhostSink(Family.IPV4)
        yield found
        await found.close()


async def apply(sink: LocalhostSink, item: ListenerItem, target: Target | None) -> None:
    change: Change[ListenerItem, Target] = OwnedChange(None, item, None, target)
    for batch in sink.compile([change]):
        await sink.apply(batch)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read())
    writer.close()


async def ask(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.kernel
async def test_tcp_is_relayed_with_half_close(sink: LocalhostSink) -> None:
    """The server answers only after the client has finished sending."""
    server = await asyncio.start_server(echo, "127.0.0.1", 8080)
    item = ListenerItem(Protocol.TCP, 30000)
    await apply(sink, item, Target((("127.0.0.1", 8080),)))
    assert await asyncio.wait_for(ask(30000, b"hello"), 5) == b"hello"
    assert await sink.read() == {item: Target((("127.0.0.1", 8080),))}
    await apply(sink, item, None)
    with pytest.raises(ConnectionRefusedError):
        await ask(30000, b"hello")
    server.close()


@pytest.mark.kernel
async def test_a_dead_endpoint_closes_the_clients_connection(sink: LocalhostSink) -> None:
    """No client is left waiting."""
    await apply(sink, ListenerItem(Protocol.TCP, 30000), Target((("127.0.0.1", 9),)))
    assert await asyncio.wait_for(ask(30000, b""), 5) == b""


class _Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        self._transport.sendto(data, addr)


async def udp_ask(client: socket.socket, text: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendto(client, text, ("127.0.0.1", 30053))
    return await asyncio.wait_for(loop.sock_recv(client, 100), 5)


@pytest.mark.kernel
async def test_udp_clients_keep_their_flow_and_lose_it_with_the_endpoint(
    sink: LocalhostSink,
) -> None:
    """Each client has a flow of its own; a retarget moves the next datagram."""
    loop = asyncio.get_running_loop()
    servers = [
        (await loop.create_datagram_endpoint(_Echo, ("127.0.0.1", number)))[0]
        for number in (5301, 5302)
    ]
    item = ListenerItem(Protocol.UDP, 30053)
    await apply(sink, item, Target((("127.0.0.1", 5301),)))
    clients = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for number, client in enumerate(clients):
        client.setblocking(False)
        assert await udp_ask(client, b"%d" % number) == b"%d" % number
    servers[0].close()
    await apply(sink, item, Target((("127.0.0.1", 5302),)))
    assert await udp_ask(clients[0], b"again") == b"again"
    servers[1].close()
    for client in clients:
        client.close()


@pytest.mark.kernel
async def test_a_port_of_another_process_is_counted_and_tried_again(sink: LocalhostSink) -> None:
    """The round goes on; the listener appears once the port is free."""
    squatter = await asyncio.start_server(echo, "127.0.0.1", 30000)
    item = ListenerItem(Protocol.TCP, 30000)
    await apply(sink, item, Target((("127.0.0.1", 8080),)))
    assert await sink.read() == {}
    assert [measure.value for measure in sink.measures()] == [0, 1]
    squatter.close()
    await squatter.wait_closed()
    assert await sink.retry() is None
    assert item in await sink.read()
    assert [measure.value for measure in sink.measures()] == [1, 0]


@pytest.mark.kernel
async def test_ipv6_clients_of_localhost_are_served_the_same_way() -> None:
    """TCP and UDP on ::1."""
    loop = asyncio.get_running_loop()
    with scratch_namespace():
        sink = LocalhostSink(Family.IPV6)
        server = await asyncio.start_server(echo, "::1", 8080)
        datagrams, _ = await loop.create_datagram_endpoint(_Echo, ("::1", 5301))
        await apply(sink, ListenerItem(Protocol.TCP, 30000), Target((("::1", 8080),)))
        await apply(sink, ListenerItem(Protocol.UDP, 30053), Target((("::1", 5301),)))
        reader, writer = await asyncio.open_connection("::1", 30000)
        writer.write(b"hello")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b"hello"
        writer.close()
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            await loop.sock_sendto(client, b"who", ("::1", 30053))
            assert await asyncio.wait_for(loop.sock_recv(client, 100), 5) == b"who"
        datagrams.close()
        server.close()
        await sink.close()
