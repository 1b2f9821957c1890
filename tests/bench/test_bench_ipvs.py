"""The ipvs mode side by side, in a kernel that has IPVS."""

import os

import pytest

from kubeproxy.bench.records import OURS, UPSTREAM, Measurement, Size
from kubeproxy.bench.user_mode import (
    GuestAnswer,
    IpvsEffort,
    Usage,
    measure_ipvs,
    measurements,
    why_not,
)
from kubeproxy.testing.real_api_build import NoGo, built

SIZE = Size(5, 2)


def test_what_did_not_come_is_a_limit() -> None:
    """A change that was cut off is more than the limit; the rest counts."""
    answer = GuestAnswer(cold=2.0, changes=(0.004, None), usage=Usage(1.5, 60))
    found = {(m.name, m.value, m.is_limit) for m in measurements(answer, OURS, SIZE, 30)}
    assert ("cold start", 2.0, False) in found
    assert ("endpoint replaced", 4.0, False) in found
    assert ("endpoint replaced", 30_000, True) in found


def test_without_a_cold_start_nothing_else_counts() -> None:
    """Memory and CPU of something unfinished would mislead."""
    answer = GuestAnswer(cold=None, changes=(), usage=Usage(1.5, 60))
    (only,) = measurements(answer, UPSTREAM, SIZE, 30)
    assert (only.name, only.is_limit) == ("cold start", True)


@pytest.mark.uml
@pytest.mark.timeout(280)
def test_both_programs_fill_the_same_kernel() -> None:
    """Cold start and one change of each, told as they come."""
    if reason := why_not():
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("the user-mode kernel's files need root")
    try:
        built("kube-proxy")
    except NoGo as error:
        pytest.skip(f"nothing to compare with: {error}")
    heard: list[Measurement] = []
    measure_ipvs(
        IpvsEffort(sizes=(SIZE,), rounds=1, samples=1, cutoff_seconds=90),
        told=lambda text: None,
        found=heard.extend,
        seconds_left=lambda: 1.0,
    )
    complete = {(m.program, m.name) for m in heard if not m.is_limit and m.value > 0}
    assert complete >= {
        (program, name)
        for program in (OURS, UPSTREAM)
        for name in ("cold start", "endpoint replaced", "memory after cold start")
    }
