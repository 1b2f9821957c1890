"""What a running proxy remembers so that it can be shown: rounds, repairs, changes, problems.

Everything is bounded, so that memory does not grow with time or with the cluster, and noting costs
about a microsecond per event. What must be computed to be shown, such as which endpoints a change
concerned, is computed when it is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import takewhile

from kubeproxy.facts.endpoint import Endpoint, SliceFacts
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.inspection.types import (
    Changed,
    EndpointChange,
    FlowSearch,
    Problem,
    Repair,
    Round,
)
from kubeproxy.sync.clock import Clock
from kubeproxy.sync.report import FlowReport, RoundReport

MOST_ROUNDS = 300
MOST_REPAIRS = 100
MOST_SEARCHES = 100
MOST_PROBLEMS = 100
MOST_SERVICES = 1000
"""Of how many Services the last change is remembered: those that changed last."""
MOST_SLICES = 200
"""Of how many changes of slices the endpoints are remembered. One may hold a thousand."""
MOST_CHECKED = 500
"""How many endpoints that began or ceased to fail their check are remembered."""


_SliceChange = tuple[float, Family, SliceFacts | None, SliceFacts | None]
"""When a slice changed, and how it was before and after: a plain tuple, because it is quick."""


class Journal:
    """The recent past of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_listed = False
        self._rounds: deque[Round] = deque(maxlen=MOST_ROUNDS)
        self._repairs: deque[Repair] = deque(maxlen=MOST_REPAIRS)
        self._searches: deque[FlowSearch] = deque(maxlen=MOST_SEARCHES)
        self._problems: dict[tuple[str, str, str], Problem] = {}
        self._changed: dict[ServiceName, tuple[int, float, tuple[str, ...]]] = {}
        """The last change of each Service with its revision, in the order of revisions."""
        self._revision = 0
        self._forgotten = 0
        """The revision of the last change that is not remembered."""
        self._slices: deque[_SliceChange] = deque(maxlen=MOST_SLICES)
        self._checked: deque[tuple[float, Family, ServiceName, str, str]] = deque(
            maxlen=MOST_CHECKED
        )
        self._succeeded: dict[Family, float] = {}
        self.round_count = 0
        self.repair_count = 0

    # --- events: see sync.intake.ChangeListener ---

    def listed(self) -> None:
        """Everything that existed at the start is known: what changes from now on is an event."""
        self._is_listed = True
        self._revision += 1
        self._forgotten = self._revision

    def service_changed(self, name: ServiceName, event: str) -> None:
        if self._is_listed:
            self._note(name, self._clock.time(), (event,))

    def slice_changed(
        self, family: Family, before: SliceFacts | None, after: SliceFacts | None
    ) -> None:
        facts = after or before
        if not self._is_listed or facts is None:
            return
        now, event = self._clock.time(), "changed" if after else "removed"
        if before is not None and before.service != facts.service:
            self._note(before.service, now, ("EndpointSlice", before.name, "moved away"))
        self._note(facts.service, now, ("EndpointSlice", facts.name, event))
        self._slices.append((now, family, before, after))

    def object_problem(self, kind: str, name: str, reason: str) -> None:
        key = (kind, name, reason)
        self._problems.pop(key, None)
        self._problems[key] = Problem(self._clock.time(), kind, name, reason)
        if len(self._problems) > MOST_PROBLEMS:
            del self._problems[next(iter(self._problems))]

    def endpoint_checked(
        self, family: Family, name: ServiceName, endpoint: str, reason: str
    ) -> None:
        """See sync.checks.CheckListener."""
        now, event = self._clock.time(), "fails its" if reason else "passes its"
        self._note(name, now, ("endpoint", endpoint, event, "health check"))
        self._checked.append((now, family, name, endpoint, reason))

    def _note(self, name: ServiceName, at: float, words: tuple[str, ...]) -> None:
        changed = self._changed
        changed.pop(name, None)
        self._revision += 1
        changed[name] = (self._revision, at, words)
        if len(changed) > MOST_SERVICES:
            self._forgotten = changed.pop(next(iter(changed)))[0]

    # --- rounds ---

    def round_finished(self, report: RoundReport) -> None:
        self.round_count += 1
        self._rounds.append(_round_of(report))
        if report.is_done:
            self._succeeded[report.family] = report.finished_at
        if report.drifted_items:
            self.repair_count += 1
            self._repairs.append(
                Repair(
                    at=report.finished_at,
                    family=report.family,
                    cause=report.drift,
                    items=report.drifted_items,
                    lines=report.drifted_lines,
                )
            )

    def flows_cleaned(self, report: FlowReport) -> None:
        self._searches.append(
            FlowSearch(
                at=report.finished_at,
                family=report.family,
                seconds=report.seconds,
                deleted=report.deleted,
                owed=report.owed,
                error=report.error or next(iter(report.refused), ""),
            )
        )

    # --- what is shown ---

    def rounds(self) -> tuple[Round, ...]:
        return tuple(self._rounds)

    def last_success(self, family: Family) -> float | None:
        """Return when a round of the family last succeeded."""
        return self._succeeded.get(family)

    def flow_searches(self) -> tuple[FlowSearch, ...]:
        return tuple(self._searches)

    def repairs(self) -> tuple[Repair, ...]:
        return tuple(self._repairs)

    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems.values())

    def changed(self, name: ServiceName) -> Changed | None:
        """Return the last change of a Service, or None if it is not remembered."""
        found = self._changed.get(name)
        return None if found is None else Changed(found[1], " ".join(found[2]))

    def services_with_endpoint_changes(self) -> set[ServiceName]:
        """Return the Services of which `endpoint_changes` may know something."""
        checked = {name for _, _, name, _, _ in self._checked}
        return checked | {name for change in self._slices for name in _services_of(change)}

    @property
    def revision(self) -> int:
        """A number that grows with every change of a Service."""
        return self._revision

    def changed_since(self, revision: int) -> tuple[ServiceName, ...] | None:
        """Return the Services that changed after a revision, or None if not all are remembered."""
        if not self._forgotten <= revision <= self._revision:
            return None
        recent = takewhile(lambda item: item[1][0] > revision, reversed(self._changed.items()))
        return tuple(name for name, _ in recent)

    def endpoint_changes(self, family: Family, name: ServiceName) -> tuple[EndpointChange, ...]:
        """Return which endpoints of a Service changed lately, the oldest first."""
        found = [
            found
            for change in self._slices
            if change[1] is family and name in _services_of(change)
            for found in _endpoint_changes(change)
        ]
        for at, of, service, endpoint, reason in self._checked:
            if (of, service) == (family, name):
                failing = f"failing: {reason}" if reason else "failing"
                words = ("passing", failing) if reason else (failing, "passing")
                found.append(EndpointChange(at, endpoint, *words))
        return tuple(sorted(found, key=lambda change: change.at))


