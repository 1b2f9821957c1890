"""An API server in this process, on a node's loopback: for a thousand changes a second, and for
more services than a real one takes in reasonable time.

The real API server, its store and whoever writes to it share the machine with the proxy under test
and use up two processors at a few hundred changes a second; filling it with 30,000 Services takes
ten minutes. Here a change is a line in a watch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kpctl.apiserver.small import FakeApi, split_path
from kpctl.apiserver.store import FakeProblem, Json
from kpctl.bench.cluster import Cluster
from kpctl.bench.events import Line
from kpctl.bench.records import Size
from kpctl.bench.world import NODE_ADDRESS, Access, Site


class LocalAdmin:
    """Changes objects without a request."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api

    async def create(self, path: str, item: Json) -> Json:
        collection, namespace, _ = split_path(path)
        return await self._api.create(collection, namespace, item)

    async def patch(self, path: str, patch: Json) -> Json:
        return await self._api.patch(*split_path(path), patch)

    async def delete(self, path: str) -> None:
        """Gone afterwards, whether it existed or not."""
        try:
            await self._api.delete(*split_path(path))
        except FakeProblem as problem:
            if problem.code != 404:
                raise


class Feed:
    """Objects of one size; they stay while one node after another is served."""

    def __init__(self, folder: Path) -> None:
        self._api = FakeApi()
        self._kubeconfig = folder / "feed.kubeconfig"
        self.cluster = Cluster(LocalAdmin(self._api))

    async def load(self, size: Size) -> None:
        """Once is enough; sizes only grow."""
        if not self.cluster.size.services:
            await self.cluster.start(NODE_ADDRESS)
        await self.cluster.become(size)

    @asynccontextmanager
    async def reached_from(self, site: Site) -> AsyncIterator[Access]:
        """Serve a node, on its own loopback."""
        async with AsyncExitStack() as stack:
            # Only the making of the listening socket depends on the namespace.
            with site.node.inside():
                await stack.enter_async_context(self._api.serving())
            self._kubeconfig.write_text(self._api.kubeconfig())
            json = "--kube-api-content-type=application/json"
            line = Line("lo", int(self._api.url.rpartition(":")[2]))
            yield Access((f"--kubeconfig={self._kubeconfig}", json), line)
