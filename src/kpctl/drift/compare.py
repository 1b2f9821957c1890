"""What the kernel has against what is wanted: the differences, by family and owner.

A running proxy changes both sides while they are read. So a difference counts only if a second
look, with facts and kernel read again, still has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator, Mapping

from msgspec import Struct

from kpctl.snapshot.kernel import read_kernel
from kpctl.snapshot.sockets import open_sockets
from kpctl.snapshot.target import ServicePorts, Target, service_ports
from kpctl.snapshot.types import KernelState, Snapshot
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyBackend, AnyChange, AnyItem, OpenSocket, Owner
from kubeproxy.sync.edits import Edit, edits_of
from kubeproxy.sync.pipeline import Pipeline

PAUSE_SECONDS = 1.0
"""Between two looks: as long as a proxy usually takes for a change, and for a repair."""

NOT_WANTED = "nothing of ours"
"""The owner of what the kernel has and nothing wants."""


class Look(Struct, frozen=True):
    """One look at one family: what differs, and the sockets on which nothing listens."""

    wanted: int
    changes: Mapping[AnyItem, AnyChange]
    closed: Mapping[OpenSocket, Owner] = {}

    @property
    def differs(self) -> bool:
        return bool(self.changes or self.closed)

    def lasting(self, later: Look) -> Look:
        """The later look without what this one did not have."""
        return Look(
            later.wanted,
            {item: change for item, change in later.changes.items() if item in self.changes},
            {place: owner for place, owner in later.closed.items() if place in self.closed},
        )


class FamilyDrift(Struct, frozen=True):
    """How one family stands. `wanted` and `differing` count items.

    `edits` are by owner. `left_out` counts the owners that have none of them, to save time.
    """

    family: Family
    wanted: int
    differing: int
    edits: tuple[Edit, ...]
    left_out: int = 0


class Shown(Struct, frozen=True):
    """What is shown of differences: those of some Services, and of some owners to save time."""

    target: Target = Target()
    most_owners: int | None = None


async def look_twice(
    snapshot: Snapshot, again: Callable[[], Snapshot], pause: Callable[[], object]
) -> tuple[Snapshot, Mapping[Family, Look]]:
    """Compare with the kernel as it is now. `again` returns a fresh snapshot after `pause`.

    Return the snapshot that was looked at last, and what differed from it both times.
    """
    looks = look(snapshot, await read_kernel(snapshot.backends))
    if any(found.differs for found in looks.values()):
        pause()
        snapshot = await asyncio.to_thread(again)  # it probes tools in an event loop of its own
        later = look(snapshot, await read_kernel(snapshot.backends))
        looks = {f: looks[f].lasting(found) for f, found in later.items() if f in looks}
    return snapshot, looks


def look_back(snapshot: Snapshot, kernel: KernelState) -> Mapping[Family, Look]:
    """Compare a snapshot with the kernel and the sockets of its own moment."""
    return look(snapshot, kernel, lambda family: (snapshot.open_sockets or {}).get(family, ()))


def look(
    snapshot: Snapshot,
    kernel: KernelState,
    listening: Callable[[Family], Container[OpenSocket]] = open_sockets,
) -> Mapping[Family, Look]:
    """Compare a snapshot with what the kernel holds, and with the sockets that are open."""
    return {
        family: _look(pipeline, snapshot.backends[family], kernel, listening(family))
        for family, pipeline in snapshot.pipelines.items()
        if family in kernel
    }


def _look(
    pipeline: Pipeline,
    backend: AnyBackend,
    kernel: KernelState,
    listening: Container[OpenSocket],
) -> Look:
    # What a probe of tools and kernel has found out may be rendered differently.
    pipeline.render_all()
    found = kernel[backend.family]
    changes: dict[AnyItem, AnyChange] = {}
    for sink in backend.kernel_sinks:
        ours = {item: value for item, value in found.items() if isinstance(item, sink.item_types)}
        pipeline.resync(sink, ours)
        changes |= {
            change.item: change
            for change in pipeline.changes(sink)
            if not backend.is_under_way(change)
        }
    return Look(len(pipeline.ledger), changes, dict(_closed(pipeline, backend, listening)))


def _closed(
    pipeline: Pipeline, backend: AnyBackend, listening: Container[OpenSocket]
) -> Iterator[tuple[OpenSocket, Owner]]:
    for owner, fragment in pipeline.fragments().items():
        for place in backend.open_sockets(fragment):
            if place not in listening:
                yield place, owner


def drift_of(
    snapshot: Snapshot, looks: Mapping[Family, Look], shown: Shown | None = None
) -> tuple[FamilyDrift, ...]:
    """The differences as lines for people. Raises NothingFound."""
    shown = shown or Shown()
    only = service_ports(snapshot, shown.target)
    return tuple(
        _family_drift(snapshot.backends[family], found, only, shown.most_owners)
        for family, found in looks.items()
    )


def _family_drift(
    backend: AnyBackend, found: Look, only: ServicePorts | None, most_owners: int | None
) -> FamilyDrift:
    def is_asked_for(owner: Owner | None) -> bool:
        return only is None or (owner is not None and (backend.family, owner) in only)

    differing = [c for c in backend.explained(found.changes.values()) if is_asked_for(c.owner)]
    owners = list(dict.fromkeys(change.owner for change in differing))
    shown = set(owners[:most_owners])
    changes = (change for change in differing if change.owner in shown)
    silent = {at: owner for at, owner in found.closed.items() if is_asked_for(owner)}
    closed = (Edit(str(owner), (), (_closed_text(at),)) for at, owner in silent.items())
    return FamilyDrift(
        backend.family,
        found.wanted,
        len(differing) + len(silent),
        (*edits_of(backend, changes, NOT_WANTED), *closed),
        left_out=len(owners) - len(shown),
    )


def _closed_text(place: OpenSocket) -> str:
    where = join_host_port(place.address, place.port)
    return f"a socket on {where}/{place.protocol.value}"
