"""TCP through a real carrier process: spreading, retrying, half-closing, and staying bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.userspace_kit import HERE, Proxy, Servers, close, until_readable
from tests.support.waiting import LIMIT_SECONDS, until_async, within_limit

from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.health import FIRST_SECONDS
from kubeproxy.modes.userspace.carrier.messages import Balance
from kubeproxy.modes.userspace.carrier.reactor import Reactor
from kubeproxy.modes.userspace.carrier.shared import DIAL_SECONDS, Shared
from kubeproxy.modes.userspace.carrier.tcp import TcpListener

MEGABYTE = 1 << 20


async def ask(port: int) -> str:
    """Everything a connection sends until it ends."""
    reader, writer = await asyncio.open_connection(HERE, port)
    received = await reader.read()
    await close(writer)
    return received.decode()


def closed_port() -> Target:
    """An address where nothing listens: connections are refused at once."""
    with socket.socket() as handle:
        handle.bind((HERE, 0))
        return Target(HERE, int(handle.getsockname()[1]))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(MEGABYTE):
        writer.write(data)
        await writer.drain()
    await close(writer)


async def test_connections_spread_over_endpoints_in_turn(proxy: Proxy, servers: Servers) -> None:
    port = await proxy.serve([await servers.naming("a"), await servers.naming("b")])
    assert Counter([await ask(port) for _ in range(6)]) == {"a": 3, "b": 3}


async def test_a_refusing_endpoint_is_passed_over(proxy: Proxy, servers: Servers) -> None:
    """The only mode that can: the client never notices."""
    port = await proxy.serve([closed_port(), await servers.naming("b"), closed_port()])
    assert {await ask(port) for _ in range(6)} == {"b"}
    assert any("endpoint does not answer" in message.text for message in proxy.logged)


async def test_an_endpoint_that_refused_is_left_alone_for_a_while(
    proxy: Proxy, servers: Servers
) -> None:
    """So that only the first connection in a while pays for it; it comes back by itself."""
    good = await servers.naming("b")
    asked = 0

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await close(writer)

    async def is_left_alone() -> bool:
        nonlocal asked
        dead, asked, began = closed_port(), 0, time.monotonic()
        port = await proxy.serve([dead, good])
        assert {await ask(port) for _ in range(2)} == {"b"}
        async with await asyncio.start_server(serve, *dead):
            answers = {await ask(port) for _ in range(10)}
        # Where that took longer than it is left alone, it says nothing.
        assert time.monotonic() - began > FIRST_SECONDS or (asked, answers) == (0, {"b"})
        return not asked

    await until_async(is_left_alone)


class Listening:
    """A listener of this very process, whose event loop is driven by hand."""

    def __init__(self, *targets: Target, clock: Callable[[], float] = time.monotonic) -> None:
        self.reactor = Reactor(clock)
        self.shared = Shared(self.reactor, limit=1000, write=lambda text, service: None)
        handle = socket.create_server((HERE, 0))
        self.port = int(handle.getsockname()[1])
        self._listener = TcpListener(handle, "default/web", self.shared)
        self._listener.update(Balance(targets))

    @property
    def is_dialling(self) -> bool:
        return any(each.next_deadline() is not None for each in self.shared.dial_timeouts)

    def close(self) -> None:
        self._listener.close()
        self._listener.evict(1000)
        self.reactor.close()


@contextlib.contextmanager
def connected() -> Iterator[tuple[Listening, socket.socket, socket.socket]]:
    """A carrier that has begun to dial, its client, and what the endpoint has accepted."""
    with (
        socket.create_server((HERE, 0)) as endpoint,
        contextlib.closing(Listening(Target(HERE, endpoint.getsockname()[1]))) as carrier,
        socket.create_connection((HERE, carrier.port)) as client,
    ):
        carrier.reactor.run_once()
        with endpoint.accept()[0] as accepted:
            yield carrier, client, accepted


def test_an_answer_that_waits_to_be_handled_is_no_time_out() -> None:
    """A busy carrier handles 256 events at a time; the endpoint is not to blame for the others."""
    with connected() as (carrier, client, accepted):
        carrier.shared.dial_timeouts[0].expire(carrier.reactor.now + 60)
        client.sendall(b"hello")
        carrier.reactor.run_once()
        accepted.settimeout(LIMIT_SECONDS)
        assert accepted.recv(10) == b"hello"
        assert len(carrier.shared.hops) == 1
    assert len(carrier.shared.hops) == 0


def test_the_last_bytes_and_the_end_of_the_stream_are_one_segment() -> None:
    """A segment less is a good part of what a short connection costs."""
    with connected() as (carrier, client, accepted):
        accepted.sendall(b"hello")
        accepted.close()
        before = segments_received(client)
        until_readable(carrier.reactor, client)
        assert client.recv(10, socket.MSG_WAITALL) == b"hello"
        assert segments_received(client) - before == 1


def test_bytes_before_a_reset_reach_a_client_that_is_still_sending() -> None:
    """A server that answers early, and ends an upload by closing, is still understood."""
    with connected() as (carrier, client, accepted):
        client.setblocking(False)
        until_held_up(carrier, client)
        accepted.sendall(b"too much")
        accepted.close()
        until_readable(carrier.reactor, client)
        assert client.recv(10) == b"too much"


def until_held_up(carrier: Listening, client: socket.socket) -> None:
    """Send until neither the endpoint nor the carrier takes more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(bytes(MEGABYTE))
            carrier.reactor.call_soon(lambda: None)  # so that it does not wait
            carrier.reactor.run_once()


