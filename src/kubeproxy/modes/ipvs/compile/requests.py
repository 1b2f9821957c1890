"""From a change of one virtual server to the messages that bring it about. Pure.

Only what differs is said. What comes is said before what goes, so that a service is never without
a real server in between. Removed TCP real servers are not deleted here: whether they may go
depends on their connections (see `graceful`).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from kubeproxy.facts.ids import Protocol
from kubeproxy.kernel.ipvs import wire as ipvs
from kubeproxy.kernel.ipvs.wire import Service
from kubeproxy.modes.ipvs.items import Destination, ServerSpec, VirtualServer

DRAINED = frozenset({Protocol.TCP.number})
"""Protocols whose connections are worth waiting for; the others' peers cope with a cut."""


class Work(Struct, frozen=True):
    """Messages about one virtual server, and the real servers to let go of afterwards."""

    server: VirtualServer
    bodies: tuple[bytes, ...]
    leaving: tuple[Destination, ...] = ()


def key_of(server: VirtualServer) -> bytes:
    return ipvs.format_key(server.protocol, server.address, server.port)


def compile_change(server: VirtualServer, old: ServerSpec | None, new: ServerSpec | None) -> Work:
    """What turns `old` into `new`; None is absent."""
    key = key_of(server)
    if new is None:
        return Work(server, (ipvs.format_service_key(ipvs.DEL_SERVICE, key),))
    if old is None:
        return Work(server, (_head(ipvs.NEW_SERVICE, server, new), *_arrivals(key, (), new)))
    head = () if new.has_head_of(old) else (_head(ipvs.SET_SERVICE, server, new),)
    wanted = {d.place for d in new.destinations}
    leaving = tuple(d for d in old.destinations if d.place not in wanted)
    arrivals = tuple(_arrivals(key, old.destinations, new))
    if server.protocol in DRAINED:
        return Work(server, (*head, *arrivals), leaving)
    return Work(server, (*head, *arrivals, *(delete(key, d) for d in leaving)))


def _head(command: int, server: VirtualServer, spec: ServerSpec) -> bytes:
    return ipvs.format_service(
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


def _arrivals(key: bytes, present: tuple[Destination, ...], new: ServerSpec) -> Iterator[bytes]:
    """Real servers to add, and those to set right."""
    held = {d.place: d for d in present}
    for wanted in new.destinations:
        found = held.get(wanted.place)
        if found is None:
            yield _destination(ipvs.NEW_DEST, key, wanted)
        elif found != wanted:
            yield _destination(ipvs.SET_DEST, key, wanted)


def _destination(command: int, key: bytes, destination: Destination) -> bytes:
    return ipvs.format_destination(
        command, key, destination.address, destination.port, destination.weight
    )


def quiesce(key: bytes, destination: Destination) -> bytes:
    """No new connections, the present ones go on."""
    return ipvs.format_destination(ipvs.SET_DEST, key, destination.address, destination.port, 0)


def delete(key: bytes, destination: Destination) -> bytes:
    return ipvs.format_destination_key(ipvs.DEL_DEST, key, destination.address, destination.port)


def second_try(body: bytes) -> bytes:
    """The same wish for a thing that is there after all (NEW → SET), or is not (SET → NEW)."""
    twin = {
        ipvs.NEW_SERVICE: ipvs.SET_SERVICE,
        ipvs.NEW_DEST: ipvs.SET_DEST,
        ipvs.SET_DEST: ipvs.NEW_DEST,
    }
    return bytes((twin[body[0]],)) + body[1:]
