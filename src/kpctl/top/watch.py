"""Takes samples of a running proxy, one per interval.

Plans are computed again when the proxy has had rounds since, but not so often that computing them
would take more than a small part of the time: at 10,000 Services that takes seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from kpctl.connections.gather import frontends_of
from kpctl.snapshot.client import Client, find_socket
from kpctl.snapshot.live import read_live
from kpctl.snapshot.target import NothingFound, Target, service_ports
from kpctl.snapshot.types import Snapshot
from kpctl.top.sample import (
    RefusedKey,
    Sample,
    Traffic,
    chosen,
    refused_since,
    rounds_since,
    rows_of,
)
from kpctl.top.sources import CarriedSource, EventSource, ListingSource, Source, are_events_on
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyBackend, RefusedPackets
from kubeproxy.plan.frontends import Frontends

REFRESH_SHARE = 20
"""Plans are computed for at most one part in so many of the time."""
SHORTEST_REFRESH_SECONDS = 5.0

NOT_COUNTED = "refused packets are counted in {} mode only if kube-proxy has --service-metrics"


class Watch:
    """One proxy, sampled."""

    def __init__(
        self,
        socket: Path | None,
        target: Target,
        *,
        pod: str = "",
        snapshot: Snapshot | None = None,
    ) -> None:
        """Begin with a snapshot that was just taken, or take one. Raises ProxyError."""
        self._path = find_socket(socket)
        self._target = target
        self._pod = pod
        self._client = Client(self._path)
        self._traffic = Traffic()
        self._refused: dict[Family, dict[RefusedKey, int]] | None = None
        self._notes: list[str] = []
        self._overruns = 0
        self._refresh(snapshot)
        self._since = self._client.status().now
        self._chosen = service_ports(self.snapshot, target)
        self._source = self._open_source()

    def _refresh(self, snapshot: Snapshot | None = None) -> None:
        started = time.monotonic()
        self.snapshot = snapshot or read_live(self._path)
        self._frontends = frontends_of(self.snapshot)
        status = self.snapshot.status
        self._rounds = status.rounds if status else 0
        took = time.monotonic() - started
        self._refresh_at = time.monotonic() + max(took * REFRESH_SHARE, SHORTEST_REFRESH_SECONDS)

    def _open_source(self) -> Source:
        if self.snapshot.mode == "userspace":
            return CarriedSource(Client(self._path))
        if not are_events_on():
            return ListingSource()
        return EventSource()

    def sample(self, seconds: float) -> Sample:
        """Wait for an interval and return what happened in it. Raises ProxyError."""
        started = time.monotonic()
        if self._refused is None:
            self._refused = {}
            self._read_refused()
        self._source.wait(self._frontends, self._traffic, started + seconds)
        refused = self._read_refused()
        status, history = self._client.status(), self._client.history()
        rows = rows_of(self._traffic.take(), refused)
        overruns, self._overruns = self._source.overruns - self._overruns, self._source.overruns
        sample = Sample(
            seconds=time.monotonic() - started,
            rows=rows,
            rounds=rounds_since(history, self._since),
            overruns=overruns,
            notes=tuple(filter(None, (self._source.note, *dict.fromkeys(self._notes)))),
        )
        self._since = status.now
        if status.rounds != self._rounds and time.monotonic() >= self._refresh_at:
            self._refresh()
            with suppress(NothingFound):  # it may come back
                self._chosen = service_ports(self.snapshot, self._target)
        return chosen(sample, self._chosen, self._pod)

    def _read_refused(self) -> dict[Family, dict[RefusedKey, int]]:
        """What was refused since the last call, by family."""
        self._notes = []
        new: dict[Family, dict[RefusedKey, int]] = {}
        assert self._refused is not None
        for family, backend in self.snapshot.backends.items():
            try:
                counts = asyncio.run(_refused_packets(backend, self._frontends[family]))
            except KernelError as error:
                self._notes.append(f"refused packets cannot be read: {error}")
                continue
            if counts is None:
                self._notes.append(NOT_COUNTED.format(self.snapshot.mode))
                continue
            new[family], self._refused[family] = refused_since(
                self._refused.get(family, {}), counts
            )
        return new

    def close(self) -> None:
        with closing(self._client):
            self._source.close()


async def _refused_packets(
    backend: AnyBackend, frontends: Frontends
) -> Sequence[RefusedPackets] | None:
    try:
        return await backend.refused_packets(frontends)
    finally:
        await backend.close()
