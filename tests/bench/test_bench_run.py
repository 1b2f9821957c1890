"""The side-by-side benchmark itself, as small as can be."""

import os
from collections.abc import Sequence

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kpctl.bench.cli import PARTS as OFFERED
from kpctl.bench.control import Limits
from kpctl.bench.modes import measure_mode, modes_with_figures
from kpctl.bench.records import OURS, UPSTREAM, Measurement, Record, Size
from kpctl.bench.run import PARTS, Options, Progress, run_benchmark
from kpctl.bench.traffic import Effort
from kubeproxy.errors import Unsupported


def _nothing(text: str) -> None:
    """Ignore progress."""


@pytest.mark.kernel
@pytest.mark.api
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("mode", "with_data"), [("nftables", True), ("iptables", False)])
def test_both_programs_are_measured(programs: None, mode: str, with_data: bool) -> None:
    """Every record has both sides, from the kernel's clock, and packets went through."""
    measurements: list[Measurement] = []

    def found(measured: Sequence[Measurement]) -> None:
        measurements.extend(measured)

    options = Options(
        sizes=(Size(20, 2),),
        modes=(mode,),
        rounds=1,
        idle_seconds=0.5,
        limits=Limits(samples=1, cutoff_seconds=LIMIT_SECONDS),
        effort=Effort(connects=20, seconds=0.1, timeout_seconds=LIMIT_SECONDS),
        parts=frozenset({"control", "data"} if with_data else {"control"}),
        with_many=False,
    )
    results = run_benchmark(options, Progress(_nothing, found))
    records = {(record.mode, record.name): record for record in results.records}
    assert {mode for mode, _ in records} == {mode}
    for name in ("cold start", "endpoint replaced", "Service added", "memory, peak"):
        assert _is_complete(records[mode, name]), records[mode, name]
    assert _is_complete(records[mode, "bytes of the first lists"])
    assert not with_data or records[mode, "connect, last service, p50"].direct
    assert {m.program for m in measurements} >= {OURS, UPSTREAM}


@pytest.mark.kernel
@pytest.mark.api
@pytest.mark.timeout(1800)
def test_many_changes_are_measured_at_the_full_rate(programs: None) -> None:
    """Of ours alone, and from the small API server: enough to see everything in one run."""
    options = Options(
        sizes=(Size(20, 2),),
        modes=("nftables",),
        rounds=1,
        upstream_services=0,
        real_services=10,
        churn_size=Size(20, 2),
        idle_seconds=0.5,
        limits=Limits(samples=1, cutoff_seconds=LIMIT_SECONDS, churn_seconds=1.0),
        parts=frozenset({"control"}),
    )
    results = run_benchmark(options, Progress(_nothing, lambda _: None))
    found = {record.name: record.ours for record in results.records}
    assert (found["churn of 1000 changes/s, served"] or 0) > 0
    assert (found["churn of 1000 changes/s, CPU"] or 0) > 0
    assert found["rolling update of 40 endpoints, lag at the end"] is not None
    assert (found["endpoint replaced"] or 0) > 0


def _is_complete(record: Record) -> bool:
    both = (record.ours, record.upstream)
    return all(value is not None and value > 0 for value in both) and not record.more_than


@pytest.mark.kernel
def test_a_mode_that_has_no_counterpart_is_refused() -> None:
    """Upstream has no userspace mode any more."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with pytest.raises(Unsupported, match="userspace"):
        run_benchmark(Options(modes=("userspace",)), Progress(_nothing, lambda _: None))


def test_a_budget_of_nothing_measures_nothing_and_says_so() -> None:
    """What was not measured is named."""
    if os.geteuid() != 0:
        pytest.skip("the benchmark needs root")
    options = Options(budget_seconds=0, parts=frozenset(PARTS) - {"control", "data"})
    results = run_benchmark(options, Progress(_nothing, lambda _: None))
    assert results.records == ()
    assert any("spine" in note for note in results.notes)


def test_the_command_offers_every_part() -> None:
    """It names them without importing what measures them."""
    assert set(OFFERED) == {*PARTS, "health"}


def test_modules_of_modes_are_found() -> None:
    """Each mode with a benchmark of its own, and what they share."""
    assert {"spine", "nftables", "iptables"} <= set(modes_with_figures())


def test_a_modes_own_figures_are_sentences() -> None:
    """Printed by a process of its own."""
    found = measure_mode("spine", arguments=("50", "2"))
    assert found.problem == ""
    assert any("50 services" in line for line in found.lines)


def test_a_benchmark_that_takes_too_long_is_stopped() -> None:
    """What it had printed until then counts, and the limit is reported as its problem."""
    found = measure_mode("spine", limit_seconds=0.01)
    assert "stopped" in found.problem
