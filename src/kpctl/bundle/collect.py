"""What goes into a bundle: one reading of a proxy, and what commands would show of its node now.

The proxy is read once, and everything else is made from that. Only if the kernel differs from what
it wants are both read once more: a round may have been under way in between. What cannot be read is
left out, with a note, because a helper can use the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from kpctl.connections.gather import gather
from kpctl.doctor.examine import examine_host
from kpctl.drift.compare import PAUSE_SECONDS, look_back
from kpctl.drift.hooks import others_of
from kpctl.snapshot.bundle import Head
from kpctl.snapshot.client import Client
from kpctl.snapshot.kernel import with_kernel
from kpctl.snapshot.live import read_live
from kpctl.snapshot.target import Target
from kpctl.snapshot.types import Snapshot
from kpctl.top.watch import Watch
from kubeproxy.errors import ProxyError

MOST_FLOWS = 1000

T = TypeVar("T")


class Collected(Struct, frozen=True):
    """What to write, and what was left out and why."""

    snapshot: Snapshot
    head: Head
    notes: tuple[str, ...] = ()


def collect(path: Path, interval_seconds: float) -> Collected:
    """Read the proxy at the socket and its node. Raises ProxyError if no proxy answers."""
    snapshot, notes = read_live(path), Notes()
    found = notes.attempt("what the kernel holds", lambda: _with_kernel(snapshot, path))
    if found is not None:
        snapshot = found
    head = Head(
        findings=msgspec.to_builtins(examine_host(snapshot)),
        connections=notes.attempt("connections", lambda: _connections(snapshot, path)),
        sample=notes.attempt("`kpctl top`", lambda: _sample(snapshot, path, interval_seconds)),
        others=notes.attempt("others on our hooks", lambda: _run(others_of(snapshot))),
    )
    return Collected(snapshot, head, tuple(notes.texts))


class Notes:
    """What was left out."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what `read` does, or None with a note."""
        try:
            return read()
        except ProxyError as error:
            self.texts.append(f"{what}: left out, because {error}")
            return None


def _run(awaitable: Awaitable[T]) -> T:
    async def wait() -> T:
        return await awaitable

    return asyncio.run(wait())


def _with_kernel(snapshot: Snapshot, path: Path) -> Snapshot:
    found = _run(with_kernel(snapshot))
    assert found.kernel is not None
    if any(each.differs for each in look_back(found, found.kernel).values()):
        time.sleep(PAUSE_SECONDS)
        found = _run(with_kernel(read_live(path)))
    return found


def _connections(snapshot: Snapshot, path: Path) -> list[object]:
    with closing(Client(path)) as client:
        tally = gather(snapshot, client, limit=MOST_FLOWS)
    found: list[object] = msgspec.to_builtins(tally.groups())
    return found


def _sample(snapshot: Snapshot, path: Path, seconds: float) -> dict[str, object]:
    with closing(Watch(path, Target(), snapshot=snapshot)) as watch:
        found: dict[str, object] = msgspec.to_builtins(watch.sample(seconds))
    return found
