"""What the carrier reports about the connections it carries."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.userspace_kit import HERE, Proxy, Servers, close
from tests.support.waiting import until_async

from kubeproxy.errors import Drifted
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.userspace.carrier.balance import Target
from kubeproxy.modes.userspace.carrier.messages import Route
from kubeproxy.modes.userspace.carrier.shared import MOST_ROUTES, CarriedRoutes

WEB = ServicePortId("default", "web", "", Protocol.TCP)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    await close(writer)


async def test_open_connections_are_reported_by_endpoint(proxy: Proxy, servers: Servers) -> None:
    """Also those of a listener that is closed: they go on."""
    target = await servers.tcp(echo)
    port = await proxy.serve([target])
    first, second = [await asyncio.open_connection(HERE, port) for _ in range(2)]

    async def open_now() -> list[tuple[ServicePortId, str, int, int]]:
        counts = (await proxy.sink.carried(0)).counts
        return [(c.owner, c.endpoint, c.open, c.total) for c in counts]

    async def are_two() -> bool:
        return await open_now() == [(WEB, join_host_port(*target), 2, 2)]

    await until_async(are_two)
    (flow,) = (await proxy.sink.carried(1)).flows
    assert flow.owner == WEB
    assert flow.client.startswith(f"{HERE}:")
    await proxy.stop()
    assert await are_two()
    await close(first[1])

    async def is_one() -> bool:
        return await open_now() == [(WEB, join_host_port(*target), 1, 2)]

    await until_async(is_one)
    await close(second[1])


async def test_udp_sessions_are_reported(proxy: Proxy, servers: Servers) -> None:
    target = await servers.udp(lambda data: data)
    port = await proxy.serve([target], protocol=Protocol.UDP)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=(HERE, port)
    )
    transport.sendto(b"?")

    async def is_carried() -> bool:
        counts = (await proxy.sink.carried(0)).counts
        return [(c.owner.protocol, c.total) for c in counts] == [(Protocol.UDP, 1)]

    await until_async(is_carried)
    transport.close()


async def test_without_a_carrier_the_question_fails(proxy: Proxy) -> None:
    with pytest.raises(Drifted, match="does not run"):
        await proxy.sink.carried(0)


def test_routes_are_bounded() -> None:
    routes = CarriedRoutes({})
    for number in range(MOST_ROUTES + 10):
        routes.add(Route(f"default/s{number}", False, Target("10.0.0.1", 80)))
    counts, flows, is_cut = routes.report(10)
    assert len(counts) == MOST_ROUTES
    assert not flows
    assert not is_cut
    assert counts[0][0].service == "default/s10"
