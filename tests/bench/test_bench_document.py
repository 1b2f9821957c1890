"""Document, charts and terminal table."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from kpctl.bench.aims import AIMS, check_aims
from kpctl.bench.chart import Line, Point, draw_chart, ticks
from kpctl.bench.document import NOTES, format_figure, format_row, write_document
from kpctl.bench.growth import Cost, GrowthRow
from kpctl.bench.records import OURS, UPSTREAM, Record, Results, Run, Size, growth
from kpctl.bench.show import growth_table, results_table

TEN_THOUSAND = Size(10000)
SVG = "{http://www.w3.org/2000/svg}"


def record(
    name: str = "cold start",
    size: Size = TEN_THOUSAND,
    *,
    ours: float | None = 2.0,
    upstream: float | None = 20.0,
    unit: str = "s",
    more_than: tuple[str, ...] = (),
) -> Record:
    ratio = upstream / ours if ours and upstream else None
    return Record(name, "nftables", str(size), ours, upstream, unit, ratio, 2, more_than=more_than)


def test_a_figure_shows_its_spread_and_its_limit() -> None:
    """A single value has no spread; a limit is more than it says."""
    assert format_figure(12.345, (11, 14)) == "12.3 (11–14)"
    assert format_figure(5, (5, 5)) == "5"
    assert format_figure(60, (60, 60), is_cut=True) == ">60"
    assert format_figure(None, None) == "–"


def test_a_ratio_to_a_limit_is_more_than_it_says() -> None:
    """Upstream was cut off, so the truth is better still."""
    row = format_row(record(upstream=60, more_than=(UPSTREAM,)))
    assert "| >60 |" in row
    assert "| >30 |" in row


def test_a_chart_is_well_formed_and_has_every_value() -> None:
    """One mark per value; an open one with an arrow for a limit."""
    lines = [
        Line("ours", (Point(1000, 0.5), Point(5000, 0.9))),
        Line("up & down", (Point(1000, 3), Point(5000, 60, is_limit=True))),
    ]
    root = ET.fromstring(draw_chart("cold <start>", "s", lines))
    marks = root.findall(f"{SVG}circle")
    assert len(marks) == 4
    assert sum(mark.get("fill") == "#fff" for mark in marks) == 1
    assert len(root.findall(f"{SVG}path")) == 1
    heights = [float(mark.get("cy", "nan")) for mark in marks]
    assert heights == sorted(heights, reverse=True)


def test_a_chart_of_nothing_is_refused() -> None:
    """A commit before the answer has no place on a logarithmic axis."""
    with pytest.raises(ValueError, match="nothing to show"):
        draw_chart("empty", "ms", [Line("ours", (Point(1000, -1),))])


def test_axes_are_marked_at_round_numbers() -> None:
    """1, 2, 5; over many decades only the ones."""
    assert ticks(0.04, 3) == [0.05, 0.1, 0.2, 0.5, 1, 2]
    assert ticks(0.1, 20000) == [0.1, 1, 10, 100, 1000, 10000]


def test_aims_are_compared_with_the_record_of_their_size() -> None:
    """Met, missed and not measured."""
    aim = AIMS[0]
    (met, *others) = check_aims([record(aim.name, aim.size, ours=1, upstream=aim.ratio)])
    assert met.is_met is True
    assert {verdict.is_met for verdict in others} == {None}
    assert check_aims([record(aim.name, aim.size, ours=1, upstream=1)])[0].is_met is False


def test_a_limit_below_the_aim_decides_nothing() -> None:
    """Upstream was cut off before it was slow enough to tell."""
    aim = AIMS[0]
    cut = record(aim.name, aim.size, ours=1, upstream=1, more_than=(UPSTREAM,))
    assert check_aims([cut])[0].is_met is None


def test_the_document_has_everything_and_the_notes(tmp_path: Path) -> None:
    """Tables, charts, growth, remarks, and the words of people."""
    records = (record(size=Size(1000), ours=3, upstream=2), record())
    run = Run("today", 2.5, "abc", "kpctl bench --size 1k")
    machine = {"kernel": "6.1", "upstream": "v1"}
    results = Results((run,), machine, records, growth(records), ("the machine was busy",))
    (tmp_path / NOTES).write_text("## Why\n\nBecause.\n")
    written = write_document(results, tmp_path)
    text = (tmp_path / "benchmarks.md").read_text()
    assert tmp_path / "charts" / "nftables-cold-start.svg" in written
    for words in (
        "6.1",
        "| cold start | 1000 × 10 | 3 | 2 |",
        "0.667",
        "was busy",
        "Because.",
        run.command,
    ):
        assert words in text


def test_the_terminal_shows_good_and_bad() -> None:
    """A row per record; ours and upstream's."""
    console = Console(width=160, record=True, quiet=False, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(results_table([record(), record("memory", more_than=(OURS,))]))
    assert "cold start" in captured.get()
    assert ">2" in captured.get()


def test_growth_is_shown_by_name_and_number() -> None:
    """A count that grows is named with both sizes."""
    small, large = Cost(100, 1, 50, 1, 1, 1), Cost(104, 1, 500, 1, 1, 1)
    row = GrowthRow("nftables", "endpoint added", ((Size(200), small), (Size(2000), large)))
    assert row.grown() == (
        "nftables, endpoint added: bytes sent grew from 50 at 200 × 10 to 500 at 2000 × 10",
    )
    console = Console(width=160)
    with console.capture() as captured:
        console.print(growth_table([row]))
    assert "50 → 500" in captured.get()
