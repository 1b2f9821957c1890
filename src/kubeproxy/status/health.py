"""Is the proxy keeping up? The state machine behind /healthz, /livez and service health ports.

A family is late when a requested sync has waited longer than the timeout (twice the sync
period). Another request does not restart the wait; only a successful sync ends it. A family
without any successful sync counts as healthy: it is still starting.

The state and its functions are pure. Waiting is measured on a monotonic clock and shown times
come from the wall clock, and both are arguments. `ProxyHealth` holds the state for the single task
that writes it and the servers that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kubeproxy.facts.ids import Family
from kubeproxy.go.time import ZERO_TIME, format_rfc3339_nano


class FamilySync(msgspec.Struct, frozen=True, gc=False):
    """One family: since when a sync is owed, and when the last one succeeded."""

    pending_since: float | None = None
    updated_ns: int | None = None


class SyncState(msgspec.Struct, frozen=True):
    """The state of all families."""

    timeout_seconds: float
    families: Mapping[Family, FamilySync] = {}


class FamilyHealth(msgspec.Struct, frozen=True, gc=False):
    """The health of one family."""

    updated_ns: int
    is_healthy: bool


class Health(msgspec.Struct, frozen=True):
    """The health of the proxy. Families without a successful sync are not in it."""

    is_healthy: bool
    families: Mapping[Family, FamilyHealth]

    @property
    def updated_ns(self) -> int | None:
        """The time of the last successful sync of any family."""
        return max((f.updated_ns for f in self.families.values()), default=None)


class HealthResponse(msgspec.Struct, frozen=True, gc=False):
    """Status and JSON body of the response to a probe."""

    code: int
    body: bytes


def queue(state: SyncState, family: Family, monotonic: float) -> SyncState:
    """Record that a sync was requested. The oldest open request counts."""
    held = state.families.get(family, FamilySync())
    if held.pending_since is not None:
        return state
    return _with(state, family, FamilySync(monotonic, held.updated_ns))


def update(state: SyncState, family: Family, wall_ns: int) -> SyncState:
    """Record that a sync succeeded, or that the sync loop started."""
    return _with(state, family, FamilySync(None, wall_ns))


def assess(state: SyncState, monotonic: float) -> Health:
    """Return the health at this moment."""
    families = {
        family: FamilyHealth(held.updated_ns, not _is_late(held, state.timeout_seconds, monotonic))
        for family, held in sorted(state.families.items(), key=lambda item: item[0].value)
        if held.updated_ns is not None
    }
    return Health(all(f.is_healthy for f in families.values()), families)


def healthz_response(
    health: Health, wall_ns: int, *, eligible: bool, offset: int = 0
) -> HealthResponse:
    """Respond on `/healthz`: should load balancers send traffic to this node?"""
    return _response(health, wall_ns, health.is_healthy and eligible, eligible, offset)


def livez_response(health: Health, wall_ns: int, *, offset: int = 0) -> HealthResponse:
    """Respond on `/livez`: is the proxy itself working?"""
    return _response(health, wall_ns, health.is_healthy, None, offset)


def _with(state: SyncState, family: Family, held: FamilySync) -> SyncState:
    return SyncState(state.timeout_seconds, {**state.families, family: held})


def _is_late(held: FamilySync, timeout_seconds: float, monotonic: float) -> bool:
    return held.pending_since is not None and monotonic - held.pending_since >= timeout_seconds


def _response(
    health: Health, wall_ns: int, passed: bool, eligible: bool | None, offset: int
) -> HealthResponse:
    # Older releases of upstream showed the time of the last loop even when nothing had changed;
    # a passing response therefore always carries the present time.
    shown = wall_ns if passed else health.updated_ns
    body: dict[str, object] = {
        "lastUpdated": ZERO_TIME if shown is None else format_rfc3339_nano(shown, offset),
        "currentTime": format_rfc3339_nano(wall_ns, offset),
    }
    if eligible is not None:
        body["nodeEligible"] = eligible
    body["healthy"] = health.is_healthy
    if health.families:
        body["status"] = {f.value: _family_body(h, offset) for f, h in health.families.items()}
    return HealthResponse(200 if passed else 503, msgspec.json.encode(body))


def _family_body(family: FamilyHealth, offset: int) -> dict[str, object]:
    updated = format_rfc3339_nano(family.updated_ns, offset)
    return {"lastUpdated": updated, "healthy": family.is_healthy}


class ProxyHealth:
    """The current state, with the clocks of this process."""

    def __init__(
        self,
        timeout_seconds: float,
        *,
        monotonic: Callable[[], float],
        wall_ns: Callable[[], int],
        offset: Callable[[], int] = lambda: 0,
    ) -> None:
        self._state = SyncState(timeout_seconds)
        self._monotonic = monotonic
        self._wall_ns = wall_ns
        self._offset = offset
        self.is_waiting = False
        """Does another proxy serve? Then no sync is owed."""
        self.node_eligible = False
        """Is the Node known and not about to be deleted? Set by the observer of the Node."""

    def queued(self, family: Family) -> None:
        if self.is_waiting:
            return
        self._state = queue(self._state, family, self._monotonic())

    def updated(self, family: Family) -> None:
        self._state = update(self._state, family, self._wall_ns())

    def health(self) -> Health:
        return assess(self._state, self._monotonic())

    def is_healthy(self) -> bool:
        return self.health().is_healthy

    def healthz(self) -> HealthResponse:
        return healthz_response(
            self.health(), self._wall_ns(), eligible=self.node_eligible, offset=self._offset()
        )

    def livez(self) -> HealthResponse:
        return livez_response(self.health(), self._wall_ns(), offset=self._offset())
