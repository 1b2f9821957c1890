"""A carrier under attack: loops, floods, clients that hold on, and a shortage of descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.support.userspace_kit import HERE, Proxy, Servers, close, running
from tests.support.waiting import LIMIT_SECONDS, until_async, within_limit

from kubeproxy.facts.ids import Protocol
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.hops import MAX_HOPS

MEGABYTE = 1 << 20


async def ask(port: int, *, source: str = HERE) -> str:
    """Everything a connection sends until it ends; empty if it is reset."""
    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(source, 0))
    try:
        return (await within_limit(reader.read())).decode()
    except ConnectionResetError:
        return ""
    finally:
        await close(writer)


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greet, then keep the connection until the client ends it."""
    writer.write(b"hello")
    with contextlib.suppress(OSError):
        await reader.read()
    await close(writer)


class Crowd:
    """Clients that connect and stay."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def join(self, port: int, count: int, source: str = HERE) -> None:
        for _ in range(count):
            with contextlib.suppress(ConnectionResetError):
                place, here = (HERE, port), (source, 0)
                made = socket.create_connection(place, LIMIT_SECONDS, source_address=here)
                made.setblocking(False)
                self.sockets.append(made)

    def greeted(self) -> int:
        """How many have been served, at least with a greeting."""
        return sum(map(_has_data, self.sockets))

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def _has_data(handle: socket.socket) -> bool:
    try:
        return bool(handle.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


@contextlib.contextmanager
def crowd() -> Iterator[Crowd]:
    made = Crowd()
    try:
        yield made
    finally:
        made.close()


# --- loops ---


async def test_a_service_whose_endpoint_is_itself_carries_nothing_and_harms_no_other(
    proxy: Proxy, servers: Servers
) -> None:
    """One connection used to take half of all descriptors, and kept them when it was closed."""
    port = await proxy.serve([], name="loop")
    await proxy.serve([Target(HERE, port)], name="loop")
    assert await ask(port) == ""
    quick = await proxy.serve([await servers.naming("q")], name="quick")
    assert await ask(quick) == "q"

    async def is_over() -> bool:
        return (await proxy.counts()).connections == 0

    await until_async(is_over)
    assert any("leads back" in message.text for message in proxy.logged)


async def test_a_datagram_does_not_go_round_for_ever() -> None:
    """One used to keep a processor busy until the endpoint was removed."""
    # Sessions long enough to be seen on a busy machine, and short enough to wait for their end.
    async with running(idle_seconds=5.0) as proxy:
        port = await proxy.serve([], name="loop", protocol=Protocol.UDP)
        await proxy.serve([Target(HERE, port)], name="loop", protocol=Protocol.UDP)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:

            async def has_begun() -> bool:
                # Once more: the sessions of the one before may have ended without being seen.
                client.sendto(b"?", (HERE, port))
                return bool(proxy.logged) or (await proxy.counts()).sessions > 0

            async def is_over() -> bool:
                return (await proxy.counts()).sessions == 0

            await until_async(has_begun)
            await until_async(is_over)


async def test_services_may_stand_in_front_of_services(proxy: Proxy, servers: Servers) -> None:
    """A chain is no loop, up to a limit that no reasonable one reaches."""
    target = await servers.naming("end")
    for number in range(MAX_HOPS + 1):
        port = await proxy.serve([target], name=f"hop{number}")
        assert await ask(port) == ("end" if number < MAX_HOPS else "")
        target = Target(HERE, port)


# --- descriptors ---


async def test_new_services_find_room_while_a_flood_holds_every_descriptor(
    proxy: Proxy, servers: Servers
) -> None:
    """The carrier does not end, and nothing is served in place of another."""
    held = await servers.tcp(hold)
    flooded = [await proxy.serve([held], name=f"flooded{number}") for number in range(8)]
    await proxy.restart_carrier(descriptors=700)
    pid = proxy.carrier
    with crowd() as clients:
        for number, port in enumerate(flooded):
            clients.join(port, 40, source=f"127.0.1.{number + 1}")

        async def is_settled() -> bool:
            return (await proxy.counts()).connections >= 160

        await until_async(is_settled)
        ports = {}
        for number in range(300):
            name = f"new{number}"
            ports[name] = await proxy.serve([await servers.naming(name)], name=name)
        for name in ("new0", "new150", "new299"):
            assert await ask(ports[name]) == name
        assert proxy.carrier == pid


async def test_a_socket_that_was_lost_on_its_way_is_not_replaced_by_the_next(
    proxy: Proxy, servers: Servers
) -> None:
    """Without a free descriptor the kernel drops it: one service is not served, and no more."""
    await proxy.serve([await servers.naming("first")], name="first")
    before = resource.prlimit(proxy.carrier, resource.RLIMIT_NOFILE)
    # The limit is about numbers: standard input, output and error have 0 to 2.
    resource.prlimit(proxy.carrier, resource.RLIMIT_NOFILE, (3, before[1]))
    await proxy.serve([await servers.naming("lost")], name="lost")
    resource.prlimit(proxy.carrier, resource.RLIMIT_NOFILE, before)
    port = await proxy.serve([await servers.naming("next")], name="next")
    assert await ask(port) == "next"
    assert any("lost" in message.service for message in proxy.logged)
    await proxy.serve([], name="lost")
    await proxy.stop("lost")
    assert await ask(port) == "next"


async def test_one_client_does_not_take_a_service_from_the_others(
    proxy: Proxy, servers: Servers
) -> None:
    """It gets half of what the service may hold; beyond that it is reset rather than queued."""
    port = await proxy.serve([await servers.tcp(hold)])
    await proxy.restart_carrier(descriptors=656)
    with crowd() as greedy, crowd() as modest:
        greedy.join(port, 150, source="127.0.0.2")
        modest.join(port, 10, source="127.0.0.3")

        async def is_served() -> bool:
            await proxy.counts()  # after which is logged what has happened so far
            is_logged = any("127.0.0.2" in message.text for message in proxy.logged)
            return modest.greeted() == 10 and greedy.greeted() >= 40 and is_logged

        await until_async(is_served)
        assert greedy.greeted() <= 60


# --- floods of datagrams ---


async def test_datagrams_from_many_ports_take_no_more_than_a_share(
    proxy: Proxy, servers: Servers
) -> None:
    """The oldest session ends for a new one, and other services go on."""
    port = await proxy.serve(
        [await servers.udp(lambda data: None)], name="dns", protocol=Protocol.UDP
    )
    web = await proxy.serve([await servers.naming("w")])
    await proxy.restart_carrier(descriptors=456)
    pid = proxy.carrier
    with contextlib.ExitStack() as stack:
        sources = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(600)]
        for source in sources:
            stack.enter_context(source).sendto(b"?", (HERE, port))
        assert (await proxy.counts()).sessions <= 101
        assert await ask(web) == "w"
    assert proxy.carrier == pid


# --- clients that never read ---


async def test_a_client_that_never_reads_holds_little_of_the_kernels_memory(
    proxy: Proxy, servers: Servers
) -> None:
    """Two hundred of them used to take what the kernel has for all connections of the host."""

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(MEGABYTE))
                await writer.drain()
        writer.close()

    port = await proxy.serve([await servers.tcp(flood)])
    with crowd() as sleepers:
        sleepers.join(port, 4)
        queues: list[int] = []

        async def is_at_rest() -> bool:
            nonlocal queues
            before, queues = queues, unsent(port)
            await asyncio.sleep(0.2)
            return len(queues) == 4 and min(queues) > 65536 and queues == before

        await until_async(is_at_rest)
        assert max(queues) < 2 * MEGABYTE


def unsent(port: int) -> list[int]:
    """The send queues of connections that were accepted at a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        int(row[4].partition(":")[0], 16)
        for row in rows
        if row[1].endswith(f":{port:04X}") and row[3] == "01"
    ]
