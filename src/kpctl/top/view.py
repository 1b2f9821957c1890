"""A sample as lines that fit a terminal, and as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kpctl.look.output import plain_lines
from kpctl.top.sample import Rounds, Row, Sample

HEADINGS = ("SERVICE PORT", "NEW/S", "ENDPOINTS", "REJECT/S", "DROP/S", "REASON")


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
    head = [
        f"{origin}, {mode} mode: {sample.rate(total):.1f} new/s"
        f" to {sum(1 for row in sample.rows if row.connections)} service ports",
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
        _shares(row.endpoints, row.connections),
        f"{sample.rate(row.rejected):.1f}",
        f"{sample.rate(row.dropped):.1f}",
        row.reason,
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
    text = f"rounds: {rounds.count}, {rounds.seconds * 1000:.1f} ms together"
    if not rounds.count:
        text = f"rounds: none in this interval, the last took {rounds.last_seconds * 1000:.1f} ms"
    if rounds.latencies:
        text += f"; endpoints programmed within {rounds.worst_latency_seconds:.2f} s"
    return text
