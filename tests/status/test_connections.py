"""What outsiders may use up: connections, memory, time, turns of the event loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from unittest.mock import patch

import pytest
from tests.support.loopback import ask, exchange
from tests.support.waiting import limit, until

from kubeproxy.status import connections as module
from kubeproxy.status.connection import (
    HEAD_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    REQUESTS_PER_TURN,
    WRITE_SECONDS,
    Handler,
)
from kubeproxy.status.connections import (
    MAX_HELD_BYTES,
    Connections,
    Listener,
    connection_limit,
)
from kubeproxy.status.http import Request, Response, text
from kubeproxy.status.listen import listen

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def ok(_: Request) -> Response:
    return text("ok")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def accepting(connections: Connections, handler: Handler = ok) -> AsyncIterator[int]:
    """Serve on a port of loopback."""
    sock = listen("tcp", "127.0.0.1", 0)
    listener = Listener(sock, handler, connections)
    listener.start()
    try:
        yield sock.getsockname()[1]
    finally:
        listener.close()


def connect(port: int, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setblocking(False)
    sock.send(data)
    return sock


async def is_closed(sock: socket.socket) -> bool:
    """Does the server close this connection? It may have sent something before."""
    loop = asyncio.get_running_loop()
    async with limit():
        try:
            while await loop.sock_recv(sock, 1 << 16):
                pass
        except ConnectionResetError:
            return True
    return True


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [(256, 21), (1024, 85), (65_536, 1000), (resource.RLIM_INFINITY, 1000), (16, 8)],
)
def test_all_servers_together_use_a_quarter_of_the_descriptors(
    allowed: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert connection_limit() == expected


async def test_silent_connections_never_keep_a_client_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many there are, the next client is served, and one line in the log says so."""
    connections = Connections(10)
    async with accepting(connections) as port:
        silent = [connect(port) for _ in range(200)]
        for _ in range(5):
            assert (await ask(port, "/")).status == 200
        assert len(connections) <= 10
        assert await is_closed(silent[0])
    for sock in silent:
        sock.close()
    assert ["Too many HTTP connections" in r.getMessage() for r in caplog.records] == [True]


async def test_those_that_wait_longest_are_closed_first() -> None:
    """A client that makes requests now and then keeps its connection."""
    connections = Connections(5)
    async with accepting(connections) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        silent = []
        for _ in range(10):
            silent += [connect(port) for _ in range(3)]
            writer.write(GET)
            async with limit():
                assert await reader.readuntil(b"ok")
        writer.close()
    for sock in silent:
        sock.close()


async def test_a_running_request_is_not_closed_to_make_room() -> None:
    """If all are busy, the next client is refused instead."""
    connections, go_on, running = Connections(2), asyncio.Event(), 0

    async def wait(_: Request) -> Response:
        nonlocal running
        running += 1
        await go_on.wait()
        return text("done")

    async with accepting(connections, wait) as port, asyncio.TaskGroup() as group:
        busy = [group.create_task(exchange(port, GET + LAST)) for _ in range(2)]
        await until(lambda: running == 2)
        for _ in range(3):
            sock = connect(port, GET)
            assert await is_closed(sock)
            sock.close()
        go_on.set()
    assert all(task.result().count(b"HTTP/1.1 200 OK") == 2 for task in busy)


async def test_a_client_that_pipelines_and_does_not_read_waits() -> None:
    """Of 40 MB of requests next to nothing is held, and other clients are served."""
    block, total = GET * 1000, 40_000_000
    async with accepting(Connections(5)) as port:
        with closing(connect(port)) as sock:
            tracemalloc.start()
            sent = idle = 0
            while sent < total and idle < 300:
                try:
                    sent += sock.send(block)
                    idle = 0
                except BlockingIOError:
                    idle += 1
                await asyncio.sleep(0.001)
            assert (await ask(port, "/")).status == 200
            current, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert sent < total
    assert peak < 1_000_000, current


async def test_an_unread_response_is_sent_as_the_client_reads() -> None:
    """A large one, over a small window, while the next request already waits."""
    body = bytes(range(256)) * 20_000
    async with accepting(Connections(5), lambda _: Response(body)) as port:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write(GET + GET)
        async with limit():
            for _ in range(2):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
                assert await reader.readexactly(len(body)) == body
        writer.close()


