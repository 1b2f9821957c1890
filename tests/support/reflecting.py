"""A reflector of Services that runs against the small API server, and what it delivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.support.recorded import RecordedRequests

from kpctl.apiserver.small import SeenRequest, SmallApiServer
from kpctl.apiserver.store import Json
from kubeproxy.api.auth.access import Access
from kubeproxy.api.client import Client, ClientSettings, connect
from kubeproxy.api.objects import Service
from kubeproxy.api.reflector import Reflector, ReflectorSettings
from kubeproxy.api.resources import resource_for
from kubeproxy.api.source import Delete, Event, Kind, Synced, Upsert


def service(name: str, *, ip: str = "10.0.0.1", **labels: str) -> Json:
    return {
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"clusterIP": ip, "ports": [{"port": 80}]},
    }


class Inbox:
    """What was delivered, and the Services that its receiver therefore holds."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.held: dict[str, str] = {}
        self.syncs = 0
        self.slept: list[float] = []

    def send(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Upsert):
            assert isinstance(event.object, event.kind.object_type)
            if isinstance(event.object, Service):
                self.held[event.object.metadata.name] = event.object.spec.cluster_ip or ""
        elif isinstance(event, Delete):
            del self.held[event.name]
        elif isinstance(event, Synced):
            self.syncs += 1

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0.01)

    def count(self, type_: type) -> int:
        return sum(isinstance(event, type_) for event in self.events)

    def synced(self) -> set[Kind]:
        return {event.kind for event in self.events if isinstance(event, Synced)}


@asynccontextmanager
async def client_of(api: SmallApiServer) -> AsyncIterator[Client]:
    client = connect(
        Access(server=api.url),
        observer=RecordedRequests(),
        settings=ClientSettings(qps=-1),
        environment={},
    )
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def reflecting(
    api: SmallApiServer,
    settings: ReflectorSettings | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Inbox]:
    inbox = Inbox()
    async with client_of(api) as client:
        reflector = Reflector(
            client,
            resource_for(Kind.SERVICE, "node"),
            inbox,
            settings=settings or ReflectorSettings(),
            clock=clock,
            rand=lambda: 0.0,
            sleep=inbox.sleep,
        )
        task = asyncio.create_task(reflector.run())
        try:
            yield inbox
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def streams(seen: SeenRequest) -> bool:
    return seen.query.get("sendInitialEvents") == "true"


def lists(seen: SeenRequest) -> bool:
    return not seen.is_watch


def continues(seen: SeenRequest) -> bool:
    return seen.is_watch and not streams(seen)


def watching(api: SmallApiServer, number: int = 1) -> Callable[[], bool]:
    """Have at least so many plain watches arrived?"""
    return lambda: sum(map(continues, api.requests)) >= number


PAGES = ReflectorSettings(streams=False, page_size=2)
