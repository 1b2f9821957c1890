"""Keeps a board current: asks the daemon only while a page asks, and only for what changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from kpctl.dashboard.board import Board
from kpctl.snapshot.client import Client, find_socket
from kpctl.snapshot.live import snapshot_of
from kpctl.snapshot.types import Snapshot
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import ServiceName
from kubeproxy.inspection.types import Held, History, Status

FRESH_SECONDS = 0.5
"""So long an answer of the daemon serves all pages."""


class Feed(Protocol):
    """Where a board comes from."""

    board: Board

    async def refresh(self) -> None: ...

    async def refresh_service(self, name: ServiceName) -> None: ...


class StillFeed:
    """A bundle or manifests: nothing ever changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.board = Board(snapshot, is_live=False)

    async def refresh(self) -> None:
        pass

    async def refresh_service(self, name: ServiceName) -> None:
        pass


class _Update(Struct, frozen=True):
    status: Status
    history: History | None
    services: Mapping[ServiceName, tuple[Held, ...]]


class LiveFeed:
    """A running daemon. What it does not answer is shown on the board, and asked for again."""

    def __init__(
        self, socket: Path | None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Read everything once. Raises ProxyError."""
        self._client = Client(find_socket(socket))
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._mark = ""
        self.board = Board(self._read_all(), is_live=True)
        self._asked_at = monotonic()

    async def refresh(self) -> None:
        """Ask for what changed, unless that was done a moment ago."""
        async with self._lock:
            if self._monotonic() - self._asked_at < FRESH_SECONDS:
                return
            await self._ask(self._read)
            self._asked_at = self._monotonic()

    async def refresh_service(self, name: ServiceName) -> None:
        """Ask for one Service, whose page shows more than its row: lately changed endpoints."""
        async with self._lock:
            await self._ask(lambda: self._read(name))

    async def _ask(self, read: Callable[[], Snapshot | _Update]) -> None:
        try:
            found = await asyncio.to_thread(read)
        except ProxyError as error:
            self._client.close()
            self.board.problem = str(error)
            return
        self.board.problem = ""
        if isinstance(found, Snapshot):
            self.board.load(found)
        else:
            self.board.update(found.status, found.history, found.services)

    def _read(self, *more: ServiceName) -> Snapshot | _Update:
        status, changes = self._client.status(), self._client.changes(self._mark)
        held = self.board.snapshot.status
        if held is None or changes.is_reset or _basis(status) != _basis(held):
            return self._read_all()
        is_past = (status.rounds, status.repairs) == (held.rounds, held.repairs)
        names = dict.fromkeys((*changes.names, *more))
        services = {name: self._client.service(name) for name in names}
        history = None if is_past else self._client.history()
        # Only now: after a failure in between, the same changes are asked for again.
        self._mark = changes.mark
        return _Update(status, history, services)

    def _read_all(self) -> Snapshot:
        mark = self._client.changes().mark  # before the rest: what changes meanwhile is read again
        status, history = self._client.status(), self._client.history()
        origin = f"kube-proxy on node {status.node}"
        snapshot = snapshot_of(origin, status, history, self._client.services())
        self._mark = mark
        return snapshot


def _basis(status: Status) -> object:
    """All that plans depend on besides the Services."""
    nodes = tuple(each.node for each in status.families)
    return status.process, status.started_at, status.mode, bytes(status.config), nodes
