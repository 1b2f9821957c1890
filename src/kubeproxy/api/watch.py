"""List pages and watch bytes of one kind of object, turned into events. No I/O.

A `Tracker` is fed pages and bytes in the order they arrive and returns events: those of `source`,
and a few that only concern the stream (`Progress`, `Shortened`, `Failed`, `Garbled`, `Ignored`). It
remembers which objects it has announced, so that a new list finds deletions that no watch reported,
and it remembers the resource version to continue from.

It promises that nothing keeps the raw JSON: an object is decoded once, straight into its trimmed
type. An object that cannot be decoded is reported and does not disturb the others, whatever it
makes the decoder raise (`json_text`). Sending requests, waiting and retrying are left to
`reflector`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from kubeproxy.api.json_text import CUT, NotJson, parse_json
from kubeproxy.api.objects import ObjectMeta
from kubeproxy.api.source import Delete, Event, Kind, Object, Synced, Undecodable, Upsert

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark that closes a streaming list."""

GONE = 410
MOST_LINE_BYTES = 16 << 20
"""The limit of upstream's client. An API server stores no object of even half its size."""


class ObjectKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """Namespace (empty for cluster-wide objects) and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Progress(msgspec.Struct, frozen=True, gc=False):
    """A bookmark: nothing changed, and a watch may continue from this version."""

    resource_version: str


class Shortened(msgspec.Struct, frozen=True, gc=False):
    """An object was decoded without a part that nests too deeply. Once per object version."""

    name: str
    resource_version: str


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The server ended the stream with a Status."""

    status: Status


class Garbled(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are no list and no event. What they meant is lost, so list again."""

    reason: str


class Ignored(msgspec.Struct, frozen=True, gc=False):
    """An event of an unknown type."""

    type: str


WatchEvent: TypeAlias = Event | Progress | Shortened | Failed | Garbled | Ignored


class Page(msgspec.Struct, frozen=True):
    """The events of one list page, and the token of the next page (empty on the last).

    An object is decoded when its event is taken, so that a large page is not in memory twice. All
    of them must be taken, in order.
    """

    events: Iterable[WatchEvent]
    continue_token: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The part of a Status that is meant for programs."""

    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True, gc=False):
    """The error object of the API server."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None

    @property
    def is_expired(self) -> bool:
        return self.code == GONE or self.reason in ("Expired", "Gone")


class _Meta(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Stamped(msgspec.Struct, gc=False):
    """Any object, reduced to what the protocol needs."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)

    @property
    def ends_initial_events(self) -> bool:
        return (self.metadata.annotations or {}).get(INITIAL_EVENTS_END) == "true"


