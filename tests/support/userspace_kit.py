"""For tests of the userspace mode: a carrier with its sink, and servers, all at loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.facts.ids import Family, Protocol, ServicePortId
from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.base import AnyChange, OwnedChange
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.messages import Balance, LogMessage, SyncReply
from kubeproxy.modes.userspace.carrier.reactor import Reactor
from kubeproxy.modes.userspace.items import Listener
from kubeproxy.modes.userspace.sinks.binding import Binder
from kubeproxy.modes.userspace.sinks.ports import PortAllocator, PortRange
from kubeproxy.modes.userspace.sinks.sockets import SocketSink
from kubeproxy.plan.types import PoolName

HERE = "127.0.0.1"
IDLE_SECONDS = 600.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Proxy:
    """One sink with its carrier, and listeners by name."""

    def __init__(
        self,
        ports: PortRange | None = None,
        address: str = HERE,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self.logged: list[LogMessage] = []
        binder = Binder(Family.IPV4, address, PortAllocator(ports, lambda _size: 0))
        self.sink = SocketSink(binder, idle_seconds, self.logged.append)
        self._values: dict[Listener, Balance] = {}

    async def serve(
        self,
        targets: Sequence[Target],
        *,
        name: str = "web",
        protocol: Protocol = Protocol.TCP,
        affinity_seconds: int = 0,
        keep: Sequence[Target] = (),
        algorithm: Algorithm | None = None,
        weights: Sequence[int] = (),
        drain_seconds: float | None = None,
    ) -> int:
        """Open or change a listener. Return its port."""
        item = listener(name, protocol)
        balance = Balance(
            tuple(targets),
            tuple(keep),
            affinity_seconds,
            algorithm,
            weights=tuple(weights),
            drain_seconds=drain_seconds,
        )
        await self._set(item, balance)
        return self.sink.learned.ports[item]

    async def stop(self, name: str = "web", protocol: Protocol = Protocol.TCP) -> None:
        await self._set(listener(name, protocol), None)

    async def _set(self, item: Listener, value: Balance | None) -> None:
        await self.apply(OwnedChange(item.owner, item, self._values.get(item), value))
        self._values.pop(item, None)
        if value is not None:
            self._values[item] = value

    async def apply(self, *changes: AnyChange) -> None:
        """Compile these changes and apply the batches, as an engine would."""
        for batch in self.sink.compile(changes):
            await self.sink.apply(batch)

    async def restart_carrier(self, descriptors: int) -> None:
        """Replace the carrier by one that may open so many files; it finds out at its start."""
        await self.sink.ensure_carrier()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
        try:
            os.kill(self.carrier, signal.SIGKILL)
            await self.sink.supervisor.wait_exited()
            await self.sink.ensure_carrier()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    @property
    def carrier(self) -> int:
        """The process that carries."""
        pid = self.sink.supervisor.pid
        assert pid is not None
        return pid

    async def counts(self) -> SyncReply:
        """What the carrier holds now."""
        return await self.sink.supervisor.execute([])


def listener(name: str = "web", protocol: Protocol = Protocol.TCP) -> Listener:
    return Listener(ServicePortId("default", name, "", protocol), PoolName.CLUSTER)


@contextlib.asynccontextmanager
async def running(
    ports: PortRange | None = None, address: str = HERE, idle_seconds: float = IDLE_SECONDS
) -> AsyncIterator[Proxy]:
    """A proxy that is closed whatever happens."""
    made = Proxy(ports, address, idle_seconds)
    try:
        yield made
    finally:
        await made.sink.close()


def until_readable(reactor: Reactor, *handles: socket.socket) -> Sequence[socket.socket]:
    """Let the loop of a carrier in this process work until something is at one of the sockets.

    Also loopback takes its time on a busy machine, and a loop with nothing to do would wait.
    """
    while True:
        places = [reactor._epoll.fileno(), *(each.fileno() for each in handles)]
        ready = select.select(places, [], [], LIMIT_SECONDS)[0]
        assert ready, "nothing arrives"
        if found := [each for each in handles if each.fileno() in ready]:
            return found
        reactor.run_once()


class Servers:
    """TCP and UDP servers of one test."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()

    async def tcp(self, serve: Serve) -> Target:
        """A server that calls `serve` for each connection."""
        server = await asyncio.start_server(serve, HERE, 0)
        self._stack.callback(server.close)
        return Target(HERE, int(server.sockets[0].getsockname()[1]))

    async def naming(self, name: str) -> Target:
        """A server that sends its name and closes the connection."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(name.encode())
            await close(writer)

        return await self.tcp(serve)

    async def udp(self, answer: Callable[[bytes], bytes | None]) -> Target:
        """A server that answers datagrams."""
        handle = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        handle.setblocking(False)
        handle.bind((HERE, 0))

        def on_datagram() -> None:
            data, client = handle.recvfrom(65535)
            reply = answer(data)
            if reply is not None:
                handle.sendto(reply, client)

        loop = asyncio.get_running_loop()
        loop.add_reader(handle, on_datagram)
        self._stack.callback(handle.close)
        self._stack.callback(loop.remove_reader, handle)
        return Target(HERE, int(handle.getsockname()[1]))

    async def close(self) -> None:
        await self._stack.aclose()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection; that the peer has closed it before is ignored."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
