"""A proxy as a whole: what `kpctl status` reports, and whether something is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import median

from msgspec import Struct

from kpctl.look.moments import duration_text, instant, moment
from kubeproxy.inspection.types import (
    Collection,
    FamilyStatus,
    History,
    Problem,
    Refused,
    Repair,
    Round,
    Status,
)

LAST_REPAIRS = 3


class FamilyReport(Struct, frozen=True, rename="camel"):
    """One IP family, without what is known of the node."""

    ip_family: str
    services: int
    service_ports: int
    endpoints: int
    items: int
    queued: int
    is_healthy: bool
    last_sync_at: datetime | None
    refused: tuple[Refused, ...] = ()


class RoundsReport(Struct, frozen=True, rename="camel"):
    """The last rounds. Lag is from the time of a change to its being in the kernel.

    It is known of changes of EndpointSlices whose controller noted the time.
    """

    total: int
    remembered: int
    failed: int
    median_seconds: float = 0.0
    worst_seconds: float = 0.0
    last: Round | None = None
    last_error: str = ""
    lag_changes: int = 0
    median_lag_seconds: float = 0.0
    worst_lag_seconds: float = 0.0


class StatusReport(Struct, frozen=True, rename="camel"):
    """The answer of `kpctl status`. `troubles` are empty if all is well.

    `checked` counts addresses whose health is checked, and `failing` those that fail.
    """

    origin: str
    version: str
    kubernetes: str
    process: int
    started_at: datetime
    now: datetime
    node: str
    mode: str
    source: str
    troubles: tuple[str, ...]
    families: tuple[FamilyReport, ...]
    collections: tuple[Collection, ...]
    rounds: RoundsReport
    repairs: int
    last_repairs: tuple[Repair, ...]
    problems: tuple[Problem, ...]
    checked: int = 0
    failing: int = 0


def status_report(origin: str, status: Status, history: History) -> StatusReport:
    """Report on a proxy."""
    return StatusReport(
        origin=origin,
        version=status.version,
        kubernetes=status.kubernetes,
        process=status.process,
        started_at=instant(status.started_at),
        now=instant(status.now),
        node=status.node,
        mode=status.mode,
        source=status.source,
        troubles=tuple(_troubles(status, history)),
        families=tuple(map(_family, status.families)),
        collections=status.collections,
        rounds=_rounds(status, history.rounds),
        repairs=status.repairs,
        last_repairs=history.repairs[-LAST_REPAIRS:],
        problems=status.problems,
        checked=status.checked,
        failing=status.failing,
    )


def _troubles(status: Status, history: History) -> Iterator[str]:
    for collection in status.collections:
        if collection.state == "failing":
            seconds = duration_text(collection.seconds)
            yield f"{collection.name} cannot be watched for {seconds}: {collection.problem}"
    for family in status.families:
        name = family.family.value
        if family.last_sync_at is None:
            yield f"{name} has not been synced yet"
        elif not family.is_healthy:
            yield f"{name} is not healthy: a sync is overdue"
        if family.refused:
            yield f"{name}: refused are {len(family.refused)} service ports or Services"
        rounds = [r for r in history.rounds if r.family is family.family]
        if rounds and rounds[-1].error:
            yield f"{name}: the last round failed: {rounds[-1].error}"
        searches = [s for s in history.flow_searches if s.family is family.family]
        if searches and searches[-1].error:
            ports = f"{searches[-1].owed} service ports"
            yield f"{name}: stale flows of {ports} may still exist: {searches[-1].error}"


def _family(status: FamilyStatus) -> FamilyReport:
    return FamilyReport(
        ip_family=status.family.value,
        services=status.services,
        service_ports=status.service_ports,
        endpoints=status.endpoints,
        items=status.items,
        queued=status.queued,
        is_healthy=status.is_healthy,
        last_sync_at=moment(status.last_sync_at),
        refused=status.refused,
    )


def _rounds(status: Status, rounds: Sequence[Round]) -> RoundsReport:
    failed = [each for each in rounds if each.error]
    lags = [each for each in rounds if each.latencies]
    seconds = [each.seconds for each in rounds]
    worst = [each.worst_latency_seconds for each in lags]
    return RoundsReport(
        total=status.rounds,
        remembered=len(rounds),
        failed=len(failed),
        median_seconds=median(seconds) if seconds else 0.0,
        worst_seconds=max(seconds, default=0.0),
        last=status.last_round,
        last_error=failed[-1].error if failed else "",
        lag_changes=sum(each.latencies for each in lags),
        median_lag_seconds=median(worst) if worst else 0.0,
        worst_lag_seconds=max(worst, default=0.0),
    )
