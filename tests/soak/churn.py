"""An hour of random changes to the objects of a cluster, after which it has its size again.

Names and addresses are drawn again each hour, numbers of objects are not: what the daemon needs for
them must not grow. Some objects have names that never come again, some cannot be used at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from kpctl.apiserver.small import SmallApiServer
from kpctl.apiserver.store import Json
from kpctl.bench.cluster import (
    NODE,
    SERVICE_PORT,
    endpoints_json,
    service_json,
    service_name,
    slice_json,
    slice_name,
)
from kpctl.bench.records import Size

SLOTS = 128
NAMESPACE = "default"


class Churn:
    """Changes the objects that a small API server serves."""

    def __init__(self, api: SmallApiServer, size: Size, dice: Random) -> None:
        self._api = api
        self._size = size
        self._dice = dice
        self._touched: set[int] = set()
        self._strangers: list[str] = []
        self._number = 0
        self._kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (60, self._move_endpoints),
            (10, self._lose_endpoints),
            (8, self._change_service),
            (6, self._recreate_service),
            (6, self._meet_stranger),
            (4, self._offer_nonsense),
            (4, self._relabel_node),
        ]

    async def load(self) -> None:
        for index in range(self._size.services):
            await self._api.create("services", NAMESPACE, service_json(index))
            slots = range(self._size.endpoints)
            await self._api.create("endpointslices", NAMESPACE, slice_json(index, slots))

    async def change(self) -> None:
        """Make one change."""
        weights, kinds = zip(*self._kinds, strict=True)
        await self._dice.choices(kinds, weights)[0]()

    async def change_these(self, services: range) -> None:
        """Change these Services and their endpoints once."""
        for index in services:
            self._touched.add(index)
            await self._recreate(index)
            await self._move(index)

    def end_watches(self, *, forget: bool) -> None:
        """End all watches; with `forget` none can go on where it was, and lists follow."""
        if forget:
            self._api.store.compact()
        self._api.end_watches()

    async def restore(self) -> None:
        """Give everything that was changed the size again that it had."""
        for name in self._strangers:
            await self._api.delete("services", NAMESPACE, name)
        self._strangers.clear()
        for index in sorted(self._touched):
            name, slots = service_name(index), self._slots(self._size.endpoints)
            await self._api.update("services", NAMESPACE, name, service_json(index))
            slice_ = slice_json(index, slots)
            await self._api.update("endpointslices", NAMESPACE, slice_name(index), slice_)
        self._touched.clear()
        self._api.requests.clear()

    def _pick(self) -> int:
        index = self._dice.randrange(self._size.services)
        self._touched.add(index)
        return index

    def _slots(self, count: int) -> list[int]:
        return self._dice.sample(range(SLOTS), count)

    async def _set_endpoints(self, index: int, endpoints: list[Json]) -> None:
        patch: Json = {"endpoints": endpoints}
        await self._api.patch("endpointslices", NAMESPACE, slice_name(index), patch)

    async def _move_endpoints(self) -> None:
        await self._move(self._pick())

    async def _move(self, index: int) -> None:
        endpoints = endpoints_json(index, self._slots(self._size.endpoints))
        for each in endpoints:
            state = self._dice.choice(({"ready": True}, {"serving": True, "terminating": True}))
            each["conditions"] = state
            each["nodeName"] = self._dice.choice((NODE, "another-node"))
        await self._set_endpoints(index, endpoints)

    async def _lose_endpoints(self) -> None:
        await self._set_endpoints(self._pick(), [])

    async def _change_service(self) -> None:
        index = self._pick()
        specs: tuple[Json, ...] = (
            {"type": "NodePort"},
            {"sessionAffinity": "ClientIP"},
            {"externalIPs": [f"198.51.100.{self._dice.randrange(250)}"]},
            {"internalTrafficPolicy": "Local"},
            {"type": "LoadBalancer", "externalTrafficPolicy": "Local"},
        )
        spec = self._dice.choice(specs)
        if "type" in spec:
            port = {"name": "web", "port": SERVICE_PORT, "nodePort": 30000 + index}
            spec = {**spec, "ports": [port]}
        await self._api.patch("services", NAMESPACE, service_name(index), {"spec": spec})

    async def _recreate_service(self) -> None:
        await self._recreate(self._pick())

    async def _recreate(self, index: int) -> None:
        await self._api.delete("services", NAMESPACE, service_name(index))
        await asyncio.sleep(0)
        await self._api.create("services", NAMESPACE, service_json(index))

    async def _meet_stranger(self) -> None:
        """A Service whose name and address were never seen before."""
        self._number += 1
        item = service_json(self._size.services + self._number % 1000)
        name = f"stranger-{self._number}"
        self._strangers.append(name)
        await self._api.create("services", NAMESPACE, {**item, "metadata": {"name": name}})

    async def _offer_nonsense(self) -> None:
        self._number += 1
        name = f"nonsense-{self._number}"
        item = self._dice.choice(
            (
                {"metadata": {"name": name}, "spec": {"clusterIP": 7}},
                {"metadata": {"name": name}, "spec": {"clusterIP": "no address", "ports": [{}]}},
                {"metadata": {"name": name}, "spec": {"ports": [{"port": 99999999}]}},
            )
        )
        self._strangers.append(name)
        await self._api.create("services", NAMESPACE, item)

    async def _relabel_node(self) -> None:
        labels = {"topology.kubernetes.io/zone": self._dice.choice("ab"), "x": str(self._number)}
        await self._api.patch("nodes", "", NODE, {"metadata": {"labels": labels}})
