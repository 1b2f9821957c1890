"""Results in the terminal, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from kpctl.bench.document import format_figure, format_number, format_ratio, is_shown
from kpctl.bench.growth import COUNTS, GrowthRow
from kpctl.bench.records import OURS, UPSTREAM, Record


def results_table(records: Iterable[Record]) -> Table:
    table = Table(title="ours and upstream side by side")
    for heading in ("mode", "measure", "size"):
        table.add_column(heading)
    for heading in ("ours", "upstream", "direct", "unit", "ratio"):
        table.add_column(heading, justify="right")
    for record in (record for record in records if is_shown(record.name)):
        table.add_row(
            record.mode,
            record.name,
            record.size,
            format_figure(record.ours, record.ours_spread, is_cut=OURS in record.more_than),
            format_figure(
                record.upstream, record.upstream_spread, is_cut=UPSTREAM in record.more_than
            ),
            "" if record.direct is None else format_number(record.direct),
            record.unit,
            format_ratio(record),
            style=_style(record.ratio),
        )
    return table


def _style(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return "green" if ratio >= 1 else "red"


def growth_table(rows: Sequence[GrowthRow]) -> Table:
    """What one change takes, in the smallest and in the largest cluster."""
    small, large = (rows[0].costs[i][0] for i in (0, -1))
    table = Table(title=f"the work for one change: {small} → {large}")
    for heading in ("mode", "change"):
        table.add_column(heading, no_wrap=True)
    for name in COUNTS:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        before, after = row.costs[0][1], row.costs[-1][1]
        cells = (_counts(getattr(before, name), getattr(after, name)) for name in COUNTS)
        table.add_row(row.mode, row.change, *cells, style="red" if row.grown() else "")
    return table


def _counts(before: int, after: int) -> str:
    return str(after) if before == after else f"{before} → {after}"
