"""Events as values: their bodies, and which of them repeat.

The same event again within six minutes becomes a series: the second occurrence patches the first
event, further ones are only counted, and the count is written every half hour and when the series
ends. Time is an argument and there is no I/O. Delivery is left to `events`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kubeproxy.api.events import EventRequest
from kubeproxy.facts.ids import ServiceName
from kubeproxy.go.time import NANO, format_rfc3339_micro

NORMAL: Literal["Normal"] = "Normal"
WARNING: Literal["Warning"] = "Warning"
CONTROLLER = "kube-proxy"

FINISH_NS = 6 * 60 * NANO
REFRESH_NS = 30 * 60 * NANO


class Reference(msgspec.Struct, frozen=True, gc=False):
    """The core object an event is about. A Node has no namespace."""

    kind: str
    name: str
    namespace: str = ""

    def body(self) -> dict[str, str]:
        fields = {"kind": self.kind, "namespace": self.namespace, "name": self.name}
        return {k: v for k, v in fields.items() if v} | {"apiVersion": "v1"}


class Event(msgspec.Struct, frozen=True):
    """One occurrence, at the time it happened."""

    regarding: Reference
    type: str
    reason: str
    action: str
    note: str
    time_ns: int

    @property
    def key(self) -> tuple[Reference, str, str, str]:
        """Events with equal keys are one series. The note may differ."""
        return (self.regarding, self.type, self.reason, self.action)

    @property
    def namespace(self) -> str:
        return self.regarding.namespace or "default"

    @property
    def name(self) -> str:
        return f"{self.regarding.name}.{self.time_ns:x}"


class Series(msgspec.Struct, frozen=True, gc=False):
    """How often an event has occurred, and when last."""

    count: int
    last_ns: int


def service_reference(service: ServiceName) -> Reference:
    return Reference("Service", service.name, service.namespace)


class Write(msgspec.Struct, frozen=True):
    """An event to be written, whole or (with a series) as a patch."""

    event: Event
    series: Series | None = None


class SeriesBook:
    """Knows which events repeat. Holds at most one entry per kind of event and object."""

    def __init__(self) -> None:
        self._held: dict[tuple[Reference, str, str, str], Write] = {}

    def observe(self, event: Event, now_ns: int) -> Write | None:
        """Take an event. Return what to write now, or None if it is only counted."""
        held = self._held.get(event.key)
        if held is None:
            self._held[event.key] = Write(event)
            return Write(event)
        count = held.series.count if held.series else 1
        write = Write(held.event, Series(count + 1, now_ns))
        self._held[event.key] = write
        return None if held.series else write

    def refresh(self) -> list[Write]:
        """Return a write of every series, so that the API server keeps it."""
        return [write for write in self._held.values() if write.series]

    def finish(self, now_ns: int) -> list[Write]:
        """Forget events that no longer repeat. Return the final writes of their series."""
        ended = [key for key, write in self._held.items() if _last_ns(write) < now_ns - FINISH_NS]
        return [write for write in map(self._held.pop, ended) if write.series]


def _last_ns(write: Write) -> int:
    return write.series.last_ns if write.series else write.event.time_ns


def event_body(write: Write, instance: str) -> bytes:
    """Return the whole event as the API server takes it."""
    event = write.event
    body: dict[str, object] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": event.namespace},
        "eventTime": format_rfc3339_micro(event.time_ns),
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "action": event.action,
        "reason": event.reason,
        "regarding": event.regarding.body(),
        "type": event.type,
    }
    if event.note:
        body["note"] = event.note
    if write.series:
        body["series"] = _series_body(write.series)
    return msgspec.json.encode(body)


def _series_body(series: Series) -> dict[str, object]:
    return {"count": series.count, "lastObservedTime": format_rfc3339_micro(series.last_ns)}


def create_request(write: Write, instance: str) -> EventRequest:
    """Return the request that creates the event, with its series if it has one."""
    event = write.event
    return EventRequest("POST", event.namespace, event.name, event_body(write, instance))


def write_request(write: Write, instance: str) -> EventRequest:
    """Return a patch if the event exists already, otherwise the request that creates it."""
    if write.series is None:
        return create_request(write, instance)
    body = msgspec.json.encode({"series": _series_body(write.series)})
    return EventRequest("PATCH", write.event.namespace, write.event.name, body)
