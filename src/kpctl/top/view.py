"""A sample as lines that fit a terminal, and as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kpctl.look.output import plain_lines
from kpctl.top.sample import Rounds, Row, Sample

HEADINGS = ("service port", "new/s", "reject/s", "drop/s", "why refused; endpoints and their share")
"""What counts most comes first: a screen cuts what does not fit."""


def document(origin: str, mode: str, sample: Sample) -> dict[str, object]:
    """One sample as plain data; figures per second."""
    rounds = sample.rounds
    return {
        "origin": origin,
        "mode": mode,
        "seconds": round(sample.seconds, 3),
        "services": [_row_document(sample, row) for row in sample.rows],
        "rounds": {
            "count": rounds.count,
            "seconds": rounds.seconds,
            "lastSeconds": rounds.last_seconds,
            "changesTimed": rounds.latencies,
            "worstLatencySeconds": rounds.worst_latency_seconds,
        },
        "overruns": sample.overruns,
        "notes": list(sample.notes),
    }


def _row_document(sample: Sample, row: Row) -> dict[str, object]:
    return {
        "service": row.owner.label,
        "protocol": row.owner.protocol.value,
        "ipFamily": row.family.value,
        "connectionsPerSecond": round(sample.rate(row.connections), 3),
        "endpoints": [
            {"endpoint": endpoint, "share": round(count / row.connections, 4)}
            for endpoint, count in row.endpoints.items()
        ],
        "rejectedPerSecond": round(sample.rate(row.rejected), 3),
        "droppedPerSecond": round(sample.rate(row.dropped), 3),
        "reason": row.reason,
    }


def lines(origin: str, mode: str, sample: Sample, most_rows: int | None = None) -> list[str]:
    """The sample for people, with up to so many Services."""
    rows = sample.rows if most_rows is None else sample.rows[:most_rows]
    total = sum(row.connections for row in sample.rows)
    served = sum(1 for row in sample.rows if row.connections)
    ports = "service port" if served == 1 else "service ports"
    head = [
        f"{mode} mode, {sample.rate(total):.1f} new/s to {served} {ports}: {origin}",
        rounds_text(sample.rounds),
    ]
    table = plain_lines([HEADINGS, *(_cells(sample, row) for row in rows)])
    left = len(sample.rows) - len(rows)
    tail = [f"... and {left} more"] if left else []
    if sample.overruns:
        tail.append(f"events were lost {sample.overruns} times: there were more connections")
    return [*head, "", *table, *tail, *(f"note: {note}" for note in sample.notes)]


def _cells(sample: Sample, row: Row) -> Sequence[str]:
    return (
        str(row.owner),
        f"{sample.rate(row.connections):.1f}",
        f"{sample.rate(row.rejected):.1f}",
        f"{sample.rate(row.dropped):.1f}",
        "; ".join(filter(None, (row.reason, _shares(row.endpoints, row.connections)))),
    )


def _shares(endpoints: Mapping[str, int], total: int, most: int = 3) -> str:
    """The endpoints with most connections, and the part each has."""
    shown = [f"{e} {count / total:.0%}" for e, count in list(endpoints.items())[:most]]
    more = len(endpoints) - len(shown)
    return ", ".join(shown) + (f", {more} more" if more > 0 else "")


def rounds_text(rounds: Rounds) -> str:
    """What the proxy did meanwhile."""
    if rounds.last_seconds is None:
        return "rounds: none yet"
    text = f"rounds: {rounds.count}, {_time_text(rounds.seconds)} together"
    if not rounds.count:
        text = f"rounds: none in this interval, the last took {_time_text(rounds.last_seconds)}"
    if rounds.latencies:
        text += f"; endpoints programmed within {rounds.worst_latency_seconds:.2f} s"
    return text


def _time_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
