"""A source of manifests that runs, and what it delivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.waiting import until

from kubeproxy.api import objects
from kubeproxy.api.manifests import ManifestSource
from kubeproxy.api.source import Delete, Event, Kind, Synced, Undecodable, Upsert


def manifest(name: str, ip: str = "10.96.0.1") -> str:
    return f"{{kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: {ip}}}}}\n---\n"


class Received:
    """An inbox that knows what exists."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.services: dict[str, str] = {}

    def send(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case Upsert(object=objects.Service() as found):
                self.services[found.metadata.name] = found.spec.cluster_ip or ""
            case Delete(kind=Kind.SERVICE, name=name):
                del self.services[name]

    @property
    def problems(self) -> list[str]:
        return [e.reason for e in self.events if isinstance(e, Undecodable)]

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition, lambda: self.services)

    async def until_services(self, **expected: str) -> None:
        await self.until(lambda: self.services == expected)


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Received]:
    """A source that runs on this path; everything there is delivered when the block starts."""
    received = Received()
    task = asyncio.create_task(ManifestSource(path).run(received, "node"))
    try:
        await received.until(lambda: Synced(Kind.SERVICE_CIDR) in received.events or task.done())
        yield received
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settle(directory: Path, received: Received) -> None:
    """A change that is seen proves that everything before it was seen too."""
    probe = directory / "zz-probe.yaml"
    probe.write_text(manifest("probe"))
    await received.until(lambda: "probe" in received.services)
    probe.unlink()
    await received.until(lambda: "probe" not in received.services)
