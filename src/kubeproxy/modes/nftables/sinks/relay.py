"""Relays node port traffic from the loopback address to endpoints, in user space.

The kernel cannot route loopback traffic to another host without `route_localnet`, which exposes
the host's loopback services to its neighbours. So for the node's own loopback address we listen
and relay instead. A relay knows where to send (`Target`) and nothing of services. TCP connections
in progress are left alone when endpoints change, and end with their listener. A connection that is
reset on one side is reset on the other: neither the client nor the endpoint takes a broken one for
a finished one, or waits for it.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kubeproxy.modes.nftables.items import Address, Target

Stream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Chooser = Callable[[Sequence[Address]], Address]

DIAL_SECONDS = 5.0
UDP_IDLE_SECONDS = 60.0
CHECK_SECONDS = 5.0
"""How often a connection is checked for a reset that asyncio does not report (`_is_reset`)."""
MOST_CLIENTS = 1000
"""The most connections or flows of one node port: descriptors are needed for other things, too."""
_CHUNK = 1 << 16
_TCP_CLOSE = 7  # tcp_states.h
_LINGER_NOT = struct.pack("=ii", 1, 0)
"""Lingering for no time makes closing a reset."""


class Picker:
    """Chooses an endpoint. With affinity all local clients share one, kept while it is used."""

    def __init__(self, target: Target, choose: Chooser = random.choice) -> None:
        self._target = target
        self._choose = choose
        self._turn = -1
        self._pin: Address | None = None
        self._pin_until = 0.0

    @property
    def endpoints(self) -> tuple[Address, ...]:
        return self._target.endpoints

    def retarget(self, target: Target) -> None:
        if target.affinity_seconds != self._target.affinity_seconds:
            self._pin = None
        self._target = target

    def pick(self, now: float) -> Address:
        endpoints = self._target.endpoints
        if not self._target.affinity_seconds:
            return self._next(endpoints)
        if self._pin not in endpoints or now >= self._pin_until:
            self._pin = self._next(endpoints)
        self._pin_until = now + self._target.affinity_seconds
        return self._pin or endpoints[0]

    def _next(self, endpoints: tuple[Address, ...]) -> Address:
        if not self._target.is_in_turn:
            return self._choose(endpoints)
        self._turn = (self._turn + 1) % len(endpoints)
        return endpoints[self._turn]


class TcpRelay:
    """Accepts on one address and joins each connection to an endpoint."""

    def __init__(self, picker: Picker) -> None:
        self.picker = picker
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._accept, host, port)

    async def close(self) -> None:
        """Stop listening and end the connections in progress."""
        if self._server is not None:
            self._server.close()
        for session in tuple(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def retarget(self, target: Target) -> None:
        """Use these endpoints for new connections."""
        self.picker.retarget(target)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._sessions.add(task)
            task.add_done_callback(self._sessions.discard)
        try:
            if len(self._sessions) > MOST_CLIENTS:
                _reset(writer)
            else:
                await self._join((reader, writer))
        except asyncio.CancelledError:
            # The relay is closing, and this coroutine ends with it; asyncio's server would
            # otherwise report its own callback as failed.
            return
        finally:
            writer.close()

    async def _join(self, near: Stream) -> None:
        endpoint = self.picker.pick(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                far = await asyncio.open_connection(*endpoint)
        except (OSError, TimeoutError):
            return
        try:
            await _carry(near, far)
        except OSError:
            _reset(near[1])
            _reset(far[1])
        finally:
            far[1].close()


async def _carry(near: Stream, far: Stream) -> None:
    """Copy both directions to their ends. Raise OSError as soon as either side fails."""
    pumps = [
        asyncio.create_task(_pump(near[0], far[1])),
        asyncio.create_task(_pump(far[0], near[1])),
    ]
    pending = set(pumps)
    try:
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for pump in done:
                pump.result()
            if pending and not done and (_is_reset(near[1]) or _is_reset(far[1])):
                raise ConnectionResetError
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction to its end, and then close that direction."""
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _is_reset(writer: asyncio.StreamWriter) -> bool:
    """Has the kernel given the connection up?

    asyncio does not watch a socket that has nothing more to read, or whose data is not wanted yet
    because the other side is slow.
    """
    handle: socket.socket = writer.get_extra_info("socket")
    try:
        return handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
    except OSError:
        return True


def _reset(writer: asyncio.StreamWriter) -> None:
    handle: socket.socket = writer.get_extra_info("socket")
    if handle.fileno() >= 0:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    writer.transport.abort()


class UdpRelay(asyncio.DatagramProtocol):
    """Receives on one address. Each client has a socket of its own towards its endpoint."""

    def __init__(self, picker: Picker) -> None:
        self.picker = picker
        self._transport: asyncio.DatagramTransport | None = None
        self._flows: dict[Address, _Flow] = {}

    async def open(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, (host, port))

    async def close(self) -> None:
        """Stop listening and end all flows."""
        if self._transport is not None:
            self._transport.close()
        for flow in tuple(self._flows.values()):
            flow.end()

    def retarget(self, target: Target) -> None:
        """Use these endpoints for new flows. End flows to others: UDP does not notice otherwise."""
        self.picker.retarget(target)
        for flow in tuple(self._flows.values()):
            if flow.endpoint not in target.endpoints:
                flow.end()

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        client = (str(addr[0]), addr[1])
        flow = self._flows.get(client)
        if flow is None:
            if len(self._flows) >= MOST_CLIENTS:
                next(iter(self._flows.values())).end()
            endpoint = self.picker.pick(asyncio.get_running_loop().time())
            flow = self._flows[client] = _Flow(self, client, endpoint)
        flow.send(data)

    def reply(self, data: bytes, client: Address) -> None:
        if self._transport is not None:
            self._transport.sendto(data, client)

    def forget(self, client: Address) -> None:
        self._flows.pop(client, None)


class _Flow(asyncio.DatagramProtocol):
    """One client's datagrams, until it has been silent for a while."""

    def __init__(self, relay: UdpRelay, client: Address, endpoint: Address) -> None:
        self.endpoint = endpoint
        self._relay = relay
        self._client = client
        self._waiting: list[bytes] = []
        self._transport: asyncio.DatagramTransport | None = None
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(UDP_IDLE_SECONDS, self.end)
        self._opening = loop.create_task(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: self, remote_addr=self.endpoint
            )
        except OSError:
            self.end()
            return
        for data in self._waiting:
            self._transport.sendto(data)
        self._waiting.clear()

    def send(self, data: bytes) -> None:
        self._renew()
        if self._transport is None:
            self._waiting.append(data)
        else:
            self._transport.sendto(data)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        self._renew()
        self._relay.reply(data, self._client)

    def _renew(self) -> None:
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(UDP_IDLE_SECONDS, self.end)

    def end(self) -> None:
        self._deadline.cancel()
        self._opening.cancel()
        self._relay.forget(self._client)
        if self._transport is not None:
            self._transport.close()
