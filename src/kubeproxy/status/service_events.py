"""Kubernetes events on Services about what this node does with them, as an opt-in.

An event is recorded when a state begins, never for each round, and not for what holds already when
the proxy starts: restarting the proxies of a big cluster must write nothing. What every node would
report alike is left to the nodes that run an endpoint of the Service. A node records no more than a
few per minute, whatever happens. Repetitions are counted by `event_series`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.logs.limit import LogLimit
from kubeproxy.plan.claims import Claims, Conflict
from kubeproxy.plan.findings import (
    all_endpoints_fail,
    failing_endpoints,
    ignored_hints,
    invalid_annotations,
    is_refused_here,
    no_local_endpoints,
    refused_addresses,
    unsupported_algorithm,
    unsupported_draining,
)
from kubeproxy.plan.types import ServicePlan
from kubeproxy.status.event_series import NORMAL, WARNING, service_reference
from kubeproxy.status.events import Recorder
from kubeproxy.sync.pipeline import Pipeline

MOST_PER_MINUTE = 10

_Plans = tuple[ServicePlan, ...]


class ServiceEvents:
    """Compares what was decided about a Service with what was decided before."""

    def __init__(self, recorder: Recorder, limit: LogLimit | None = None) -> None:
        self._recorder = recorder
        self._limit = limit or LogLimit(burst=MOST_PER_MINUTE)
        self._claims: dict[Family, Claims] = {}

    def replanned(self, pipeline: Pipeline, replaced: Mapping[ServiceName, _Plans]) -> None:
        """Record what begins with these Services: they were planned again, from these plans."""
        family = pipeline.node.family
        is_first = family not in self._claims
        claims = self._claims.setdefault(family, Claims())
        for name, before in replaced.items():
            after = pipeline.plans_of(name)
            if before == after:
                continue
            conflicts = claims.replace(before, after)
            if not is_first:
                self._record_changes(name, before, after)
                self._record_conflicts(pipeline, conflicts)

    def _record_changes(self, name: ServiceName, before: _Plans, after: _Plans) -> None:
        service = service_reference(name)
        note = no_local_endpoints(after)
        if note and not no_local_endpoints(before) and self._limit.is_due():
            self._recorder.record(
                service, type=NORMAL, reason="NoLocalEndpoints", action="Plan", note=note
            )
        note = invalid_annotations(after)
        if note and note != invalid_annotations(before) and self._limit.is_due():
            self._recorder.record(
                service, type=WARNING, reason="InvalidAnnotation", action="Plan", note=note
            )
        note = unsupported_algorithm(after)
        if note and note != unsupported_algorithm(before) and self._limit.is_due():
            self._recorder.record(
                service, type=WARNING, reason="AlgorithmNotSupported", action="Plan", note=note
            )
        note = unsupported_draining(after)
        if note and note != unsupported_draining(before) and self._limit.is_due():
            self._recorder.record(
                service, type=WARNING, reason="DrainingNotSupported", action="Plan", note=note
            )
        note = failing_endpoints(after)
        if note and note != failing_endpoints(before) and self._limit.is_due():
            self._recorder.record(
                service, type=WARNING, reason="EndpointsUnhealthy", action="Plan", note=note
            )
        note = all_endpoints_fail(after)
        if note and not all_endpoints_fail(before) and self._limit.is_due():
            self._recorder.record(
                service, type=WARNING, reason="AllEndpointsUnhealthy", action="Plan", note=note
            )
        note = ignored_hints(after)
        if note and not ignored_hints(before) and self._limit.is_due():
            self._recorder.record(
                service, type=NORMAL, reason="HintsIgnored", action="Plan", note=note
            )

        note = refused_addresses(after)
        is_new = bool(note) and note != refused_addresses(before)
        if is_new and is_refused_here(after) and self._limit.is_due():
            self._recorder.record(
                service, type=WARNING, reason="AddressRefused", action="Plan", note=note
            )

    def _record_conflicts(self, pipeline: Pipeline, conflicts: list[Conflict]) -> None:
        for place, winner, loser in conflicts:
            is_here = any(plan.hairpin for plan in pipeline.plans_of(loser.service))
            if is_here and self._limit.is_due():
                self._recorder.record(
                    service_reference(loser.service),
                    type=WARNING,
                    reason="AddressConflict",
                    action="Plan",
                    note=f"{place} is claimed by {winner} as well, which gets all of its traffic",
                )
