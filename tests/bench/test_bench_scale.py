"""The benchmark of scale, and the table of what was and what is."""

from __future__ import annotations

import os

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kpctl.bench.document import format_scale
from kpctl.bench.lists import LISTED, ListBytes, list_bytes
from kpctl.bench.records import OURS, UPSTREAM, Measurement, Size, summarise
from kpctl.bench.scale import ScaleEffort, measure_scale
from kpctl.bench.scale_engine import ROWS as ENGINE_ROWS
from kpctl.bench.scale_engine import EngineRow, measure_row
from kpctl.bench.scale_table import ROWS, Found, Row, find_rows
from kubeproxy.errors import ProxyError

SIZE = Size(20, 2)
TINY = ScaleEffort(
    programs=(OURS,), small=SIZE, starts=1, idle_seconds=0.5, calm_seconds=0,
    largest=(Size(30, 2),), first_rounds=(SIZE,), repairs=(SIZE,), restarts=(SIZE,),
    changes=(SIZE,), large_services=(Size(1, 250),), iptables_nft=(SIZE,), userspace=(),
    samples=2, cutoff_seconds=LIMIT_SECONDS, row_seconds=LIMIT_SECONDS, quiet_seconds=0,
)  # fmt: skip
OF_OTHER_PARTS = ("500,000 flows", "endpoint added, empty", "network programming", "bytes of the")


def found(row: Row, ours: float | None, upstream: float | None = None, **others: bool) -> Found:
    measured = [
        Measurement(row.mode, row.name, row.size, program, value, "s", is_cut)
        for program, value, is_cut in (
            (OURS, ours, others.get("is_cut", False)),
            (UPSTREAM, upstream, others.get("is_other_cut", False)),
        )
        if value is not None
    ]
    return Found(row, summarise(measured)[0] if measured else None)


def test_an_aim_is_met_missed_or_not_known() -> None:
    row = Row("a cost", SIZE, name="cost", most=2.0)
    assert [found(row, value).is_met for value in (2.0, 2.1, None)] == [True, False, None]
    assert found(row, 1.0, is_cut=True).is_met is None
    assert found(row, 2.0, is_cut=True).is_met is False
    rate = Row("a rate", SIZE, name="rate", least=1.0)
    assert [found(rate, value).is_met for value in (1.0, 0.9)] == [True, False]
    assert found(Row("nothing is aimed at", SIZE, name="cost"), 1.0).is_met is None


def test_a_race_is_with_what_stands_beside() -> None:
    """Upstream that was cut off has not won, and has not lost before that."""
    row = Row("a cost", SIZE, name="cost", is_race=True)
    assert [found(row, ours, 2.0).is_met for ours in (2.0, 2.1)] == [True, False]
    assert found(row, 1.0).is_met is None
    assert found(row, 1.0, 2.0, is_other_cut=True).is_met is True
    assert found(row, 3.0, 2.0, is_other_cut=True).is_met is None


def test_a_row_shows_what_is_known_of_it() -> None:
    row = Row("a cost", SIZE, "3 s", "upstream 4 s", "2 s", name="cost", most=2.0)
    assert format_scale(found(row, 1.5, 5.0)) == (
        "| a cost | 20 × 2 | 3 s | upstream 4 s | 2 s | 1.5 s | 5 s | yes |"
    )
    assert format_scale(found(row, None)).endswith("| not measured in this run | – | – |")
    counted = Row("a count", SIZE, instead="`a test`")
    assert "| counted by `a test` |" in format_scale(Found(counted, None))


def test_records_are_found_by_mode_name_and_size() -> None:
    """Those of a fleet whatever its size is, and what a row is held against."""
    size = Size(10_000)
    name = "restart over an existing table"
    records = summarise(
        [
            Measurement("nftables", "cold start", size, OURS, 1.9, "s"),
            Measurement("iptables", "cold start", size, OURS, 7.0, "s"),
            Measurement("nftables", "fleet of 7: memory", Size(500), OURS, 40.0, "MB per proxy"),
            Measurement("nftables", name, size, OURS, 1.0, "s"),
            Measurement("nftables", f"{name}, cold start beside it", size, OURS, 2.0, "s"),
        ]
    )
    values = {(each.row.words, each.now, each.other, each.is_met) for each in find_rows(records)}
    assert ("cold start", 1.9, None, True) in values
    assert ("fleet: memory of a proxy", 40.0, None, None) in values
    assert (name, 1.0, 2.0, True) in values


def test_every_row_names_its_record_or_where_it_is_counted() -> None:
    assert [row for row in ROWS if bool(row.name) == bool(row.instead)] == []
    assert len({(row.mode, row.name, row.size) for row in ROWS if row.name}) == len(
        [row for row in ROWS if row.name]
    )


@pytest.mark.kernel
@pytest.mark.timeout(1800)
def test_the_table_asks_for_records_that_are_measured() -> None:
    """Ours, as small as can be: nothing fails, and every row of the table has its record."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    measured: list[Measurement] = []
    problems: list[str] = []
    measure_scale(
        TINY, started=lambda _: None, found=measured.extend, is_over=lambda _: False,
        failed=problems.append,
    )  # fmt: skip
    assert problems == []
    values = {(each.mode, each.name): each.value for each in measured}
    missing = {
        name
        for row in ROWS
        for name in (row.name, row.beside)
        if name and (row.mode, name) not in values
        if row.mode != "userspace" and not row.words.startswith("fleet")
        if not name.startswith(OF_OTHER_PARTS)
    }
    # The control plane's part measures the cold start of iptables mode.
    assert missing == {"cold start"}
    assert values["nftables", "one element deleted, full reads"] == 0
    assert values["nftables", "restart over an existing table, items written"] == 0
    assert values["nftables", "idle, private memory"] > 5
    assert values["nftables", "start-up until Services are watched, CPU"] > 0


def test_what_fails_or_takes_too_long_is_reported() -> None:
    with pytest.raises(ProxyError, match="stopped after"):
        measure_row(EngineRow("facts", Size(50), 1), 0.01)
    with pytest.raises(ProxyError, match="nonsense"):
        measure_row(EngineRow("nonsense", Size(50), 1), LIMIT_SECONDS)


def test_every_row_of_the_engine_is_known() -> None:
    assert {row.name for row in ScaleEffort().engine_rows()} == set(ENGINE_ROWS)


def test_a_budget_that_is_used_up_measures_nothing() -> None:
    asked: list[str] = []

    def is_over(what: str) -> bool:
        asked.append(what)
        return True

    measured: list[Measurement] = []
    measure_scale(
        TINY, started=lambda _: None, found=measured.extend, is_over=is_over, failed=asked.append
    )
    assert measured == []
    assert any("large Service" in what for what in asked)


def test_the_first_lists_are_a_fraction_of_their_json() -> None:
    """The daemon's own source asks for pages that may be compressed; a stream would fail."""
    counted = list_bytes(LISTED)
    assert counted.is_met, str(counted)
    assert counted.json > counted.sent > 0
    assert not ListBytes(LISTED, counted.json, counted.json).is_met
