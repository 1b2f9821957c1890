"""Where events become facts: decode each object per family and pass the facts to the engines.

The inbox of every source. A bad object is named, counted and left out; what was known under its
name stays, so that one mistake never takes down what works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from kubeproxy.api import objects
from kubeproxy.api.decode import (
    decode_service,
    decode_service_cidrs,
    decode_slice,
    decode_zone,
    is_selected_service,
    is_selected_slice,
    service_name,
)
from kubeproxy.api.source import Delete, Event, Kind, Synced, Undecodable, Upsert
from kubeproxy.errors import ObjectError, fault_text
from kubeproxy.facts.address import family_of
from kubeproxy.facts.endpoint import SliceFacts
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.facts.node import NodeFacts
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import MOST_OBJECTS, LogLimit
from kubeproxy.sync.engine import Engine

logger = get_logger(__name__)

BURST = 10
"""How often the problems of one object are logged per minute."""
MOST_PROBLEMS = 20
"""How many problems of one object are logged at a time."""


class Counters(Protocol):
    """Counts events; implemented by the metrics."""

    def service_event(self, pending: int) -> None: ...

    def slice_event(self, pending: int) -> None: ...

    def object_rejected(self, kind: str) -> None: ...


class ChangeListener(Protocol):
    """Receives what changed, to be shown to people; implemented by the journal."""

    def listed(self) -> None: ...

    def service_changed(self, name: ServiceName, event: str) -> None: ...

    def slice_changed(
        self, family: Family, before: SliceFacts | None, after: SliceFacts | None
    ) -> None: ...

    def object_problem(self, kind: str, name: str, reason: str) -> None: ...


class IgnoreChanges:
    """A `ChangeListener` without effect, where no one can ask."""

    def listed(self) -> None: ...

    def service_changed(self, name: ServiceName, event: str) -> None: ...

    def slice_changed(
        self, family: Family, before: SliceFacts | None, after: SliceFacts | None
    ) -> None: ...

    def object_problem(self, kind: str, name: str, reason: str) -> None: ...


class NodeListener(Protocol):
    """Receives changes of the Node object that do not concern planning: health and restarts."""

    def node_changed(self, node: objects.Node) -> None: ...

    def node_deleted(self) -> None: ...


class Intake:
    """Takes events for all families."""

    def __init__(
        self,
        engines: Mapping[Family, Engine],
        node_name: str,
        *,
        counters: Counters,
        node_listener: NodeListener,
        started_at: float,
        changes: ChangeListener | None = None,
    ) -> None:
        self._engines = engines
        self._node_name = node_name
        self._counters = counters
        self._node_listener = node_listener
        self._changes = changes or IgnoreChanges()
        self._started_at = started_at
        self._awaited = {Kind.SERVICE, Kind.ENDPOINT_SLICE}
        self._service_cidrs: dict[str, tuple[str, ...]] = {}
        # Any user may change an object many times per second. All changes are counted.
        self._log_limit = LogLimit(burst=BURST, most_keys=MOST_OBJECTS)

    def send(self, event: Event) -> None:
        """Take one event. Never raises, whatever an object holds."""
        match event:
            case Upsert(kind=kind, object=found):
                self._upsert(kind, found)
            case Delete(kind=kind, namespace=namespace, name=name):
                self._delete(kind, namespace, name)
            case Synced(kind=kind):
                self._synced(kind)
            case Undecodable(kind=kind, name=name, reason=reason):
                self._reject(kind, name, reason)

    def _upsert(self, kind: Kind, found: object) -> None:
        try:
            match found:
                case objects.Service():
                    self._take_service(found)
                case objects.EndpointSlice():
                    self._take_slice(found)
                case objects.Node():
                    self._take_node(found)
                case objects.ServiceCIDR():
                    self._take_service_cidr(found)
        except ObjectError as error:
            self._reject(kind, _name_of(found), str(error))
        except Exception as fault:  # a fault of ours must not let one object stop the others
            self._reject(kind, _name_of(found), fault_text(fault))

    def _delete(self, kind: Kind, namespace: str, name: str) -> None:
        match kind:
            case Kind.SERVICE:
                self._delete_service(ServiceName(namespace, name))
            case Kind.ENDPOINT_SLICE:
                self._delete_slice(namespace, name)
            case Kind.NODE:
                self._node_listener.node_deleted()
            case Kind.SERVICE_CIDR:
                self._service_cidrs.pop(name, None)
                self._service_cidrs_changed()

    def _reject(self, kind: Kind, name: str, reason: str) -> None:
        self._counters.object_rejected(kind.value)
        self._changes.object_problem(kind.value, name, reason)
        if self._log_limit.is_due(f"{kind.value} {name}"):
            message = "Object cannot be used and is left out"
            logger.error(reason, message, kind=kind.value, name=name)

    def _report_problems(self, kind: Kind, name: object, problems: tuple[str, ...]) -> None:
        if not problems:
            return
        self._counters.object_rejected(kind.value)
        for problem in problems[:MOST_PROBLEMS]:
            self._changes.object_problem(kind.value, str(name), problem)
        if not self._log_limit.is_due(f"{kind.value} {name}"):
            return
        for problem in problems[:MOST_PROBLEMS]:
            logger.error(problem, "Part of an object is left out", kind=kind.value, name=name)
        if (more := len(problems) - MOST_PROBLEMS) > 0:
            message = "Further parts of an object are left out"
            logger.error(None, message, kind=kind.value, name=name, count=more)

    # --- Services ---

    def _take_service(self, service: objects.Service) -> None:
        name = service_name(service)
        if not is_selected_service(service):
            self._delete_service(name)
            return
        # All families are decoded before one is changed: a bad object changes nothing.
        decoded = {family: decode_service(service, family, name) for family in self._engines}
        for family, engine in self._engines.items():
            result = decoded[family]
            if result.facts is None:
                changed = engine.delete_service(name)
            else:
                changed = engine.set_service(result.facts)
            self._counters.service_event(engine.service_changes_pending)
            if changed:
                self._changes.service_changed(name, "Service changed")
                self._report_problems(Kind.SERVICE, name, result.problems)

    def _delete_service(self, name: ServiceName) -> None:
        for engine in self._engines.values():
            if engine.delete_service(name):
                self._changes.service_changed(name, "Service removed")
            self._counters.service_event(engine.service_changes_pending)

    # --- EndpointSlices ---

    def _take_slice(self, endpoint_slice: objects.EndpointSlice) -> None:
        meta = endpoint_slice.metadata
        if not is_selected_slice(endpoint_slice):
            self._delete_slice(meta.namespace, meta.name)
            return
        decoded = decode_slice(endpoint_slice, self._node_name)
        # Deleted and created again between two watches, a slice may return in the other family.
        self._delete_slice(meta.namespace, meta.name, keep=decoded.family)
        engine = self._engines.get(decoded.family)
        if engine is None:
            return
        before = engine.slice(meta.namespace, meta.name)
        fresh = decoded.trigger_time is not None and decoded.trigger_time > self._started_at
        changed = engine.set_slice(
            decoded.facts, trigger_time=decoded.trigger_time if fresh else None
        )
        self._counters.slice_event(engine.slice_changes_pending)
        if changed:
            self._changes.slice_changed(decoded.family, before, decoded.facts)
            name = f"{meta.namespace}/{meta.name}"
            self._report_problems(Kind.ENDPOINT_SLICE, name, decoded.problems)

    def _delete_slice(self, namespace: str, name: str, *, keep: Family | None = None) -> None:
        """Take the slice from every family but `keep`."""
        for family, engine in self._engines.items():
            before = engine.slice(namespace, name)
            if family is not keep and engine.delete_slice(namespace, name):
                self._changes.slice_changed(family, before, None)
                self._counters.slice_event(engine.slice_changes_pending)

    # --- Node and ServiceCIDRs ---

    def _take_node(self, node: objects.Node) -> None:
        if node.metadata.name != self._node_name:
            return
        zone = decode_zone(node)
        self._change_node(lambda facts: replace(facts, zone=zone))
        self._node_listener.node_changed(node)

    def _take_service_cidr(self, found: objects.ServiceCIDR) -> None:
        name, decoded = found.metadata.name, decode_service_cidrs(found)
        if self._service_cidrs.get(name) != decoded.cidrs:
            self._report_problems(Kind.SERVICE_CIDR, name, decoded.problems)
        self._service_cidrs[name] = decoded.cidrs
        self._service_cidrs_changed()

    def _service_cidrs_changed(self) -> None:
        """Two objects may name the same network; it stays until the last of them is gone."""
        known = sorted({cidr for cidrs in self._service_cidrs.values() for cidr in cidrs})

        def with_cidrs(facts: NodeFacts) -> NodeFacts:
            own = tuple(cidr for cidr in known if family_of(cidr) is facts.family)
            return replace(facts, service_cidrs=own)

        self._change_node(with_cidrs)

    def addresses_changed(self, addresses: Mapping[Family, tuple[str, ...]]) -> None:
        """The host's own addresses are now these."""
        self._change_node(lambda facts: facts.with_addresses(addresses[facts.family]))

    def _change_node(self, change: Callable[[NodeFacts], NodeFacts]) -> None:
        for engine in self._engines.values():
            engine.set_node(change(engine.node))

    # --- the gate ---

    def _synced(self, kind: Kind) -> None:
        """No kernel write, and above all no delete, before both lists are complete."""
        if kind not in self._awaited:
            return
        self._awaited.discard(kind)
        if not self._awaited:
            self._changes.listed()
            for engine in self._engines.values():
                engine.mark_synced()


def _name_of(found: object) -> str:
    meta = getattr(found, "metadata", None)
    if not isinstance(meta, objects.ObjectMeta):
        return ""
    return f"{meta.namespace[:80]}/{meta.name[:80]}" if meta.namespace else meta.name[:80]
