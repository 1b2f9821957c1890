"""Service health ports: bytes on the wire, port changes, failures to bind, both families."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from tests.support.loopback import ask, exchange, free_port
from tests.support.waiting import until, within_limit

from kubeproxy.api.events import EventRequest
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.status.connections import Connections
from kubeproxy.status.events import Recorder
from kubeproxy.status.service_health import ServiceHealth

WEB, LB = ServiceName("web", "pub-local"), ServiceName("default", "lb1")
NOON_NS = 1_794_744_000 * 10**9
Make = Callable[..., ServiceHealth]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Build health ports, on 127.0.0.1 by default, and close them at the end."""
    made: list[ServiceHealth] = []

    def build(family: Family = Family.IPV4, **options: object) -> ServiceHealth:
        arguments = {"addresses": ("127.0.0.1",), "now_ns": lambda: NOON_NS, **options}
        made.append(ServiceHealth(family, node_name="n1", **arguments))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for health in made:
        health.close()
    await asyncio.sleep(0)


class Events:
    """Keeps what would be posted."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.recorder = Recorder(self, hostname="n1", now_ns=lambda: NOON_NS, random=lambda: 0)

    async def post_event(self, request: EventRequest) -> int:
        self.bodies.append(msgspec.json.decode(request.body, type=dict[str, object]))
        return 201


async def refuses(port: int) -> bool:
    try:
        await exchange(port, b"GET / HTTP/1.0\r\n\r\n")
    except ConnectionRefusedError:
        return True
    return False


async def test_the_answer_byte_by_byte(make: Make) -> None:
    port, health = free_port(), make()
    await health.sync_services({WEB: port})
    health.sync_endpoints({WEB: 2})
    received = await exchange(port, b"GET /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    body = (
        b'{\n\t"service": {\n\t\t"namespace": "web",\n\t\t"name": "pub-local"\n\t},\n'
        b'\t"localEndpoints": 2,\n\t"serviceProxyHealthy": true\n}'
    )
    assert received == (
        b"HTTP/1.1 200 OK\r\n"
        b"Content-Type: application/json\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"X-Load-Balancing-Endpoint-Weight: 2\r\n"
        b"Date: Sun, 15 Nov 2026 12:00:00 GMT\r\n"
        b"Content-Length: %d\r\n"
        b"Connection: close\r\n\r\n%s" % (len(body), body)
    )


@pytest.mark.parametrize(
    ("count", "proxy_healthy", "status"),
    [(0, True, 503), (1, True, 200), (3, False, 503), (0, False, 503)],
)
async def test_status_needs_endpoints_and_a_healthy_proxy(
    make: Make, count: int, proxy_healthy: bool, status: int
) -> None:
    port, health = free_port(), make(is_healthy=lambda: proxy_healthy)
    await health.sync_services({WEB: port})
    health.sync_endpoints({WEB: count})
    reply = await ask(port, "/", "POST", "some body")
    assert reply.status == status
    assert reply.headers["X-Load-Balancing-Endpoint-Weight"] == str(count)
    answer = msgspec.json.decode(reply.body)
    assert (answer["localEndpoints"], answer["serviceProxyHealthy"]) == (count, proxy_healthy)


async def test_a_new_port_has_no_endpoints_and_unmentioned_ones_lose_theirs(make: Make) -> None:
    port, health = free_port(), make()
    await health.sync_services({WEB: port})
    assert (await ask(port, "/")).status == 503
    health.sync_endpoints({WEB: 1})
    assert (await ask(port, "/")).status == 200
    health.sync_endpoints({LB: 1})
    assert (await ask(port, "/")).status == 503


async def test_ports_follow_the_services(make: Make) -> None:
    """Renumbered ports move, gone ones close, unchanged ones keep connections and counts."""
    first, second, kept = free_port(), free_port(), free_port()
    health = make()
    await health.sync_services({WEB: first, LB: kept})
    health.sync_endpoints({WEB: 1, LB: 1})
    reader, writer = await asyncio.open_connection("127.0.0.1", kept)
    await health.sync_services({WEB: second, LB: kept})
    assert await refuses(first)
    assert not await refuses(second)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
    writer.close()
    await health.sync_services({})
    assert await refuses(second)
    assert health.open_ports == {}


async def test_two_services_can_swap_ports_in_one_sync(make: Make) -> None:
    """Everything unwanted is closed before anything is opened."""
    one, two = free_port(), free_port()
    health = make()
    await health.sync_services({WEB: one, LB: two})
    await health.sync_services({WEB: two, LB: one})
    assert b'"name": "lb1"' in (await ask(one, "/")).body
    assert health.open_ports == {WEB: two, LB: one}


async def test_closing_drops_open_connections(make: Make) -> None:
    port, health = free_port(), make()
    await health.sync_services({WEB: port})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\n}")
    await health.sync_services({})
    assert await within_limit(reader.read()) == b""
    writer.close()


async def test_a_taken_port_is_an_event_and_is_tried_again(make: Make) -> None:
    """The other Services are served meanwhile; the next sync succeeds once the port is free."""
    events, other = Events(), free_port()
    health = make(recorder=events.recorder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        await health.sync_services({WEB: port, LB: other})
        assert health.open_ports == {LB: other}
    await events.recorder.drain()
    (event,) = events.bodies
    assert (event["reason"], event["action"], event["type"]) == (
        "FailedToStartServiceHealthcheck",
        "Listen",
        "Warning",
    )
    assert event["note"] == (
        f'node n1 failed to start healthcheck "web/pub-local" on port {port}: '
        f"listen tcp4 127.0.0.1:{port}: bind: address already in use"
    )
    assert event["regarding"] == {
        "kind": "Service",
        "namespace": "web",
        "name": "pub-local",
        "apiVersion": "v1",
    }
    await health.sync_services({WEB: port, LB: other})
    assert health.open_ports == {LB: other, WEB: port}


async def test_all_addresses_open_or_none(make: Make) -> None:
    """A failure on the second address closes the first again."""
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        health = make(addresses=("127.0.0.1", "127.0.0.2"))
        await health.sync_services({WEB: port})
        assert health.open_ports == {}
        assert await refuses(port)


async def test_every_given_address_is_served(make: Make) -> None:
    port, health = free_port(), make(addresses=("127.0.0.1", "127.0.0.2"))
    await health.sync_services({WEB: port})
    for host in ("127.0.0.1", "127.0.0.2"):
        assert (await ask(port, "/", host=host)).status == 503


async def test_without_addresses_nothing_listens(make: Make) -> None:
    """Node port addresses that match no interface: no listener, and no failure either."""
    port, health = free_port(), make(addresses=())
    await health.sync_services({WEB: port})
    assert await refuses(port)
    assert health.open_ports == {WEB: port}


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this host")
async def test_families_listen_side_by_side_and_may_disagree(make: Make) -> None:
    """IPv4 and IPv6 listeners of one port are separate sockets with separate counts."""
    port = free_port("::")
    four, six = make(addresses=None), make(Family.IPV6, addresses=None)
    await four.sync_services({WEB: port})
    await six.sync_services({WEB: port})
    six.sync_endpoints({WEB: 1})
    assert (await ask(port, "/", host="127.0.0.1")).status == 503
    assert (await ask(port, "/", host="::1")).status == 200


async def test_connections_are_kept_alive_and_pipelined(make: Make) -> None:
    """Several requests on one connection, a body skipped in between, one byte at a time."""
    port, health = free_port(), make()
    await health.sync_services({WEB: port})
    data = (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
        b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    received = await within_limit(reader.read())
    writer.close()
    first, head, last = received.split(b"HTTP/1.1 503 Service Unavailable\r\n")[1:]
    assert first.endswith(b"}")
    assert head.endswith(b"\r\n\r\n")
    assert b"Connection" not in first + head
    assert b"Connection: close" in last


async def test_old_clients_may_keep_the_connection(make: Make) -> None:
    port, health = free_port(), make()
    await health.sync_services({WEB: port})
    kept = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    received = await exchange(port, kept + b"GET / HTTP/1.0\r\n\r\n")
    assert received.count(b"HTTP/1.0 503 Service Unavailable\r\n") == 2
    assert received.count(b"Connection: keep-alive\r\n") == 1


async def test_a_client_that_pipelines_and_does_not_read_waits(make: Make) -> None:
    """Of 40 MB of requests next to nothing is held, and other clients are answered."""
    port, health = free_port(), make()
    await health.sync_services({WEB: port})
    block = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setblocking(False)
        tracemalloc.start()
        sent = refused = 0
        while sent < 40_000_000 and refused < 300:
            try:
                sent += sock.send(block)
                refused = 0
            except BlockingIOError:
                refused += 1
            await asyncio.sleep(0.001)
        assert (await ask(port, "/")).status == 503
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1_000_000


async def test_all_ports_share_one_limit(make: Make) -> None:
    """Also those of the other family, if they are given the same connections."""
    shared, ports = Connections(20), [free_port() for _ in range(4)]
    one, two = make(connections=shared), make(connections=shared)
    await one.sync_services({WEB: ports[0], LB: ports[1]})
    await two.sync_services({WEB: ports[2], LB: ports[3]})
    silent = [socket.create_connection(("127.0.0.1", port)) for port in ports * 10]
    await until(lambda: len(shared) >= 20)
    assert (await ask(ports[0], "/")).status == 503
    assert len(shared) <= 20
    await one.sync_services({LB: ports[1]})
    assert await refuses(ports[0])
    assert (await ask(ports[1], "/")).status == 503
    for sock in silent:
        sock.close()
