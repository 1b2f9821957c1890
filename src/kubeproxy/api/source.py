"""Where objects come from, as a seam: an API server, a directory of manifests, or a test.

A source delivers events to an inbox and keeps no record of what the inbox does with them. It may
repeat events. It must send `Synced` for a kind once everything that existed at its start has been
delivered, and it must find out by itself which objects vanished while it could not watch. This is
the only event vocabulary: what a watch stream brings and what a manifest holds both end up here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol, TypeAlias

from msgspec import Struct

from kubeproxy.api.events import EventPoster
from kubeproxy.api.objects import EndpointSlice, Node, Service, ServiceCIDR

Object: TypeAlias = Service | EndpointSlice | Node | ServiceCIDR


class Kind(Enum):
    """The kinds of objects the proxy watches. The value is the API's kind name."""

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
    """The object exists and looks like this now, perhaps the same as before."""

    kind: Kind
    object: Object


class Delete(Struct, frozen=True):
    """No object of this name exists any more, or it left the selection. Perhaps none ever did."""

    kind: Kind
    namespace: str
    name: str


class Synced(Struct, frozen=True):
    """Everything of this kind that exists was delivered, and everything gone was deleted."""

    kind: Kind


class Undecodable(Struct, frozen=True):
    """An object does not have the shape of its kind. What was known under its name stays.

    `name` is `namespace/name`, or `name` for a cluster-wide object, or empty if it is unreadable.
    """

    kind: Kind
    name: str
    reason: str


Event: TypeAlias = Upsert | Delete | Synced | Undecodable


class Inbox(Protocol):
    """Takes events, at once and without waiting."""

    def send(self, event: Event) -> None: ...


class Seen(Enum):
    """Whether changes of a collection are seen."""

    LISTING = "listing"
    WATCHING = "watching"
    FAILING = "failing"


class CollectionState(Struct, frozen=True):
    """What a source can say about one of its collections. `seconds` is for how long it holds."""

    name: str
    seen: Seen
    seconds: float
    problem: str = ""


class Source(Protocol):
    """A place objects come from: an API server, or manifests."""

    @property
    def needs_node(self) -> bool:
        """Whether a node without a Node object is unfit to receive traffic."""

    @property
    def poster(self) -> EventPoster | None:
        """What carries Kubernetes events to the API server, or None without an API server."""

    @property
    def place(self) -> str:
        """Where objects come from, for people: an address or a path."""

    @property
    def files(self) -> Sequence[str]:
        """Files and folders that are used again while it runs."""

    def collections(self) -> Sequence[CollectionState]:
        """Whether changes are seen now, collection by collection."""

    async def find_node(self, name: str, *, needs_pod_cidrs: bool) -> Node | None:
        """Wait for the Node object as long as upstream would. Return None if there is none."""

    async def run(self, inbox: Inbox, node_name: str) -> None:
        """Deliver events until cancelled. Of Node objects only `node_name` is needed."""

    async def close(self) -> None:
        """Release connections."""
