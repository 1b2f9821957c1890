"""What the API server says about one kind of object, as events; no I/O.

A `Tracker` is fed list pages and watch bytes in the order they arrive and answers with events. It
knows which objects it has announced, so that a new list finds deletions that were never seen, and
it knows the resource version to continue from.

It promises that nothing keeps the raw JSON: an object is decoded once, straight into its trimmed
type. One object that cannot be decoded is reported and does not disturb the others. Asking, waiting
and trying again are left to `reflector`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark that closes a streaming list."""

GONE = 410


class ObjectKey(NamedTuple):
    """Namespace (empty for cluster-wide objects) and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Metadata(Protocol):
    """The part of an object's metadata that the protocol needs."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def resource_version(self) -> str: ...


class Tracked(Protocol):
    """Any decoded API object."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=Tracked)


def key_of(tracked: Tracked) -> ObjectKey:
    """The key; namespaces repeat for thousands of objects, so one copy of each is kept."""
    return ObjectKey(sys.intern(tracked.metadata.namespace), tracked.metadata.name)


class Upsert(msgspec.Struct, Generic[T], frozen=True):
    """The object exists and looks like this; it may be the same as before."""

    object: T


class Delete(msgspec.Struct, frozen=True, gc=False):
    """An object announced before exists no more, or no longer matches the selector."""

    key: ObjectKey


class Undecodable(msgspec.Struct, frozen=True, gc=False):
    """An object that cannot be used; what was announced before about it stays."""

    key: ObjectKey
    reason: str


class Synced(msgspec.Struct, frozen=True, gc=False):
    """A list is complete: everything that exists was announced, everything gone was deleted."""

    resource_version: str


class Progress(msgspec.Struct, frozen=True, gc=False):
    """A bookmark: nothing changed, but the watch may continue from here."""

    resource_version: str


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The server ended the stream with a Status."""

    status: Status

    @property
    def is_expired(self) -> bool:
        return self.status.is_expired


class Garbled(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are no answer to our question; what they meant to say is lost, so list again."""

    reason: str


class Ignored(msgspec.Struct, frozen=True, gc=False):
    """An event of a type we do not know."""

    type: str


Event: TypeAlias = Upsert[T] | Delete | Undecodable | Synced | Progress | Failed | Garbled | Ignored


class Page(msgspec.Struct, Generic[T], frozen=True):
    """The events of one list page, and the token of the next page (empty on the last)."""

    events: tuple[Event[T], ...]
    continue_token: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The part of a Status that tells machines what to do."""

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
    items: list[msgspec.Raw] | None = None


_LINE = msgspec.json.Decoder(_Line)
_LIST = msgspec.json.Decoder(_List)
_STAMPED = msgspec.json.Decoder(_Stamped)
_STATUS = msgspec.json.Decoder(Status)


def decode_status(body: bytes) -> Status:
    """The Status in an error body; an empty one where the body is something else."""
    try:
        return _STATUS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Status()


class LineSplitter:
    """Bytes in pieces of any size → whole lines. A line without its end is never handed out."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._rest.append(chunk)
            return []
        lines[0] = b"".join((*self._rest, lines[0]))
        self._rest = [lines.pop()]
        return [line for line in lines if line.strip()]


class Tracker(Generic[T]):
    """The objects of one kind as far as they were announced, and how to go on from here."""

    def __init__(self, decoder: msgspec.json.Decoder[T]) -> None:
        self._decoder = decoder
        self._known: set[ObjectKey] = set()
        self._unseen: set[ObjectKey] | None = None
        self._lines = LineSplitter()
        self.resource_version = ""

    @property
    def is_listing(self) -> bool:
        """Is a list under way that is not complete yet?"""
        return self._unseen is not None

    def begin_list(self) -> None:
        """A new list starts: what it does not name by its end is gone."""
        self._unseen = set(self._known)
        self.begin_stream()

    def begin_stream(self) -> None:
        """A new response starts; what the last one left half-said is forgotten."""
        self._lines = LineSplitter()

    def feed_page(self, body: bytes) -> Page[T]:
        """One page of a paged list; the last page ends the list."""
        try:
            page = _LIST.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Page((Garbled(f"the list cannot be read: {error}"),))
        events = [self._upsert(raw) for raw in page.items or ()]
        if not page.metadata.continue_:
            events += self._finish(page.metadata.resource_version)
        return Page(tuple(events), page.metadata.continue_)

    def feed(self, chunk: bytes) -> list[Event[T]]:
        """Some bytes of a watch stream; `Failed` and `Garbled` end it."""
        events: list[Event[T]] = []
        for line in self._lines.feed(chunk):
            events += self._feed_line(line)
            if events and isinstance(events[-1], Failed | Garbled):
                break
        return events

    def _feed_line(self, line: bytes) -> Iterable[Event[T]]:
        try:
            parsed = _LINE.decode(line)
            if parsed.type in ("ADDED", "MODIFIED"):
                return (self._upsert(parsed.object),)
            if parsed.type == "ERROR":
                return (Failed(decode_status(bytes(parsed.object))),)
            stamped = _STAMPED.decode(parsed.object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return (Garbled(f"a watch event cannot be read: {error}"),)
        if parsed.type == "DELETED":
            return self._delete(stamped)
        if parsed.type == "BOOKMARK":
            return self._bookmark(stamped)
        return (Ignored(parsed.type),)

    def _upsert(self, raw: msgspec.Raw) -> Event[T]:
        try:
            decoded = self._decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            return self._undecodable(raw, str(error))
        self._known.add(self._note(decoded))
        return Upsert(decoded)

    def _undecodable(self, raw: msgspec.Raw, reason: str) -> Event[T]:
        """Its name is usually readable, which keeps the relist from taking it for deleted."""
        try:
            return Undecodable(self._note(_STAMPED.decode(raw)), reason)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Undecodable(ObjectKey("", ""), reason)

    def _note(self, tracked: Tracked) -> ObjectKey:
        """Within a list the end carries the version; outside each object carries its own."""
        key = key_of(tracked)
        if self._unseen is not None:
            self._unseen.discard(key)
        else:
            self._advance(tracked.metadata.resource_version)
        return key

    def _delete(self, stamped: _Stamped) -> Iterable[Event[T]]:
        key = self._note(stamped)
        if key not in self._known:
            return ()
        self._known.discard(key)
        return (Delete(key),)

    def _bookmark(self, stamped: _Stamped) -> Iterable[Event[T]]:
        version = stamped.metadata.resource_version
        if self._unseen is None:
            self._advance(version)
            return (Progress(version),)
        return self._finish(version) if stamped.ends_initial_events else ()

    def _finish(self, version: str) -> list[Event[T]]:
        gone = self._unseen or set()
        self._known -= gone
        self._unseen = None
        self._advance(version)
        return [*(Delete(key) for key in sorted(gone)), Synced(version)]

    def _advance(self, version: str) -> None:
        self.resource_version = version or self.resource_version
