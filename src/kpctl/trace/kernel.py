"""What the kernel holds now, as items: read back through the sinks of the mode."""

from __future__ import annotations

from collections.abc import Mapping

from kpctl.snapshot.sockets import open_sockets
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import SCAFFOLD, AnyBackend, AnyItem, AnyValue, OpenSocket, OwnedChange
from kubeproxy.modes.userspace.items import Listener

Items = Mapping[AnyItem, AnyValue]


async def kernel_items(
    snapshot: Snapshot,
    family: Family,
    ports: Mapping[Listener, int],
    wanted: Items,
    *,
    is_live: bool,
) -> Items | None:
    """The items of the kernel in one family, or None where there is no kernel to ask.

    A running proxy programs the kernel of this network namespace, which is read. A bundle has what
    was read when it was written; manifests have none. Raises KernelError.
    """
    if is_live:
        return await _read(snapshot, family, ports, wanted)
    if snapshot.kernel is None or family not in snapshot.kernel:
        return None
    opened = (snapshot.open_sockets or {}).get(family, frozenset())
    found = settled(snapshot.backends[family], snapshot.kernel[family], wanted)
    return {**found, **_listeners(opened, ports, wanted)}


def settled(backend: AnyBackend, found: Items, wanted: Items) -> Items:
    """What the kernel holds, with what is under way as it is wanted.

    What drains, and a limit for that, which only the process that serves knows, is no difference.
    """
    return {
        item: wanted[item]
        if item in wanted and backend.is_under_way(OwnedChange(SCAFFOLD, item, value, wanted[item]))
        else value
        for item, value in found.items()
    }


async def _read(
    snapshot: Snapshot, family: Family, ports: Mapping[Listener, int], wanted: Items
) -> Items:
    backend = snapshot.backends[family]
    found: dict[AnyItem, AnyValue] = {}
    try:
        for sink in backend.kernel_sinks:
            found |= await sink.read()
    finally:
        await backend.close()
    opened = open_sockets(family).found if ports else frozenset()
    return {**settled(backend, found, wanted), **_listeners(opened, ports, wanted)}


def _listeners(
    sockets: frozenset[OpenSocket], ports: Mapping[Listener, int], wanted: Items
) -> Items:
    """Listeners of userspace mode whose socket is open.

    The sockets are the daemon's, so that its sink in this process holds none; and how a listener
    balances is known to the carrier alone, so it is taken to be as wanted.
    """
    opened = {(place.protocol, place.port) for place in sockets}
    return {
        listener: wanted[listener]
        for listener, port in ports.items()
        if listener in wanted and (listener.owner.protocol, port) in opened
    }
