"""Records: medians, ratios, limits, growth."""

from pathlib import Path

import pytest
from msgspec import structs

from kpctl.bench.records import (
    DIRECT,
    OURS,
    UPSTREAM,
    Measurement,
    Record,
    Results,
    Run,
    Size,
    fit_exponent,
    growth,
    merge,
    parse_size,
    read_results,
    renew,
    summarise,
    write_results,
)

THOUSAND = Size(1000)
THEN = Run("yesterday", 1.5, "abc", "kpctl bench --size 1k")
NOW = Run("today", 2.5, "def", "kpctl bench --size 10k")


def measured(
    program: str, *values: float, unit: str = "ms", size: Size = THOUSAND, cut: bool = False
) -> list[Measurement]:
    return [Measurement("nftables", "change", size, program, v, unit, cut) for v in values]


def only(found: tuple[Record, ...]) -> Record:
    (record,) = found
    return record


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", Size(1000)), ("5k", Size(5000)), ("5kx50", Size(5000, 50)), ("5 × 2", Size(5, 2))],
)
def test_sizes_are_written_shortly(text: str, size: Size) -> None:
    """A size is services, and endpoints of each."""
    assert parse_size(text) == size


def test_a_printed_size_can_be_read_again() -> None:
    """What stands in the results file is a size."""
    assert parse_size(str(Size(5000, 50))) == Size(5000, 50)


def test_something_else_is_no_size() -> None:
    """The complaint shows how to write one."""
    with pytest.raises(ValueError, match="5kx50"):
        parse_size("many")


def test_a_record_has_median_and_spread_of_both() -> None:
    """Both programs' rounds become one line."""
    record = only(summarise([*measured(OURS, 1, 2, 9), *measured(UPSTREAM, 30, 10, 20)]))
    assert (record.ours, record.ours_spread) == (2, (1, 9))
    assert (record.upstream, record.upstream_spread) == (20, (10, 30))
    assert (record.ratio, record.rounds) == (10, 3)


def test_a_rate_is_better_when_it_is_higher() -> None:
    """The ratio always says how many times better we are."""
    rates = [
        *measured(OURS, 300, unit="connections/s"),
        *measured(UPSTREAM, 100, unit="connections/s"),
        *measured(DIRECT, 400, unit="connections/s"),
    ]
    record = only(summarise(rates))
    assert (record.ratio, record.direct) == (3, 400)


def test_a_cut_off_median_is_named_as_such() -> None:
    """One cut off round among three leaves the median a measured value."""
    mostly = [*measured(UPSTREAM, 60, 60, cut=True), *measured(UPSTREAM, 50)]
    hardly = [*measured(UPSTREAM, 60, cut=True), *measured(UPSTREAM, 50, 55)]
    assert only(summarise(mostly)).more_than == (UPSTREAM,)
    assert only(summarise(hardly)).more_than == ()


def test_there_is_no_ratio_of_a_time_before_the_answer() -> None:
    """A commit may come before the API server answers; that divides nothing."""
    record = only(summarise([*measured(OURS, -0.5), *measured(UPSTREAM, 10)]))
    assert record.ratio is None


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(exponent: float) -> None:
    """Values that follow a power of the size give that power."""
    points = [(x, 3 * x**exponent) for x in (1000.0, 5000.0, 10000.0)]
    assert fit_exponent(points) == pytest.approx(exponent)


def test_one_size_has_no_growth() -> None:
    """Growth needs two sizes, however many values there are."""
    assert fit_exponent([(1000, 1), (1000, 5)]) is None


def test_growth_leaves_out_what_was_cut_off_and_other_shapes() -> None:
    """A limit is no value, and fifty endpoints are another series."""
    found = summarise(
        [
            *measured(OURS, 1, size=Size(1000)),
            *measured(OURS, 10, size=Size(10000)),
            *measured(OURS, 999, size=Size(5000, 50)),
            *measured(UPSTREAM, 1, size=Size(1000)),
            *measured(UPSTREAM, 4, size=Size(2000)),
            *measured(UPSTREAM, 4, size=Size(10000), cut=True),
        ]
    )
    (line,) = growth(found)
    assert line.ours == pytest.approx(1)
    assert line.upstream == pytest.approx(2)


def test_a_later_run_is_pooled_with_the_earlier() -> None:
    """Measuring again hides nothing; the rest stays, growth is fitted over both."""
    small, large = Size(1000), Size(10000)
    old_records = summarise([*measured(OURS, 1, size=small), *measured(OURS, 9, size=large)])
    new_records = summarise(measured(OURS, 11, size=large))
    old = Results((THEN,), {}, old_records, notes=("a",))
    new = Results((NOW,), {}, new_records, notes=("b",))
    merged = merge(old, new)
    assert merged.runs == (THEN, NOW)
    assert [record.ours for record in merged.records] == [1, 10]
    assert merged.records[1].ours_spread == (9, 11)
    assert merged.growth[0].ours == pytest.approx(1)
    assert merged.notes == ("a", "b")


def test_of_another_program_only_what_is_not_measured_again_stays() -> None:
    small, large = Size(1000), Size(10000)
    before = summarise([*measured(OURS, 1, size=small), *measured(OURS, 9, size=large)])
    after = summarise(measured(OURS, 11, size=large))
    made = renew(Results((THEN,), {}, before), Results((NOW,), {}, after))
    assert made.runs == (THEN, NOW)
    assert [record.ours for record in made.records] == [1, 11]


def test_a_record_without_its_values_stands_until_it_is_measured_again() -> None:
    """Nothing is lost, and nothing is made up."""
    bare = structs.replace(only(summarise(measured(OURS, 7))), values=())
    old = Results((THEN,), {}, (bare,))
    other = summarise(measured(OURS, 1, size=Size(2000)))
    assert bare in merge(old, Results((NOW,), {}, other)).records
    again = summarise(measured(OURS, 1))
    assert merge(old, Results((NOW,), {}, again)).records == again


def test_results_survive_the_file(tmp_path: Path) -> None:
    """What is written is what is read."""
    records = summarise([*measured(OURS, 1, 2), *measured(UPSTREAM, 30)])
    results = Results((NOW,), {"kernel": "6"}, records, growth(records), ("a",))
    write_results(tmp_path / "r.json", results)
    assert read_results(tmp_path / "r.json") == results
