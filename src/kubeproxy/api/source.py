"""Where objects come from, as a seam: an API server, a directory of manifests, or a test.

A source delivers events to an inbox and never looks back. It may repeat itself; it must say
`Synced` for a kind once everything that existed at its start has been delivered, and it must
find out by itself what vanished while it was not looking.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol, TypeAlias

from msgspec import Struct

from kubeproxy.api.objects import EndpointSlice, Node, Service, ServiceCIDR

Object: TypeAlias = Service | EndpointSlice | Node | ServiceCIDR


class Kind(Enum):
    """The kinds of objects the proxy watches; the value is the API's kind name."""

    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    NODE = "Node"
    SERVICE_CIDR = "ServiceCIDR"

    @property
    def object_type(self) -> type[Object]:
        return _OBJECT_TYPES[self]


_OBJECT_TYPES: dict[Kind, type[Object]] = {
    Kind.SERVICE: Service,
    Kind.ENDPOINT_SLICE: EndpointSlice,
    Kind.NODE: Node,
    Kind.SERVICE_CIDR: ServiceCIDR,
}


class Upsert(Struct, frozen=True):
    """This object exists and looks like this now."""

    kind: Kind
    object: Object


class Delete(Struct, frozen=True):
    """No object of this name exists any more (perhaps none ever did)."""

    kind: Kind
    namespace: str
    name: str


class Synced(Struct, frozen=True):
    """Everything of this kind that existed at the start has been delivered."""

    kind: Kind


class Undecodable(Struct, frozen=True):
    """An object that is not even of its kind's shape; what was known under its name stays."""

    kind: Kind
    name: str
    reason: str


Event: TypeAlias = Upsert | Delete | Synced | Undecodable


class Inbox(Protocol):
    """Takes events, at once and without waiting."""

    def send(self, event: Event) -> None: ...


class Source(Protocol):
    """Delivers events until cancelled."""

    async def run(self, inbox: Inbox) -> None: ...