def _round_of(report: RoundReport) -> Round:
    return Round(
        at=report.finished_at,
        family=report.family,
        is_full=report.is_full,
        seconds=report.duration_seconds,
        services=report.services,
        changes=report.changes,
        batches=report.batches,
        bytes_sent=report.bytes_sent,
        refused=report.held_back,
        error=report.error,
        latencies=len(report.programming_latencies),
        worst_latency_seconds=max(report.programming_latencies, default=0.0),
    )


def _services_of(change: _SliceChange) -> set[ServiceName]:
    return {facts.service for facts in change[2:] if facts is not None}


def _endpoint_changes(change: _SliceChange) -> Iterator[EndpointChange]:
    at, _, before_facts, after_facts = change
    before, after = _states(before_facts), _states(after_facts)
    for endpoint in sorted(before.keys() | after.keys()):
        old, new = before.get(endpoint, ""), after.get(endpoint, "")
        if old != new:
            yield EndpointChange(at, endpoint, old, new)


def _states(facts: SliceFacts | None) -> dict[str, str]:
    if facts is None:
        return {}
    return {e.text: endpoint_state(e) for _, endpoints in facts.endpoints for e in endpoints}


def endpoint_state(endpoint: Endpoint) -> str:
    """Return the state of an endpoint in words."""
    if endpoint.is_terminating:
        return "terminating, still serving" if endpoint.is_serving else "terminating"
    return "ready" if endpoint.is_ready else "not ready"
