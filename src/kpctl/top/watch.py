"""Takes samples of a running proxy, one per interval.

Plans are computed again when the proxy has had rounds since, but not so often that computing them
would take more than a small part of the time: at 10,000 Services that takes seconds.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

from kpctl.connections.gather import frontends_of
from kpctl.connections.select import Selection
from kpctl.snapshot.client import Client, find_socket
from kpctl.snapshot.live import read_live
from kpctl.top.sample import RefusedKey, Row, Sample, Traffic, refused_since, rounds_since, rows_of
from kpctl.top.sources import CarriedSource, EventSource, ListingSource, Source, are_events_on
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family

REFRESH_SHARE = 20
"""Plans are computed for at most one part in so many of the time."""
SHORTEST_REFRESH_SECONDS = 5.0

NOT_COUNTED = "refused packets are not counted in {} mode"


class Watch:
    """One proxy, sampled."""

    def __init__(self, socket: Path | None, selection: Selection) -> None:
        self._path = find_socket(socket)
        self._selection = selection
        self._client = Client(self._path)
        self._traffic = Traffic()
        self._refused: dict[Family, dict[RefusedKey, int]] | None = None
        self._notes: list[str] = []
        self._overruns = 0
        self._refresh()
        self._since = self._client.status().now
        self._source = self._open_source()

    def _refresh(self) -> None:
        started = time.monotonic()
        self.snapshot = read_live(self._path)
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
            rows=[row for row in rows if self._is_wanted(row)],
            rounds=rounds_since(history, self._since),
            overruns=overruns,
            notes=tuple(filter(None, (self._source.note, *dict.fromkeys(self._notes)))),
        )
        self._since = status.now
        if status.rounds != self._rounds and time.monotonic() >= self._refresh_at:
            self._refresh()
        return sample

    def _is_wanted(self, row: Row) -> bool:
        if not self._selection.port:
            return self._selection.has(row.owner)
        plans = self.snapshot.pipelines[row.family].plans_of(row.owner.service)
        return any(p.id == row.owner and self._selection.matches(p) for p in plans)

    def _read_refused(self) -> dict[Family, dict[RefusedKey, int]]:
        """What was refused since the last call, by family."""
        self._notes = []
        new: dict[Family, dict[RefusedKey, int]] = {}
        assert self._refused is not None
        for family, backend in self.snapshot.backends.items():
            try:
                counts = asyncio.run(backend.refused_packets())
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
