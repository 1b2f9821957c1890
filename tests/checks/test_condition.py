"""Rise and fall: when results make an endpoint fail, and when they do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.checks.condition import PASSING, Condition, Failure, judge
from kubeproxy.facts.policy import CheckKind, HealthCheck

BAD = Failure("refused", "connection refused")


def after(results: str, *, rise: int = 2, fall: int = 3) -> str:
    """The states after each result: `.` is a success or passing, `x` a failure or failing."""
    check = HealthCheck(CheckKind.TCP, rise=rise, fall=fall)
    found, condition = "", PASSING
    for result in results:
        condition = judge(condition, BAD if result == "x" else None, check)
        found += "x" if condition.failure else "."
    return found


@pytest.mark.parametrize(
    ("results", "states"),
    [
        ("", ""),
        ("....", "...."),
        ("xx.xx.", "......"),
        ("xxx", "..x"),
        ("xxxx.x.x", "..xxxxxx"),
        ("xxx..", "..xx."),
        ("xxx.x..xxx", "..xxxx...x"),
    ],
)
def test_only_results_in_a_row_count(results: str, states: str) -> None:
    assert after(results) == states


def test_with_one_each_every_result_counts() -> None:
    assert after("x.x..x", rise=1, fall=1) == "x.x..x"


def test_the_reason_is_that_of_the_failure_that_counted() -> None:
    """A reason that changes while an endpoint is out anyway would only cause work."""
    check = HealthCheck(CheckKind.TCP, fall=2)
    condition = judge(Condition(), BAD, check)
    condition = judge(condition, Failure("status", "status 503"), check)
    assert condition.failure == Failure("status", "status 503")
    assert judge(condition, BAD, check) is condition


@given(st.lists(st.booleans()), st.integers(1, 5), st.integers(1, 5))
def test_a_state_changes_only_after_so_many_results_in_a_row(
    results: list[bool], rise: int, fall: int
) -> None:
    check = HealthCheck(CheckKind.TCP, rise=rise, fall=fall)
    condition = PASSING
    for number, result in enumerate(results):
        before = condition
        condition = judge(before, None if result else BAD, check)
        needed = rise if before.failure else fall
        last = results[: number + 1][-needed:]
        if (condition.failure is None) != (before.failure is None):
            assert last == [before.failure is not None] * needed
