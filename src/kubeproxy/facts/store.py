"""The tables of facts of one IP family, and which Services changed since the last round.

Events may repeat, arrive late or be a delete of what never existed: every call compares with what
is held and returns whether anything changed. The cost of a call is the size of one Service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from kubeproxy.facts.endpoint import (
    Endpoint,
    PortKey,
    SliceFacts,
    merge_rotation,
    merge_slices,
)
from kubeproxy.facts.ids import ServiceName
from kubeproxy.facts.policy import Rotation
from kubeproxy.facts.service import ServiceFacts


class Dirty(Struct, frozen=True):
    """What changed since the last round: Services to plan again, and when each change began."""

    services: frozenset[ServiceName]
    trigger_times: Mapping[ServiceName, tuple[float, ...]] = {}


class _Pending(Struct):
    """One Service's changes that no round has taken yet."""

    previous: ServiceFacts | None
    current: ServiceFacts | None


class _SliceName(Struct, frozen=True, gc=False):
    """Namespace and name of a slice."""

    namespace: str
    name: str


class Store:
    """Services and slices of one family, and the dirty set."""

    def __init__(self) -> None:
        self._services: dict[ServiceName, ServiceFacts] = {}
        # Most Services have one slice. A dictionary for it would take four times as much memory.
        self._slices: dict[ServiceName, tuple[SliceFacts, ...]] = {}
        self._slice_by_name: dict[_SliceName, SliceFacts] = {}
        self._pending_services: dict[ServiceName, _Pending] = {}
        self._failing: dict[ServiceName, Mapping[str, str]] = {}
        self._dirty_by_slices: set[ServiceName] = set()
        self._dirty_by_checks: set[ServiceName] = set()
        self._trigger_times: dict[ServiceName, list[float]] = {}
        self.slice_changes_pending = 0

    @property
    def service_changes_pending(self) -> int:
        return len(self._pending_services)

    @property
    def is_dirty(self) -> bool:
        return bool(self._pending_services or self._dirty_by_slices or self._dirty_by_checks)

    def names(self) -> frozenset[ServiceName]:
        """Every Service that has an object or slices."""
        return frozenset(self._services.keys() | self._slices.keys())

    def service(self, name: ServiceName) -> ServiceFacts | None:
        return self._services.get(name)

    def set_service(self, facts: ServiceFacts) -> bool:
        """Hold this Service. Return whether it differs from what was held."""
        return self._change_service(facts.name, facts)

    def delete_service(self, name: ServiceName) -> bool:
        return self._change_service(name, None)

    def _change_service(self, name: ServiceName, facts: ServiceFacts | None) -> bool:
        held = self._services.get(name)
        if held == facts:
            return False
        if facts is None:
            del self._services[name]
        else:
            self._services[name] = facts
        pending = self._pending_services.setdefault(name, _Pending(previous=held, current=facts))
        pending.current = facts
        if pending.previous == facts:
            # Back where it was before the round: nothing to do for it.
            del self._pending_services[name]
        return True

    def set_slice(self, facts: SliceFacts, *, trigger_time: float | None = None) -> bool:
        """Hold this slice. Return whether it differs from what was held under its name."""
        key = _SliceName(facts.service.namespace, facts.name)
        held = self._slice_by_name.get(key)
        if held == facts:
            return False
        if held is not None:
            self._drop_slice(held)
        self._slice_by_name[key] = facts
        self._slices[facts.service] = (*self._slices.get(facts.service, ()), facts)
        if trigger_time is not None:
            self._trigger_times.setdefault(facts.service, []).append(trigger_time)
        self._dirty_by_slices.add(facts.service)
        self.slice_changes_pending += 1
        return True

    def slice(self, namespace: str, slice_name: str) -> SliceFacts | None:
        return self._slice_by_name.get(_SliceName(namespace, slice_name))

    def known(self) -> Iterator[ServiceName]:
        """Every Service that has an object or slices, those with an object first."""
        yield from self._services
        yield from self._slices.keys() - self._services.keys()

    def has_slices(self, name: ServiceName) -> bool:
        return name in self._slices

    def slices(self, name: ServiceName) -> tuple[SliceFacts, ...]:
        """The slices of one Service, in the order of their names."""
        return tuple(sorted(self._slices.get(name, ()), key=lambda facts: facts.name))

    def delete_slice(self, namespace: str, slice_name: str) -> bool:
        held = self._slice_by_name.pop(_SliceName(namespace, slice_name), None)
        if held is None:
            return False
        self._drop_slice(held)
        self._trigger_times.pop(held.service, None)
        self.slice_changes_pending += 1
        return True

    def _drop_slice(self, held: SliceFacts) -> None:
        left = tuple(facts for facts in self._slices[held.service] if facts is not held)
        if left:
            self._slices[held.service] = left
        else:
            del self._slices[held.service]
        self._dirty_by_slices.add(held.service)

    def slice_names(self) -> Iterator[tuple[str, str]]:
        """Namespace and name of every slice held."""
        return iter([(key.namespace, key.name) for key in self._slice_by_name])

    def service_names(self) -> frozenset[ServiceName]:
        """Every Service that has an object."""
        return frozenset(self._services)

    def endpoints(self, name: ServiceName) -> Mapping[PortKey, tuple[Endpoint, ...]]:
        """The merged endpoints of one Service."""
        return merge_slices(self._slices.get(name, ()))

    def rotation(self, name: ServiceName) -> Rotation:
        """What decides about the shares of one Service's endpoints."""
        found = merge_rotation(self._slices.get(name, ()))
        failing = self._failing.get(name)
        return replace(found, failing=failing) if failing else found

    def failing(self, name: ServiceName) -> Mapping[str, str]:
        """Return why endpoints of a Service fail their check, by endpoint."""
        return self._failing.get(name, {})

    def set_failing(self, name: ServiceName, failing: Mapping[str, str]) -> bool:
        """Hold which endpoints fail their check. Return whether that differs from before."""
        if failing == self.failing(name):
            return False
        self._failing.pop(name, None)
        if failing:
            self._failing[name] = failing
        self._dirty_by_checks.add(name)
        return True

    def take_dirty(self) -> Dirty:
        """Return what changed since the last call, and start a new dirty set."""
        dirty = Dirty(
            services=frozenset(
                self._pending_services.keys() | self._dirty_by_slices | self._dirty_by_checks
            ),
            trigger_times={name: tuple(times) for name, times in self._trigger_times.items()},
        )
        self._pending_services.clear()
        self._dirty_by_slices.clear()
        self._dirty_by_checks.clear()
        self._trigger_times.clear()
        self.slice_changes_pending = 0
        return dirty
