"""What the kernel holds now of what is a proxy's, read in the network namespace that is current."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from kpctl.snapshot.sockets import open_sockets
from kpctl.snapshot.types import KernelState, Snapshot
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyBackend, AnyItem, AnyValue, OpenSocket


async def with_kernel(snapshot: Snapshot) -> Snapshot:
    """The same with what the kernel here holds now. Raises KernelError."""
    kernel = await read_kernel(snapshot.backends)
    sockets = {family: _open_sockets(snapshot, family) for family in snapshot.backends}
    return replace(snapshot, kernel=kernel, open_sockets=sockets)


def _open_sockets(snapshot: Snapshot, family: Family) -> frozenset[OpenSocket]:
    """The sockets that are wanted and open."""
    listening, backend = open_sockets(family), snapshot.backends[family]
    fragments = snapshot.pipelines[family].fragments().values()
    wanted = (place for fragment in fragments for place in backend.open_sockets(fragment))
    return frozenset(place for place in wanted if place in listening)


async def read_kernel(backends: Mapping[Family, AnyBackend]) -> KernelState:
    """Read every family; nothing is changed. Raises KernelError."""
    return {family: await _read(backend) for family, backend in backends.items()}


async def _read(backend: AnyBackend) -> dict[AnyItem, AnyValue]:
    found: dict[AnyItem, AnyValue] = {}
    try:
        await backend.probe()
        for sink in backend.kernel_sinks:
            found |= await sink.read()
    finally:
        await backend.close()
    return found
