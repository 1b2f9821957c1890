"""Algorithms and weights in the process that carries, with real connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from tests.support.userspace_kit import Proxy, Serve, Servers, close, running
from tests.support.waiting import until_async

from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.userspace.carrier.balance import Target

NAMES = ("a", "b", "c")


class Client:
    """One connection that stays open."""

    def __init__(self, name: str, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self._writer = writer

    async def close(self) -> None:
        await close(self._writer)


OPEN: list[Client] = []
"""What a test has opened; closed with its servers."""


@contextlib.asynccontextmanager
async def three_servers() -> AsyncIterator[tuple[Proxy, tuple[Target, ...]]]:
    """Servers that send their name and keep the connection open."""
    servers = Servers()
    async with running() as proxy:
        try:
            yield proxy, tuple([await servers.tcp(_naming(name)) for name in NAMES])
        finally:
            while OPEN:
                await OPEN.pop().close()
            await servers.close()


def _naming(name: str) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name.encode())
        await reader.read()
        await close(writer)

    return serve


async def connect(port: int, source: str = "127.0.0.1") -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    OPEN.append(Client((await reader.readexactly(1)).decode(), writer))
    return OPEN[-1]


async def spread(port: int, connections: int) -> Counter[str]:
    """Whom connections met that are closed at once."""
    found: Counter[str] = Counter()
    for _ in range(connections):
        client = await connect(port)
        found[client.name] += 1
        await client.close()
    return found


@pytest.mark.parametrize("algorithm", [None, Algorithm.ROUND_ROBIN])
async def test_turns_follow_weights_exactly(algorithm: Algorithm | None) -> None:
    async with three_servers() as (proxy, targets):
        port = await proxy.serve(targets, algorithm=algorithm, weights=(3, 2, 1))
        assert await spread(port, 12) == {"a": 6, "b": 4, "c": 2}


@pytest.mark.parametrize("algorithm", [Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH])
async def test_a_hash_keeps_a_client_and_spreads_clients(algorithm: Algorithm) -> None:
    async with three_servers() as (proxy, targets):
        port = await proxy.serve(targets, algorithm=algorithm)
        met: dict[str, set[str]] = {}
        for source in [f"127.0.1.{number}" for number in range(1, 25)] * 3:
            client = await connect(port, source)
            met.setdefault(source, set()).add(client.name)
            await client.close()
    assert all(len(names) == 1 for names in met.values())
    assert {name for names in met.values() for name in names} == set(NAMES)


async def test_least_connections_counts_open_connections_only() -> None:
    async with three_servers() as (proxy, targets):
        port = await proxy.serve(targets, algorithm=Algorithm.LEAST_CONNECTIONS)
        held = [await connect(port) for _ in range(9)]
        assert sorted(Counter(each.name for each in held).values()) == [3, 3, 3]
        for each in held:
            if each.name == "a":
                await each.close()
        await until_async(lambda: _has(proxy, 6))
        again = [await connect(port) for _ in range(3)]
        assert [each.name for each in again] == ["a"] * 3


async def _has(proxy: Proxy, connections: int) -> bool:
    return (await proxy.counts()).connections == connections


async def test_a_changed_algorithm_holds_for_the_next_connection() -> None:
    """Those that are open go on, and count."""
    async with three_servers() as (proxy, targets):
        port = await proxy.serve(targets)
        held = [await connect(port) for _ in range(2)]
        await proxy.serve(targets, algorithm=Algorithm.LEAST_CONNECTIONS)
        missing = set(NAMES) - {each.name for each in held}
        assert {(await connect(port)).name} == missing
