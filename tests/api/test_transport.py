"""Connections of the transport: kept, renewed, through proxies, to the address that answers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.support.recorded import RecordedRequests
from tests.support.waiting import until

from kubeproxy.api import dial as dial_module
from kubeproxy.api import transport as transport_module
from kubeproxy.api.auth.credentials import Login
from kubeproxy.api.transport import HttpSettings, HttpTransport, Request
from kubeproxy.errors import Unavailable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LOGIN = Login((), None, None)
GET = Request("GET", "/x")


class Server:
    """Answers each request of a connection with the next of these; None ends the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.heads: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections, self.open = self.connections + 1, self.open + 1
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                answer = self.answers.pop(0) if self.answers else OK
                if answer is None:
                    return
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.open -= 1
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


@asynccontextmanager
async def transport_to(
    url: str, *, proxy: str = "", observer: RecordedRequests | None = None
) -> AsyncIterator[HttpTransport]:
    settings = HttpSettings(server=url, proxy=proxy)
    transport = HttpTransport(settings, observer or RecordedRequests())
    try:
        yield transport
    finally:
        await transport.close()


async def read(transport: HttpTransport, request: Request = GET) -> bytes:
    async with transport.send(request, LOGIN) as response:
        return await response.read()


async def test_a_connection_that_ended_while_idle_is_replaced() -> None:
    async with (
        Server(OK, None).running() as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        assert [await read(transport), await read(transport)] == [b"ok", b"ok"]
    assert server.connections == 2


async def test_what_may_have_been_done_is_not_sent_again() -> None:
    async with (
        Server(OK, None).running() as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        await read(transport)
        with pytest.raises(Unavailable, match="closed the connection"):
            await read(transport, Request("POST", "/x"))
    assert len(server.heads) == 2


async def test_an_idle_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "IDLE_CONNECTION_SECONDS", 0.05)
    async with (
        Server().running() as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        await read(transport)
        await until(lambda: server.connections == 1 and server.open == 0)
        assert await read(transport) == b"ok"


async def test_a_connection_is_not_used_with_other_credentials() -> None:
    """A context belongs to a certificate; here None and any other stand for two of them."""
    async with (
        Server().running() as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        await read(transport)
        context = ssl.create_default_context()
        async with transport.send(GET, Login((), context, None)) as response:
            await response.read()
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        OK + b"more",
    ],
)
async def test_a_connection_at_an_unknown_place_is_not_kept(answer: bytes) -> None:
    async with (
        Server(answer, None, OK).running() as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        if b"Length" in answer:
            assert await read(transport) == b"ok"
        else:
            async with transport.send(GET, LOGIN) as response:
                assert await anext(aiter(response.chunks())) == b"ok"
        await until(lambda: server.open == 0)
        server.answers[:] = []
        assert await read(transport) == b"ok"
    assert server.connections == 2


async def test_interim_heads_are_skipped() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with (
        Server(interim * 3 + OK, interim * 11).running() as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        assert await read(transport) == b"ok"
        with pytest.raises(Unavailable, match="interim"):
            await read(transport)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not begin"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * (1 << 17) + b"\r\n\r\n", "head is too large"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * (1 << 21), "head is too large"),
    ],
)
async def test_what_is_no_response_is_named(answer: bytes, reason: str) -> None:
    async with (
        Server(answer).running() as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        with pytest.raises(Unavailable, match=f"GET .*malformed response: .*{reason}"):
            await read(transport)
        await until(lambda: server.open == 0)


async def test_a_server_without_tls_is_asked_for_by_the_proxy() -> None:
    async with (
        Server().running() as proxy,
        transport_to(
            "http://api.example:8080/base", proxy=f"http://me:se%3Acret@127.0.0.1:{proxy.port}"
        ) as transport,
    ):
        assert await read(transport) == b"ok"
    (head,) = proxy.heads
    assert head.startswith(b"GET http://api.example:8080/base/x HTTP/1.1\r\nHost: api.example:8080")
    assert b"Proxy-Authorization: Basic bWU6c2U6Y3JldA==" in head


async def test_a_proxy_that_refuses_is_named() -> None:
    refusal = b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n"
    async with (
        Server(refusal).running() as proxy,
        transport_to("https://api.example", proxy=f"http://127.0.0.1:{proxy.port}") as transport,
    ):
        with pytest.raises(Unavailable, match=r"refuses a tunnel \(status 407\)"):
            await read(transport)
        assert proxy.heads == [b"CONNECT api.example:443 HTTP/1.1\r\nHost: api.example:443\r\n\r\n"]
        await until(lambda: proxy.open == 0)


async def test_names_are_looked_up_and_the_time_is_observed() -> None:
    observer = RecordedRequests()
    async with (
        Server().running() as server,
        transport_to(f"http://localhost:{server.port}", observer=observer) as transport,
    ):
        await read(transport)
        await read(transport)
    assert [call["host"] for call in observer.of("resolved")] == ["localhost"]


async def test_a_name_without_address_is_named() -> None:
    async with transport_to("http://nowhere.invalid") as transport:
        with pytest.raises(Unavailable, match=r"cannot connect to nowhere\.invalid:80: "):
            await read(transport)


async def test_the_address_that_answers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first refuses, the second does not answer at all, the third does."""
    with socket.create_server(("127.0.0.2", 0), backlog=0) as silent:
        port = silent.getsockname()[1]
        fillers = [socket.create_connection(("127.0.0.2", port))]
        async with Server().running() as server:

            async def addresses(*_: object) -> Sequence[object]:
                kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
                ends = (("127.0.0.3", server.port), ("127.0.0.2", port), ("127.0.0.1", server.port))
                return [(*kind, end) for end in ends]

            monkeypatch.setattr(dial_module, "_resolve", addresses)
            async with transport_to("http://api.example") as transport:
                assert await read(transport) == b"ok"
        for filler in fillers:
            filler.close()


async def test_a_request_that_is_cancelled_leaves_no_connection() -> None:
    async with (
        Server(b"").running() as server,
        transport_to(f"http://127.0.0.1:{server.port}") as transport,
    ):
        task = asyncio.create_task(read(transport))
        await until(lambda: server.heads)
        task.cancel()
        await until(lambda: server.open == 0)