def segments_received(handle: socket.socket) -> int:
    """`tcpi_segs_in` of the kernel's `struct tcp_info`."""
    info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 144)
    return int.from_bytes(info[140:144], sys.byteorder)


@contextlib.contextmanager
def full_queue() -> Iterator[Target]:
    """An endpoint whose queue is full, so that connecting to it goes nowhere."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind((HERE, 0))
        full.listen(0)
        stuck = Target(HERE, full.getsockname()[1])
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(stuck)
        yield stuck


async def test_an_endpoint_that_never_answers_costs_a_quarter_second(
    proxy: Proxy, servers: Servers
) -> None:
    with full_queue() as stuck:
        port = await proxy.serve([stuck, await servers.naming("b")])
        # Two at a time, since round robin begins at either: one of them meets the silent one.
        started = time.monotonic()
        answers = await asyncio.gather(*(ask(port) for _ in range(2)))
        elapsed = time.monotonic() - started
    assert set(answers) == {"b"}
    assert elapsed > 0.2
    assert any("Connection timed out" in message.text for message in proxy.logged)


def test_only_the_first_connection_waits_for_a_silent_endpoint() -> None:
    """What it found is remembered for the others: none of them tries, or waits, again."""
    now = 1000.0
    with contextlib.ExitStack() as stack:
        stuck = stack.enter_context(full_queue())
        good = stack.enter_context(socket.create_server((HERE, 0), backlog=100))
        targets = (stuck, Target(HERE, good.getsockname()[1]))
        carrier = stack.enter_context(contextlib.closing(Listening(*targets, clock=lambda: now)))
        waits = 0
        for number in range(1, 31):
            stack.enter_context(socket.create_connection((HERE, carrier.port)))
            while len(carrier.shared.hops) < number:
                carrier.reactor.run_once()
            while carrier.is_dialling:
                carrier.reactor.run_once()  # an answer, or a quarter of a second without one
                if carrier.is_dialling:
                    waits += 1
                    now += DIAL_SECONDS[0]
                    carrier.reactor.run_once()
    assert waits == 1, "of thirty connections, fifteen would meet it by turns"


async def test_when_all_attempts_fail_the_connection_is_closed(proxy: Proxy) -> None:
    port = await proxy.serve([closed_port()])
    assert await ask(port) == ""
    assert await ask(await proxy.serve([], name="empty")) == ""


async def test_dialling_one_service_does_not_block_others(proxy: Proxy, servers: Servers) -> None:
    """Nor other clients of the same one."""
    quick = await proxy.serve([await servers.naming("q")], name="quick")
    with socket.socket() as full:
        full.bind((HERE, 0))
        full.listen(0)
        stuck = Target(HERE, full.getsockname()[1])
        filler = socket.create_connection(stuck)
        tried = 0

        async def are_hanging() -> bool:
            """All attempts of the others take 3.75 s, in which the quick one is served.

            A machine that is busy for as long has to be asked again.
            """
            nonlocal tried
            tried += 1
            slow = await proxy.serve([stuck], name=f"slow{tried}")
            hanging = [socket.create_connection((HERE, slow)) for _ in range(5)]
            try:
                assert await ask(quick) == "q"
                return (await proxy.counts()).connections >= 5
            finally:
                for client in hanging:
                    client.close()

        await until_async(are_hanging)
        filler.close()


async def test_affinity_holds_and_is_overwritten_by_a_failure(
    proxy: Proxy, servers: Servers
) -> None:
    a, b = await servers.naming("a"), await servers.naming("b")
    port = await proxy.serve([a, b], affinity_seconds=60)
    first = await ask(port)
    assert {await ask(port) for _ in range(4)} == {first}
    other = b if first == "a" else a
    await proxy.serve([closed_port(), other], affinity_seconds=60)
    assert {await ask(port) for _ in range(4)} == {"b" if first == "a" else "a"}


async def test_each_direction_ends_by_itself(proxy: Proxy, servers: Servers) -> None:
    """A client may finish sending and still receive: half-close is passed on."""

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = len(await reader.read())
        writer.write(f"{received} bytes".encode())
        await close(writer)

    port = await proxy.serve([await servers.tcp(count)])
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(bytes(3 * MEGABYTE))
    writer.write_eof()
    assert await reader.read() == f"{3 * MEGABYTE} bytes".encode()
    await close(writer)


async def test_bulk_arrives_whole_and_in_order_both_ways(proxy: Proxy, servers: Servers) -> None:
    """Far more than is copied before pipes take over."""
    port = await proxy.serve([await servers.tcp(echo)])
    sent = b"".join(number.to_bytes(8, "big") for number in range(MEGABYTE))

    async def roundtrip() -> bytes:
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(sent)
        writer.write_eof()
        received = await reader.read()
        await close(writer)
        return received

    assert all(back == sent for back in await asyncio.gather(*(roundtrip() for _ in range(4))))


async def test_a_reset_reaches_the_other_side(proxy: Proxy, servers: Servers) -> None:
    """Nothing lingers when one end breaks."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        try:
            await reader.read()
        except OSError:
            pass
        finally:
            ended.set()
            await close(writer)

    port = await proxy.serve([await servers.tcp(wait)])
    with socket.create_connection((HERE, port)) as handle:
        handle.sendall(b"x")
        await within_limit(begun.wait())
        # Lingering for no time makes closing a reset.
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await within_limit(ended.wait())


