"""Node ports on the loopback address: what is wanted, and listeners that really relay."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from tests.support.builders import endpoint, node, plan, port, service
from tests.support.waiting import limit, until, within_limit

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.modes.base import Change, OwnedChange
from kubeproxy.modes.nftables.compile.listeners import Close, Open, Retarget, compile_listeners
from kubeproxy.modes.nftables.items import Address, ListenerItem, Target
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.render import listener_items
from kubeproxy.modes.nftables.sinks import relay
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
    assert await within_limit(ask(30000, b"hello")) == b"hello"
    assert await sink.read() == {item: Target((("127.0.0.1", 8080),))}
    await apply(sink, item, None)
    with pytest.raises(ConnectionRefusedError):
        await ask(30000, b"hello")
    server.close()


@pytest.mark.kernel
async def test_a_dead_endpoint_closes_the_clients_connection(sink: LocalhostSink) -> None:
    """No client is left waiting."""
    await apply(sink, ListenerItem(Protocol.TCP, 30000), Target((("127.0.0.1", 9),)))
    assert await within_limit(ask(30000, b"")) == b""


class Silent:
    """An endpoint that accepts, reads if asked to, and never ends a connection by itself."""

    def __init__(self, *, reads: bool = True) -> None:
        self._reads = reads
        self.accepted: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._reads:
            cast(asyncio.ReadTransport, writer.transport).pause_reading()
        self.writers.append(writer)
        await self.accepted.put(reader)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
    client.close()


def connections(port: int) -> int:
    """How many connections to this port the kernel has."""
    listed = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[2].endswith(f":{port:04X}") for line in listed if " 06 " not in line)


@pytest.mark.kernel
@pytest.mark.parametrize("before", ["nothing", "half-close", "unread data"])
async def test_a_clients_reset_reaches_the_endpoint(
    sink: LocalhostSink, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Also after the client has finished sending, and while the endpoint does not read."""
    monkeypatch.setattr(relay, "CHECK_SECONDS", 0.1)
    endpoint = Silent(reads=before != "unread data")
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 8080)
    await apply(sink, ListenerItem(Protocol.TCP, 30000), Target((("127.0.0.1", 8080),)))
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", 30000))
    await within_limit(endpoint.accepted.get())
    assert connections(8080) == 1
    if before == "half-close":
        client.shutdown(socket.SHUT_WR)
    if before == "unread data":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await loop.sock_sendall(client, b"x" * (1 << 26))
    reset(client)
    await until(lambda: not connections(8080))
    server.close()
    for writer in endpoint.writers:
        writer.close()


@pytest.mark.kernel
async def test_an_endpoints_reset_is_no_end_of_data(sink: LocalhostSink) -> None:
    """A broken answer must not look like a whole one."""

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        handle: socket.socket = writer.get_extra_info("socket")
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
        writer.transport.abort()

    server = await asyncio.start_server(break_off, "127.0.0.1", 8080)
    await apply(sink, ListenerItem(Protocol.TCP, 30000), Target((("127.0.0.1", 8080),)))
    reader, writer = await asyncio.open_connection("127.0.0.1", 30000)
    writer.write(b"x")
    with pytest.raises(ConnectionResetError):
        await within_limit(reader.read())
    writer.close()
    server.close()


@pytest.mark.kernel
async def test_clients_of_one_port_are_bounded(
    sink: LocalhostSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more is reset at once, and when one has left there is room again."""
    monkeypatch.setattr(relay, "MOST_CLIENTS", 2)
    endpoint = Silent()
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 8080)
    await apply(sink, ListenerItem(Protocol.TCP, 30000), Target((("127.0.0.1", 8080),)))
    held = [await asyncio.open_connection("127.0.0.1", 30000) for _ in range(2)]
    async with limit():
        for _ in held:
            await endpoint.accepted.get()
    reader, writer = await asyncio.open_connection("127.0.0.1", 30000)
    with pytest.raises(ConnectionResetError):
        await within_limit(reader.read())
    for _, open_writer in (*held, (reader, writer)):
        open_writer.close()
    server.close()
    for accepted in endpoint.writers:
        accepted.close()


class _Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        self._transport.sendto(data, addr)


async def udp_ask(client: socket.socket, text: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendto(client, text, ("127.0.0.1", 30053))
    return await within_limit(loop.sock_recv(client, 100))


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
        assert await within_limit(reader.read()) == b"hello"
        writer.close()
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            await loop.sock_sendto(client, b"who", ("::1", 30053))
            assert await within_limit(loop.sock_recv(client, 100)) == b"who"
        datagrams.close()
        server.close()
        await sink.close()