class _Line(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMeta
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_LINE = msgspec.json.Decoder(_Line)
_LIST = msgspec.json.Decoder(_List)
_STAMPED = msgspec.json.Decoder(_Stamped)
_STATUS = msgspec.json.Decoder(Status)


def decode_status(body: bytes) -> Status:
    """Decode the Status in an error body. Return an empty one where the body is something else."""
    try:
        return parse_json(_STATUS, body).value
    except NotJson:
        return Status()


class LineSplitter:
    """Joins bytes that arrive in pieces of any size into lines. Never returns half a line."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.held_bytes = 0
        """The bytes of the line that is not complete."""

    def feed(self, chunk: bytes) -> list[bytes]:
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._rest.append(chunk)
            self.held_bytes += len(chunk)
            return []
        lines[0] = b"".join((*self._rest, lines[0]))
        self._rest = [lines.pop()]
        self.held_bytes = len(self._rest[0])
        return [line for line in lines if line.strip()]


class Tracker:
    """The objects of one kind as far as they were announced, and the version to continue from."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._decoder: msgspec.json.Decoder[Object] = msgspec.json.Decoder(kind.object_type)
        self._known: set[ObjectKey] = set()
        self._unseen: set[ObjectKey] | None = None
        self._shortened: dict[ObjectKey, str] = {}
        self._lines = LineSplitter()
        self.resource_version = ""

    @property
    def is_listing(self) -> bool:
        """Whether a list is under way that is not complete yet."""
        return self._unseen is not None

    def begin_list(self) -> None:
        """Start a new list. Objects that it does not name by its end count as deleted."""
        self._unseen = set(self._known)
        self.begin_stream()

    def begin_stream(self) -> None:
        """Start a new response. Half a line left over from the last one is forgotten."""
        self._lines = LineSplitter()

    def feed_page(self, body: bytes) -> Page:
        """Take one page of a paged list. The last page ends the list."""
        try:
            parsed = parse_json(_LIST, body)
        except NotJson as error:
            return Page((Garbled(f"the list cannot be read: {error}"),))
        page = parsed.value
        # What a list does not name counts as deleted, so it must be a list for certain: a Status,
        # a single object or what some proxy answers has no items either.
        if page.kind != f"{self._kind.value}List" or not page.metadata.resource_version:
            reason = f"the answer is no {self._kind.value}List, its kind is {page.kind[:80]!r}"
            return Page((Garbled(reason),))
        return Page(self._page_events(page, parsed.is_repaired), page.metadata.continue_)

    def _page_events(self, page: _List, was_repaired: bool) -> Iterator[WatchEvent]:
        for raw in page.items or ():
            yield from self._upsert(raw, was_repaired)
        if not page.metadata.continue_:
            yield from self._finish(page.metadata.resource_version)

    def feed(self, chunk: bytes) -> list[WatchEvent]:
        """Take some bytes of a watch stream. `Failed` and `Garbled` end it."""
        events: list[WatchEvent] = []
        for line in self._lines.feed(chunk):
            events += self._feed_line(line)
            if events and isinstance(events[-1], Failed | Garbled):
                return events
        if self._lines.held_bytes > MOST_LINE_BYTES:
            events.append(Garbled(f"a watch event has more than {MOST_LINE_BYTES} bytes"))
        return events

    def _feed_line(self, line: bytes) -> Iterable[WatchEvent]:
        try:
            parsed = parse_json(_LINE, line)
            found = parsed.value
            if found.type in ("ADDED", "MODIFIED"):
                return self._upsert(found.object, parsed.is_repaired)
            if found.type == "ERROR":
                return (Failed(decode_status(bytes(found.object))),)
            stamped = parse_json(_STAMPED, found.object).value
        except NotJson as error:
            return (Garbled(f"a watch event cannot be read: {error}"),)
        if found.type == "DELETED":
            return self._delete(stamped)
        if found.type == "BOOKMARK":
            return self._bookmark(stamped)
        return (Ignored(found.type),)

    def _upsert(self, raw: msgspec.Raw, was_repaired: bool) -> Iterable[WatchEvent]:
        """Decode an object from a text that was repaired or not."""
        try:
            parsed = parse_json(self._decoder, raw)
        except NotJson as error:
            return (self._undecodable(raw, str(error)),)
        key = self._note(parsed.value.metadata)
        self._known.add(key)
        event = Upsert(self._kind, parsed.value)
        if parsed.is_repaired or (was_repaired and CUT in bytes(raw)):
            return (*self._shorten(key, parsed.value.metadata.resource_version), event)
        return (event,)

    def _shorten(self, key: ObjectKey, version: str) -> Iterable[WatchEvent]:
        if self._shortened.get(key) == version:
            return ()
        self._shortened[key] = version
        return (Shortened(str(key), version),)

    def _undecodable(self, raw: msgspec.Raw, reason: str) -> Event:
        """Name the object if possible: a named one is not taken for deleted by the list."""
        try:
            key = self._note(parse_json(_STAMPED, raw).value.metadata)
        except NotJson:
            key = ObjectKey("", "")
        return Undecodable(self._kind, str(key), reason)

    def _note(self, metadata: ObjectMeta | _Meta) -> ObjectKey:
        """Record that this object was seen. Return its key."""
        # Namespaces repeat for thousands of objects: keep one copy of each.
        key = ObjectKey(sys.intern(metadata.namespace), metadata.name)
        # Within a list objects come in any order and only its end carries a version to continue
        # from; outside a list each object carries its own.
        if self._unseen is not None:
            self._unseen.discard(key)
        else:
            self._advance(metadata.resource_version)
        return key

    def _delete(self, stamped: _Stamped) -> Iterable[Event]:
        key = self._note(stamped.metadata)
        if key not in self._known:
            return ()
        self._known.discard(key)
        self._shortened.pop(key, None)
        return (Delete(self._kind, key.namespace, key.name),)

    def _bookmark(self, stamped: _Stamped) -> Iterable[WatchEvent]:
        version = stamped.metadata.resource_version
        if self._unseen is None:
            self._advance(version)
            return (Progress(version),)
        return self._finish(version) if stamped.ends_initial_events else ()

    def _finish(self, version: str) -> list[Event]:
        """End the list at this version. Return deletions of what it did not name, and `Synced`."""
        gone = self._unseen or set()
        self._known -= gone
        for key in gone:
            self._shortened.pop(key, None)
        self._unseen = None
        self._advance(version)
        deletions = [Delete(self._kind, key.namespace, key.name) for key in sorted(gone)]
        return [*deletions, Synced(self._kind)]

    def _advance(self, version: str) -> None:
        self.resource_version = version or self.resource_version