async def test_closing_a_service_leaves_its_connections(proxy: Proxy, servers: Servers) -> None:
    port = await proxy.serve([await servers.tcp(echo)])
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(b"before")
    assert await reader.readexactly(6) == b"before"
    await proxy.stop()
    writer.write(b"after")
    assert await reader.readexactly(5) == b"after"
    await close(writer)
    try:
        await ask(port)
    except ConnectionRefusedError:
        return
    raise AssertionError("the port still accepts")


async def test_a_slow_reader_holds_up_the_sender_and_no_other(
    proxy: Proxy, servers: Servers
) -> None:
    """What waits for it is bounded by buffers, not by what is sent."""
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        try:
            while True:
                writer.write(bytes(MEGABYTE))
                await writer.drain()
                sent += MEGABYTE
        except OSError:
            writer.close()

    port = await proxy.serve([await servers.tcp(flood)])
    quick = await proxy.serve([await servers.naming("q")], name="quick")
    before = carrier_memory(proxy)
    sleepers = [socket.create_connection((HERE, port)) for _ in range(8)]
    last = -1

    async def is_held_up() -> bool:
        """Has nothing been sent for a second?"""
        nonlocal last
        before, last = last, sent
        await asyncio.sleep(1)
        return before == last == sent > 0

    await until_async(is_held_up)
    assert sent < 8 * 16 * MEGABYTE
    assert await ask(quick) == "q"
    assert carrier_memory(proxy) - before < 16 * MEGABYTE
    for sleeper in sleepers:
        sleeper.close()


def carrier_memory(proxy: Proxy) -> int:
    fields = Path(f"/proc/{proxy.sink.supervisor.pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


async def test_idle_connections_cost_little(proxy: Proxy, servers: Servers) -> None:
    """Some kilobytes each, and no time at all."""
    port = await proxy.serve([await servers.tcp(echo)])
    before = carrier_memory(proxy)
    idle = [await asyncio.open_connection(HERE, port) for _ in range(400)]
    assert carrier_memory(proxy) - before < 400 * 16384

    async def is_idle() -> bool:
        """Of a second, however long it is, an idle process uses next to nothing."""
        spent, started = carrier_seconds(proxy), time.monotonic()
        await asyncio.sleep(1)
        return carrier_seconds(proxy) - spent < 0.05 * (time.monotonic() - started)

    await until_async(is_idle)  # what is left of the connecting is done first
    for _, writer in idle:
        writer.close()


def carrier_seconds(proxy: Proxy) -> float:
    text = Path(f"/proc/{proxy.sink.supervisor.pid}/stat").read_text().rpartition(")")[2]
    return sum(map(int, text.split()[11:13])) / os.sysconf("SC_CLK_TCK")


async def test_out_of_descriptors_one_service_waits_and_the_others_go_on(
    proxy: Proxy, servers: Servers
) -> None:
    """A greedy service gets half of what there is; its other clients wait in the queue."""
    greedy = await proxy.serve([await servers.tcp(echo)], name="greedy")
    modest = await proxy.serve([await servers.naming("m")], name="modest")
    await proxy.restart_carrier(descriptors=456)
    clients = [
        socket.create_connection((HERE, greedy), source_address=(f"127.0.1.{number}", 0))
        for number in range(1, 101)
    ]

    async def is_waiting() -> bool:
        await proxy.counts()
        return any("wait for file descriptors" in message.text for message in proxy.logged)

    await until_async(is_waiting)
    assert await ask(modest) == "m"
    assert {message.service for message in proxy.logged} == {"default/greedy"}
    assert 45 <= (await proxy.counts()).connections <= 55
    # The last one is served as soon as others leave.
    last = clients.pop()
    for client in clients:
        client.close()
    last.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(last, b"hello")
    assert await within_limit(loop.sock_recv(last, 10)) == b"hello"
    last.close()