async def test_unfinished_requests_are_bounded_together() -> None:
    """Many clients with long, unfinished heads: the oldest go."""
    connections = Connections(1000)
    async with accepting(connections) as port:
        half = b"GET / HTTP/1.1\r\nX: " + b"a" * 60_000
        socks = [connect(port, half) for _ in range(300)]
        await until(lambda: 0 < len(connections) <= MAX_HELD_BYTES // 60_000 + 1)
        assert await is_closed(socks[0])
        assert (await ask(port, "/")).status == 200
    for sock in socks:
        sock.close()


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        (b"", HEAD_SECONDS),
        (b"GET / HT", HEAD_SECONDS),
        (b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc", HEAD_SECONDS),
        (GET, IDLE_SECONDS),
        (GET + b"GET", HEAD_SECONDS),
        (b"GET / HTTP/1.0\r\n\r\n", LINGER_SECONDS),
        (b"nonsense\r\n\r\n", LINGER_SECONDS),
    ],
)
async def test_a_client_that_goes_silent_is_given_up(sent: bytes, seconds: float) -> None:
    clock = Clock()
    connections = Connections(5, monotonic=clock)
    async with accepting(connections) as port:
        with closing(connect(port, sent)) as sock:
            await until(lambda: len(connections) == 1)
            # What the client sent has been read once another client is served.
            assert (await ask(port, "/")).status == 200
            await until(lambda: len(connections) == 1)
            clock.now = seconds - 0.1
            connections.sweep()
            assert len(connections) == 1
            clock.now = seconds
            connections.sweep()
            assert len(connections) == 0
            assert await is_closed(sock)


async def test_a_client_that_does_not_take_its_response_is_given_up() -> None:
    clock = Clock()
    connections = Connections(5, monotonic=clock)
    async with accepting(connections, lambda _: Response(bytes(50_000_000))) as port:
        with closing(connect(port, GET)):
            await until(lambda: len(connections) == 1)
            assert (await ask(port, "/", "HEAD")).status == 200
            await until(lambda: len(connections) == 1)
            clock.now = WRITE_SECONDS
            connections.sweep()
            assert len(connections) == 0


async def test_time_is_up_without_anything_else_happening() -> None:
    """The timer runs while there are connections, and only then."""
    clock = Clock()
    connections = Connections(5, monotonic=clock)
    with patch.object(module, "SWEEP_SECONDS", 0.001):
        async with accepting(connections) as port:
            with closing(connect(port)) as sock:
                await until(lambda: len(connections) == 1)
                clock.now = HEAD_SECONDS
                assert await is_closed(sock)
            await until(lambda: connections._sweeper is None)


async def test_other_work_has_its_turn_between_pipelined_requests() -> None:
    served = most = 0

    def count(_: Request) -> Response:
        nonlocal served, most
        served += 1
        most = max(most, served)
        return text("ok")

    async with accepting(Connections(5), count) as port:
        task = asyncio.create_task(exchange(port, GET * 2000 + LAST))
        async with limit():
            while not task.done():
                served = 0
                await asyncio.sleep(0)
        assert (await task).count(b"HTTP/1.1 200 OK") == 2001
    assert most <= 2 * REQUESTS_PER_TURN


async def test_requests_of_many_clients_leave_half_of_the_time_to_others() -> None:
    """Each request takes a millisecond; 100 clients send one after the other, and do not read."""

    served = most = 0

    def slow(_: Request) -> Response:
        nonlocal served
        served += 1
        time.sleep(0.001)
        return text("ok")

    async with accepting(Connections(200), slow) as port:
        clients = [connect(port, GET * 500) for _ in range(100)]
        for _ in range(100):
            before = served
            await asyncio.sleep(0)
            most = max(most, served - before)
        assert b"200 OK" in await exchange(port, LAST)
        for client in clients:
            client.close()
    assert most <= 20  # requests in one turn of the event loop, of 10 milliseconds


class Exhausted(socket.socket):
    """A listening socket that cannot accept while `failures` are left."""

    failures = 0

    def accept(self) -> tuple[socket.socket, object]:
        if Exhausted.failures:
            Exhausted.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_a_failed_accept_is_tried_again_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sock = Exhausted(fileno=listen("tcp", "127.0.0.1", 0).detach())
    sock.setblocking(False)
    port = sock.getsockname()[1]
    Exhausted.failures = 20
    listener = Listener(sock, ok, Connections(5))
    with patch.object(module, "ACCEPT_RETRY_SECONDS", 0.001), caplog.at_level(logging.DEBUG):
        listener.start()
        assert (await ask(port, "/")).status == 200
    listener.close()
    assert Exhausted.failures == 0
    (record,) = caplog.records
    assert record.getMessage() == "Cannot accept connections"


async def test_without_descriptors_an_idle_connection_makes_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next client is served at once."""
    sock = Exhausted(fileno=listen("tcp", "127.0.0.1", 0).detach())
    sock.setblocking(False)
    port = sock.getsockname()[1]
    connections = Connections(5)
    listener = Listener(sock, ok, connections)
    listener.start()
    silent = [connect(port) for _ in range(3)]
    await until(lambda: len(connections) == 3)
    Exhausted.failures = 2
    assert (await ask(port, "/")).status == 200
    assert await is_closed(silent[0])
    assert await is_closed(silent[1])
    listener.close()
    for each in silent:
        each.close()
    assert "Cannot accept" not in caplog.text
