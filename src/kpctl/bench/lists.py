"""The bytes of the first lists, counted: part of the quick variant.

The daemon's own source lists from a small API server in this process, which compresses as the real
one does. What counts is what the source asks for: pages that may be compressed, or a stream, which
never is. Five thousand nodes that start at once make the difference.
"""

from __future__ import annotations

import asyncio

import msgspec

from kpctl.apiserver.small import SmallApiServer
from kpctl.bench.cluster import service_json, slice_json
from kpctl.bench.facts import NODE
from kpctl.bench.records import Size
from kubeproxy.api.api_server import ApiServerOptions, ApiServerSource
from kubeproxy.api.source import Event, Kind, Synced
from kubeproxy.status.api_client import MetricObserver
from kubeproxy.status.metrics import Metrics

LISTED = Size(1000)
"""Large enough: a list of less than 128 kB is not compressed."""
MOST_SHARE = 0.2
"""Of the bytes of the objects as JSON."""
_LIMIT_SECONDS = 300.0


class ListBytes(msgspec.Struct, frozen=True, gc=False):
    """What the first lists of a cluster took on the wire, and what its objects are as JSON."""

    size: Size
    sent: int
    json: int

    @property
    def is_met(self) -> bool:
        return self.sent <= self.json * MOST_SHARE

    def __str__(self) -> str:
        return (
            f"first lists at {self.size}: {self.sent / self.size.services:.0f} bytes a Service of "
            f"{self.json / self.size.services:.0f} as JSON "
            f"({'within' if self.is_met else 'BEYOND'} a share of {MOST_SHARE:g})"
        )


class _UntilSynced:
    """An inbox that forgets everything but how far the lists are."""

    def __init__(self) -> None:
        self._missing = set(Kind)
        self.done = asyncio.Event()

    def send(self, event: Event) -> None:
        if isinstance(event, Synced):
            self._missing.discard(event.kind)
            if not self._missing:
                self.done.set()


async def _list_bytes(size: Size) -> ListBytes:
    api = SmallApiServer()
    count = 0
    for index in range(size.services):
        for collection, item in (
            ("services", service_json(index)),
            ("endpointslices", slice_json(index, range(size.endpoints))),
        ):
            count += len(msgspec.json.encode(api.store.create(collection, "default", item)))
    async with api.serving():
        options = ApiServerOptions(master=api.url, qps=-1)
        source = ApiServerSource.open(options, MetricObserver(Metrics("nftables")))
        inbox = _UntilSynced()
        running = asyncio.create_task(source.run(inbox, NODE))
        try:
            async with asyncio.timeout(_LIMIT_SECONDS):
                await inbox.done.wait()
        finally:
            running.cancel()
            await asyncio.wait((running,))
            await source.close()
    return ListBytes(size, api.bytes_sent, count)


def list_bytes(size: Size) -> ListBytes:
    """Let the daemon's source list a cluster of this size, and count."""
    return asyncio.run(_list_bytes(size))
