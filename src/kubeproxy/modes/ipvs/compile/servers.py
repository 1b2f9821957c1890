"""From changes of virtual servers to the messages that bring them about. Pure.

Only what differs is sent. What comes is sent before what goes, so that a service is never without
a real server in between. Removed TCP real servers are not deleted here: whether they may go depends
on their connections (see `sinks.draining`). Likewise those of other protocols, where the Service
limits draining.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.facts.ids import Protocol
from kubeproxy.kernel.ipvs import wire
from kubeproxy.kernel.ipvs.wire import Service
from kubeproxy.modes.base import Batch, Change
from kubeproxy.modes.ipvs.items import Place, RealServer, ServerSpec, VirtualServer

DRAINED = frozenset({Protocol.TCP.number})
"""Protocols whose connections are worth waiting for. Peers of the others cope with a cut."""

_MESSAGES_PER_BATCH = 1000

ServerChange: TypeAlias = Change[VirtualServer, ServerSpec]


class ServerWork(Struct, frozen=True):
    """The messages about one virtual server.

    `spec` is what it becomes, None if it goes. `leaving` are real servers to drain once the
    messages have been sent.
    """

    server: VirtualServer
    spec: ServerSpec | None
    bodies: tuple[bytes, ...]
    leaving: tuple[RealServer, ...] = ()


ServerPayload: TypeAlias = tuple[ServerWork, ...]


def compile_servers(changes: Sequence[ServerChange]) -> Iterator[Batch[ServerPayload]]:
    """Batches of about a thousand messages; those of one virtual server stay together."""
    batch: list[ServerChange] = []
    works: list[ServerWork] = []
    messages = 0
    for change in changes:
        batch.append(change)
        works.append(compile_server(change.item, change.old, change.new))
        messages += len(works[-1].bodies)
        if messages >= _MESSAGES_PER_BATCH:
            yield _batch(batch, works)
            batch, works, messages = [], [], 0
    if batch:
        yield _batch(batch, works)


def _batch(changes: Sequence[ServerChange], works: Sequence[ServerWork]) -> Batch[ServerPayload]:
    size = sum(len(body) for work in works for body in work.bodies)
    return Batch(tuple(changes), tuple(works), size)


def compile_server(
    server: VirtualServer, old: ServerSpec | None, new: ServerSpec | None
) -> ServerWork:
    """The messages that turn `old` into `new`; None is absent."""
    key = format_key(server)
    if new is None:
        return ServerWork(server, None, (wire.format_service_key(wire.IPVS_CMD_DEL_SERVICE, key),))
    if old is None:
        head = _format_head(wire.IPVS_CMD_NEW_SERVICE, server, new)
        return ServerWork(server, new, (head, *_arrivals(key, (), new)))
    bodies = tuple(_arrivals(key, old.real_servers, new))
    if not new.has_head_of(old):
        bodies = (_format_head(wire.IPVS_CMD_SET_SERVICE, server, new), *bodies)
    wanted = {real.place for real in new.real_servers}
    leaving = tuple(real for real in old.real_servers if real.place not in wanted)
    if server.protocol in DRAINED or new.drain_seconds is not None:
        return ServerWork(server, new, bodies, leaving)
    return ServerWork(server, new, (*bodies, *(format_delete(key, real.place) for real in leaving)))


def _arrivals(key: bytes, present: Sequence[RealServer], new: ServerSpec) -> Iterator[bytes]:
    """Messages for the real servers that are missing, and for those that are not as wanted."""
    held = {real.place: real for real in present}
    for wanted in new.real_servers:
        found = held.get(wanted.place)
        if found != wanted:
            command = wire.IPVS_CMD_SET_DEST if found else wire.IPVS_CMD_NEW_DEST
            yield wire.format_destination(command, key, *wanted.place, wanted.weight)


def format_key(server: VirtualServer) -> bytes:
    """The attribute that names this virtual server."""
    return wire.format_key(server.protocol, server.address, server.port)


def _format_head(command: int, server: VirtualServer, spec: ServerSpec) -> bytes:
    return wire.format_service(
        command,
        Service(
            protocol=server.protocol,
            address=server.address,
            port=server.port,
            scheduler=spec.scheduler,
            flags=spec.flags,
            timeout_seconds=spec.timeout_seconds,
        ),
    )


def format_quiesce(key: bytes, place: Place) -> bytes:
    """Body that ends new connections to a real server; the present ones go on."""
    return wire.format_destination(wire.IPVS_CMD_SET_DEST, key, *place, 0)


def format_delete(key: bytes, place: Place) -> bytes:
    """Body that deletes a real server."""
    return wire.format_destination_key(wire.IPVS_CMD_DEL_DEST, key, *place)
