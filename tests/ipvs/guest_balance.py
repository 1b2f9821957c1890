"""Runs inside the user-mode kernel: whom connections meet under each algorithm."""

from __future__ import annotations

import asyncio
import select
import socket
from collections import Counter
from collections.abc import Sequence
from itertools import repeat

from tests.support.builders import endpoint, endpoint_slice, node, port, service
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.spread_kit import PORT, Receivers, client, receivers
from tests.support.worlds import address

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.facts.policy import Algorithm
from kubeproxy.modes.ipvs.check import open_ipvs
from kubeproxy.modes.ipvs.mode import MODE, IpvsBackend
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.sync.engine import Engine


class Served:
    """One Service in this namespace."""

    def __init__(self, family: Family, protocol: Protocol, algorithm: str) -> None:
        self.family = family
        self.protocol = protocol
        self.place = address(family, "cluster", 1), 53
        self.on = node(family, mode="ipvs", algorithms=MODE.algorithms)
        self.engine = Engine(
            IpvsBackend(family, Options()),
            self.on,
            clock=FakeClock(),
            listener=RecordedRounds(),
        )
        ports = [port(53, name="dns", protocol=protocol)]
        asked = Algorithm(algorithm) if algorithm else None
        self.engine.pipeline.store.set_service(
            service(cluster_ip=self.place[0], ports=ports, algorithm=asked)
        )

    async def start(self) -> None:
        (await open_ipvs()).close()  # loads the module
        await self.engine.backend.start(self.on)

    async def set(self, weights: Sequence[int]) -> list[str]:
        """Have endpoints of these weights. Return their addresses."""
        pods = [
            endpoint(address(self.family, "pod", number), PORT, local=True)
            for number in range(1, len(weights) + 1)
        ]
        given = {pod.address: weight for pod, weight in zip(pods, weights, strict=True)}
        found = endpoint_slice(
            endpoints=pods, port_name="dns", protocol=self.protocol, weights=given
        )
        self.engine.pipeline.store.set_slice(found)
        report = await self.engine.round()
        assert report.failure_text == "", report.failure_text
        return [pod.address for pod in pods]


def spread(family: str, algorithm: str, weights: list[int], clients: int) -> object:
    """How often each endpoint was met, by one connection from each of so many clients."""
    return asyncio.run(_spread(Family(family), algorithm, weights, clients))


async def _spread(
    family: Family, algorithm: str, weights: list[int], clients: int
) -> dict[str, object]:
    with scratch_namespace():
        served = Served(family, Protocol.UDP, algorithm)
        await served.start()
        pods = await served.set(weights)
        with receivers(family, pods) as found:
            counts = found.spread(served.place, (client(family, n) for n in range(clients)))
        drifted = [
            served.engine.pipeline.resync(sink, await sink.read())
            for sink in served.engine.backend.sinks
        ]
        return {"counts": counts, "pods": pods, "drifted": sum(drifted)}


def turns(family: str, weights: list[int], connections: int) -> object:
    """Whom connections met one after the other."""
    return asyncio.run(_turns(Family(family), weights, connections))


async def _turns(family: Family, weights: list[int], connections: int) -> list[str]:
    with scratch_namespace():
        served = Served(family, Protocol.UDP, "round-robin")
        await served.start()
        pods = await served.set(weights)
        with receivers(family, pods) as found:
            return [found.whom(served.place) for _ in range(connections)]


def moves(family: str, algorithm: str, pods: int, clients: int) -> object:
    """Whom each client met before an endpoint got weight 0, meanwhile, and after it came back."""
    return asyncio.run(_moves(Family(family), algorithm, pods, clients))


async def _moves(
    family: Family, algorithm: str, pods: int, clients: int
) -> tuple[str, list[dict[str, str]]]:
    with scratch_namespace():
        served = Served(family, Protocol.UDP, algorithm)
        await served.start()
        names = await served.set([1] * pods)
        met: list[dict[str, str]] = []
        with receivers(family, names) as found:
            for first in (1, 0, 1):
                await served.set([first, *repeat(1, pods - 1)])
                met.append(_by_client(found, served, clients))
        return names[0], met


def _by_client(found: Receivers, served: Served, clients: int) -> dict[str, str]:
    sources = (client(served.family, number) for number in range(clients))
    return {source: found.whom(served.place, source) for source in sources}


def least_connections(weights: list[int], connections: int) -> object:
    """Open connections by endpoint; then after those of the first were closed, whom more met."""
    return asyncio.run(_least_connections(weights, connections))


async def _least_connections(weights: list[int], connections: int) -> list[dict[str, int]]:
    family = Family.IPV4
    with scratch_namespace():
        served = Served(family, Protocol.TCP, "least-connections")
        await served.start()
        pods = await served.set(weights)
        with receivers(family, pods):
            listeners = {pod: _listen(pod) for pod in pods}
            held = [_connect(served.place, listeners) for _ in range(connections)]
            first = Counter(pod for pod, _, _ in held)
            gone = [each for each in held if each[0] == pods[0]]
            for _, near, far in gone:
                near.close()
                far.close()
            again = [_connect(served.place, listeners) for _ in gone]
            second = Counter(pod for pod, _, _ in again)
            for _, near, far in (*held, *again):
                near.close()
                far.close()
            for listener in listeners.values():
                listener.close()
        return [dict(first), dict(second)]


def _listen(pod: str) -> socket.socket:
    listener = socket.socket()
    listener.bind((pod, PORT))
    listener.listen(64)
    return listener


def _connect(
    place: tuple[str, int], listeners: dict[str, socket.socket]
) -> tuple[str, socket.socket, socket.socket]:
    """A connection: whom it met, and both of its ends."""
    near = socket.create_connection(place)
    (ready,) = select.select(listeners.values(), [], [], 60)[0]
    far, _ = ready.accept()
    return next(pod for pod, each in listeners.items() if each is ready), near, far
