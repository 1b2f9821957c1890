"""Counts connections per Service from conntrack events (--service-metrics).

Promise: the sync loop goes first. Events are read in bounded pieces, one per turn of the event
loop, and what the kernel drops meanwhile is counted as an overrun, not waited for. Nothing here
ends the proxy: what fails is logged and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.conntrack.entries import Event
from kubeproxy.kernel.conntrack.table import ConntrackEvents
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import RefusedPackets
from kubeproxy.plan.frontends import Frontends
from kubeproxy.status.service_counters import ServiceCounters
from kubeproxy.sync.engine import Engine

logger = get_logger(__name__)

EVENTS_PER_TURN = 128
"""Some milliseconds of work."""
RETRY_SECONDS = 30.0
REFUSED_SECONDS = 15.0
"""How often the kernel's counters of refusing rules are read, where there are any."""


class ServiceMetrics:
    """Feeds the counters of one proxy."""

    def __init__(self, counters: ServiceCounters, engines: Collection[Engine]) -> None:
        self._counters = counters
        self._engines = tuple(engines)
        self._frontends: dict[Family, Frontends] = {
            engine.family: engine.pipeline.index_frontends() for engine in engines
        }

    async def run(self) -> None:
        """Count until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._count_connections())
            group.create_task(self._count_refused())

    async def _count_connections(self) -> None:
        while True:
            try:
                await self._follow(ConntrackEvents(with_ends=True))
            except KernelError as error:
                logger.error(error, "Cannot count connections of Services; trying again")
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self, events: ConntrackEvents) -> None:
        lost = self._counters.overruns
        try:
            while True:
                await _readable(events)
                for event in events.read(EVENTS_PER_TURN):
                    self._count(event)
                self._counters.overruns = lost + events.overruns
        finally:
            events.close()

    def _count(self, event: Event) -> None:
        plan = self._frontends[event.family].find(event.entry.protocol, event.entry.destination)
        if plan is None:
            return
        if event.is_new and event.entry.is_translated:
            self._counters.connected(plan.id.service)
        elif not event.is_new and (counters := event.entry.counters):
            sent, received = counters
            self._counters.ended(plan.id.service, sent=sent.bytes, received=received.bytes)

    async def _count_refused(self) -> None:
        while True:
            found: list[RefusedPackets] = []
            for engine in self._engines:
                frontends = self._frontends[engine.family]
                try:
                    refused = await engine.backend.refused_packets(frontends)
                except KernelError as error:
                    logger.v(2).info("Cannot read refused packets", err=str(error))
                    break
                if refused is None:
                    return
                found += refused
            else:
                self._counters.refused(found)
            await asyncio.sleep(REFUSED_SECONDS)


async def _readable(events: ConntrackEvents) -> None:
    """Wait until there are events, and give everything else that is due a turn."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(events.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_reader(events.fileno())
