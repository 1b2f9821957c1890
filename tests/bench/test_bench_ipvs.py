"""The ipvs mode side by side, in a kernel that has IPVS."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kpctl.apiserver.build import NoGo, built
from kpctl.bench.control import Limits
from kpctl.bench.ipvs_guest import Row
from kpctl.bench.promise import PAUSES, PromiseEffort, measure_name
from kpctl.bench.records import OURS, UPSTREAM, Measurement, Size
from kpctl.bench.traffic import Effort
from kpctl.bench.user_mode import (
    IpvsEffort,
    measure_ipvs,
    measure_programming,
    measurements,
    user_mode_kernel,
    why_not,
)
from kpctl.places.uml import UserModeKernel

SIZE = Size(5, 2)


def test_what_did_not_come_is_a_limit() -> None:
    """A change that was cut off is more than the limit; the rest counts."""
    rows = [
        Row(OURS, "cold start", 2.0, "s"),
        Row(OURS, "endpoint replaced", 4.0, "ms"),
        Row(OURS, "endpoint replaced", None, "ms"),
        Row(UPSTREAM, "cold start", None, "s"),
    ]
    found = [(m.program, m.name, m.value, m.is_limit) for m in measurements(rows, SIZE, 30)]
    assert found == [
        (OURS, "cold start", 2.0, False),
        (OURS, "endpoint replaced", 4.0, False),
        (OURS, "endpoint replaced", 30_000, True),
        (UPSTREAM, "cold start", 30, True),
    ]


@pytest.fixture(scope="module")
def kernel() -> Iterator[UserModeKernel]:
    if reason := why_not():
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("the user-mode kernel's files need root")
    try:
        built("kube-proxy")
    except NoGo as error:
        pytest.skip(f"nothing to compare with: {error}")
    with user_mode_kernel() as booted:
        yield booted


class Collected:
    """What is measured, given to the measures as their last arguments."""

    def __init__(self) -> None:
        self.measurements: list[Measurement] = []

    def started(self, what: str) -> None: ...

    def is_over(self, what: str) -> bool:
        return False

    def values(self) -> set[tuple[str, str]]:
        """Which programs and measures came out as values above zero."""
        # Ten changes may cost less than one tick of the clock that counts processor time.
        may_be_zero = "rolling update of 10 endpoints, CPU"
        return {
            (m.program, m.name)
            for m in self.measurements
            if not m.is_limit and (m.value > 0 or m.name == may_be_zero)
        }


def _measured(kernel: UserModeKernel, effort: IpvsEffort) -> set[tuple[str, str]]:
    collected = Collected()
    measure_ipvs(
        kernel,
        effort,
        started=collected.started,
        found=collected.measurements.extend,
        is_over=collected.is_over,
    )
    return collected.values()


@pytest.mark.uml
@pytest.mark.timeout(1800)
def test_both_programs_fill_the_same_kernel(kernel: UserModeKernel) -> None:
    """Upstream's single sync takes many seconds in that kernel, so its first one is enough."""
    limits = Limits(samples=0, cutoff_seconds=LIMIT_SECONDS)
    found = _measured(
        kernel, IpvsEffort((SIZE,), rounds=1, limits=limits, with_many=False, with_data=False)
    )
    assert found >= {
        (program, name)
        for program in (OURS, UPSTREAM)
        for name in ("cold start", "cold start, CPU", "memory after cold start", "memory, peak")
    }


@pytest.mark.uml
@pytest.mark.timeout(1800)
def test_changes_and_packets_are_measured_there_too(kernel: UserModeKernel) -> None:
    """Of ours alone."""
    effort = IpvsEffort(
        (SIZE,),
        rounds=1,
        upstream_services=0,
        limits=Limits(samples=1, cutoff_seconds=LIMIT_SECONDS, churn_seconds=0.5),
        traffic=Effort(connects=10, seconds=0.2, timeout_seconds=LIMIT_SECONDS),
    )
    found = _measured(kernel, effort)
    assert found >= {
        (OURS, "endpoint replaced"),
        (OURS, "endpoint added"),
        (OURS, "endpoint removed"),
        (OURS, "Service added"),
        (OURS, "rolling update of 10 endpoints, lag at the end"),
        (OURS, "rolling update of 10 endpoints, CPU"),
        (OURS, "churn of 1000 changes/s, served"),
        (OURS, "connect, last service, p50"),
        ("direct", "connect, last service, p50"),
    }


@pytest.mark.uml
@pytest.mark.timeout(1800)
def test_latency_under_churn_is_measured_there_too(kernel: UserModeKernel) -> None:
    """Of ours alone: what is observed of the changes is programmed in the end."""
    collected = Collected()
    effort = PromiseEffort(
        ipvs_sizes=(Size(20, 2),), seconds=1.0, modes=("ipvs",), programs=(OURS,),
        start_seconds=LIMIT_SECONDS,
    )  # fmt: skip
    measure_programming(
        kernel,
        effort,
        started=collected.started,
        found=collected.measurements.extend,
        is_over=collected.is_over,
    )
    assert collected.values() >= {
        (OURS, f"{measure_name(20, pause)}, {what}")
        for pause in PAUSES
        for what in ("p50", "p99", "served")
    }
