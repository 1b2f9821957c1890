"""The status as text, one screen of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from kpctl.look.moments import ago, duration_text, instant
from kpctl.look.output import plain_lines
from kpctl.report.status import FamilyReport, RoundsReport, StatusReport
from kpctl.report.text import Paragraph
from kubeproxy.inspection.types import Repair

MOST_LISTED = 5
"""How many of many similar things one screen shows."""
_FAMILY_HEADINGS = ("", "Services", "ports", "endpoints", "queued", "last sync", "healthy")


def status_text(status: StatusReport, *, is_wide: bool = False) -> Iterator[Paragraph]:
    """The whole screen. With `is_wide` nothing is shortened."""
    yield 0, f"kube-proxy {status.version} ({status.kubernetes}) on node {status.node}"
    yield (
        0,
        (
            f"{status.mode} mode, {' and '.join(f.ip_family for f in status.families)}, process"
            f" {status.process}, started {ago(status.started_at, status.now)}"
        ),
    )
    yield 0, "healthy" if not status.troubles else "NOT HEALTHY"
    yield from ((2, f"! {trouble}") for trouble in status.troubles)
    yield 0, ""
    yield 0, f"objects from {status.source}"
    yield from ((2, line) for line in _collections(status))
    yield 0, ""
    yield from ((0, line) for line in _families(status.families, status.now, is_wide=is_wide))
    yield 0, ""
    yield from _rounds(status.rounds, status.now)
    yield 0, f"repairs   {_repairs(status)}"
    yield from ((10, _repair(each, status.now)) for each in reversed(status.last_repairs))
    if status.checked:
        yield (
            0,
            f"checked   {status.checked} addresses of endpoints, of which {status.failing} fail",
        )
    refused = [
        f"{family.ip_family} {each.what}: {each.reason}"
        for family in status.families
        for each in family.refused
    ]
    yield from _listed("refused   ", refused, is_wide=is_wide)
    problems = [
        f"{ago(instant(p.at), status.now)}: {p.kind} {p.name}: {p.reason}"
        for p in reversed(status.problems)
    ]
    yield from _listed("unusable  ", problems, is_wide=is_wide)


def _collections(status: StatusReport) -> list[str]:
    rows = [
        (c.name, f"{c.state} for {duration_text(c.seconds)}" + (f": {c.problem}" * bool(c.problem)))
        for c in status.collections
    ]
    return plain_lines(rows) if rows else []


def _families(families: Sequence[FamilyReport], now: datetime, *, is_wide: bool) -> list[str]:
    rows = [
        (
            family.ip_family,
            str(family.services),
            str(family.service_ports),
            str(family.endpoints),
            str(family.queued),
            ago(family.last_sync_at, now) if family.last_sync_at else "never",
            "yes" if family.is_healthy else "NO",
            *([str(family.items)] if is_wide else []),
        )
        for family in families
    ]
    return plain_lines([(*_FAMILY_HEADINGS, *(["items"] if is_wide else [])), *rows])


def _rounds(rounds: RoundsReport, now: datetime) -> Iterator[Paragraph]:
    yield 0, f"rounds    {rounds.total}, of the last {rounds.remembered} failed {rounds.failed}"
    if rounds.last_error:
        yield 10, f"the last failure: {rounds.last_error}"
    if rounds.last is not None:
        last = rounds.last
        kind = "full" if last.is_full else "partial"
        yield (
            10,
            (
                f"the last {ago(instant(last.at), now)}: {last.family.value}, {kind},"
                f" {last.services} Services, {last.changes} changes, {_ms(last.seconds)}"
            ),
        )
        yield 10, f"median {_ms(rounds.median_seconds)}, worst {_ms(rounds.worst_seconds)}"
    if rounds.lag_changes:
        yield (
            0,
            (
                f"lag       {rounds.lag_changes} changes, from event to kernel: median"
                f" {_ms(rounds.median_lag_seconds)}, worst {_ms(rounds.worst_lag_seconds)}"
            ),
        )
    else:
        yield 0, "lag       not known: no change with a time of its own yet"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _repairs(status: StatusReport) -> str:
    if not status.repairs:
        return "none: no other program has changed our rules"
    return f"{status.repairs}, of what other programs changed; the last:"


def _repair(repair: Repair, now: datetime) -> str:
    count = "1 item" if repair.items == 1 else f"{repair.items} items"
    return f"{ago(instant(repair.at), now)}: {repair.family.value}, {count}: {repair.cause}"


def _listed(label: str, texts: Sequence[str], *, is_wide: bool) -> Iterator[Paragraph]:
    if not texts:
        yield 0, f"{label}none"
        return
    shown = texts if is_wide else texts[:MOST_LISTED]
    yield 0, f"{label}{len(texts)}"
    yield from ((10, text) for text in shown)
    if len(shown) < len(texts):
        yield 10, f"… and {len(texts) - len(shown)} more (-o wide shows all)"
