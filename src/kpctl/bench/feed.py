"""A small API server in this process, on a node's loopback, for what is too much for a real one.

The real API server, its store and its writers share the machine with the proxy under test and use
up two processors at a few hundred changes a second. Filling it with 30,000 Services takes ten
minutes. Here a change is a line in a watch.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from kpctl.apiserver.small import SeenRequest, SmallApiServer, split_path
from kpctl.apiserver.store import Json, StatusError
from kpctl.bench.cluster import Cluster
from kpctl.bench.events import LOOPBACK, Uplink
from kpctl.bench.records import Size
from kpctl.bench.world import NODE_ADDRESS, Access, Site


@contextmanager
def _never_stopped() -> Iterator[None]:
    """No collection of garbage while a node is served.

    A full one takes up to a second after 10,000 changes of 10,000 Services. Clients get what piled
    up meanwhile at once, and that would count as their latency. Objects are freed all the same when
    others replace them: they are trees.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class LocalAdmin:
    """Changes objects without a request."""

    def __init__(self, api: SmallApiServer) -> None:
        self._api = api

    async def create(self, path: str, item: Json) -> Json:
        collection, namespace, _ = split_path(path)
        return await self._api.create(collection, namespace, item)

    async def patch(self, path: str, patch: Json) -> Json:
        return await self._api.patch(*split_path(path), patch)

    async def delete(self, path: str) -> None:
        """Delete the object if it exists."""
        try:
            await self._api.delete(*split_path(path))
        except StatusError as error:
            if error.code != 404:
                raise


class Feed:
    """Objects of one size, which stay while one node after another is served."""

    def __init__(self, folder: Path, protocol: str = "TCP") -> None:
        self._api = SmallApiServer()
        self._kubeconfig = folder / "feed.kubeconfig"
        self.cluster = Cluster(LocalAdmin(self._api), protocol)

    @property
    def requests(self) -> Sequence[SeenRequest]:
        """What was asked so far, in order."""
        return self._api.requests

    async def load(self, size: Size) -> None:
        """Bring the objects to this size, which is not smaller than the one before."""
        if not self.cluster.size.services:
            await self.cluster.start(NODE_ADDRESS)
        await self.cluster.become(size)

    @asynccontextmanager
    async def reached_from(self, site: Site) -> AsyncIterator[Access]:
        """Serve a node on its own loopback."""
        async with AsyncExitStack() as stack:
            stack.enter_context(_never_stopped())
            # Only the making of the listening socket depends on the namespace.
            with site.node.inside():
                await stack.enter_async_context(self._api.serving())
            self._kubeconfig.write_text(self._api.kubeconfig())
            json = "--kube-api-content-type=application/json"
            uplink = Uplink(LOOPBACK, int(self._api.url.rpartition(":")[2]))
            yield Access((f"--kubeconfig={self._kubeconfig}", json), uplink)
