"""Differences, repairs and others on the same hooks as data for programs and as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from kpctl.drift.compare import FamilyDrift
from kubeproxy.facts.ids import Family
from kubeproxy.inspection.types import Repair
from kubeproxy.modes.base import Other
from kubeproxy.sync.edits import Edit

MOST_LINES = 20
"""How many lines of one owner the short form shows."""
MOST_OWNERS = 20
"""Of how many owners the short form has lines."""
MOST_REPAIRS = 10


class Report(Struct, frozen=True):
    """Everything that the command shows.

    `families` is None if the kernel was not read: a bundle may lack it. `others` is None if not
    asked for, `repairs` if no proxy was asked. `queued` counts changes that no round has taken.
    """

    origin: str
    mode: str
    families: tuple[FamilyDrift, ...] | None
    repairs: tuple[Repair, ...] | None
    others: Mapping[Family, tuple[Other, ...]] | None = None
    queued: int = 0

    @property
    def differs(self) -> bool:
        return any(found.differing for found in self.families or ())


# --- for programs ---


def report_document(report: Report) -> dict[str, object]:
    """The report as plain data; its shape is in docs/guides/drift.md."""
    document: dict[str, object] = {"origin": report.origin, "mode": report.mode}
    if report.families is not None:
        document["differs"] = report.differs
        document["queuedChanges"] = report.queued
        document["families"] = [_family_document(found) for found in report.families]
    if report.repairs is not None:
        document["repairs"] = [_repair_document(repair) for repair in report.repairs]
    if report.others is not None:
        document["others"] = [
            {"family": f.value, "hook": o.hook, "priority": o.priority, "what": o.what}
            for f, found in report.others.items()
            for o in found
        ]
    return document


def _family_document(found: FamilyDrift) -> dict[str, object]:
    return {
        "family": found.family.value,
        "wantedItems": found.wanted,
        "differingItems": found.differing,
        "differences": [
            {"owner": edit.owner, "found": list(edit.removed), "wanted": list(edit.added)}
            for edit in found.edits
        ],
    }


def _repair_document(repair: Repair) -> dict[str, object]:
    return {
        "time": format_time(repair.at),
        "family": repair.family.value,
        "items": repair.items,
        "cause": repair.cause,
        "lines": list(repair.lines),
    }


def format_time(seconds: float) -> str:
    """A time for people and programs alike: UTC, whole seconds."""
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"


# --- for people ---


def summary_line(report: Report) -> str:
    """What the command found, in one line."""
    about = f"{report.origin}, {report.mode} mode"
    if report.families is None:
        return f"{about}: what the kernel held is not in it"
    if not report.differs:
        counted = ", ".join(f"{f.family.value} {f.wanted} items" for f in report.families)
        return f"{about}: the kernel is as wanted ({counted})"
    counted = ", ".join(
        f"{f.family.value} {f.differing} of {f.wanted} items"
        for f in report.families
        if f.differing
    )
    return f"{about}: the kernel differs from what is wanted ({counted})"


def diff_lines(families: Sequence[FamilyDrift], *, is_wide: bool) -> Iterator[str]:
    """The differences in the form of a diff; in the short form only the first of many."""
    for found in families:
        if not found.differing:
            continue
        yield f"--- {found.family.value}, in the kernel now"
        yield f"+++ {found.family.value}, wanted"
        for edit in found.edits:
            yield from _edit_lines(edit, is_wide=is_wide)
        if found.left_out:
            yield f"({found.left_out} more service ports; -o wide shows all)"


def _edit_lines(edit: Edit, *, is_wide: bool) -> Iterator[str]:
    lines = list(edit.lines())
    yield f"@@ {edit.owner} @@"
    yield from lines if is_wide else lines[:MOST_LINES]
    if not is_wide and len(lines) > MOST_LINES:
        yield f"({len(lines) - MOST_LINES} more lines; -o wide shows all)"


REPAIR_HEADINGS = ("when", "family", "items", "cause")
OTHER_HEADINGS = ("family", "hook", "priority", "what")


def repair_rows(repairs: Sequence[Repair], *, is_wide: bool) -> list[tuple[str, ...]]:
    """Repairs, the newest first; the wide form has all, with the lines that differed."""
    shown = repairs if is_wide else repairs[-MOST_REPAIRS:]
    return [
        (
            format_time(repair.at),
            repair.family.value,
            str(repair.items),
            "\n".join((repair.cause or "found at a full sync", *(repair.lines if is_wide else ()))),
        )
        for repair in reversed(shown)
    ]


def other_rows(others: Mapping[Family, tuple[Other, ...]]) -> list[tuple[str, ...]]:
    return [
        (family.value, other.hook, str(other.priority), other.what)
        for family, found in others.items()
        for other in found
    ]
