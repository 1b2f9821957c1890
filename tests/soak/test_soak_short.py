"""Some hours of churn in each mode, and what counts as a finding; `make soak` is the whole day."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.soak import guest
from tests.soak.day import Hour, Plan, findings, live_through
from tests.soak.node import Usage

from kpctl.places.uml import UserModeKernel, missing

SHORT = Plan("", services=40, endpoints=3, hours=3, changes_per_hour=60, probes_per_hour=1)
ROOT = Path(__file__).parents[2]


def require_clean(hours: list[Hour]) -> None:
    """Memory and latency say nothing yet: some hours of a small cluster are still its start."""
    assert len(hours) == SHORT.hours + 1
    assert not [str(hour) for hour in hours if hour.drift]
    # The most of the hours before: how many connections to the API server are kept varies.
    *before, last = (hour.usage for hour in hours)
    assert last.descriptors <= max(usage.descriptors for usage in before)
    assert last.threads <= max(usage.threads for usage in before)


@pytest.mark.kernel
@pytest.mark.parametrize("mode", ["nftables", "iptables", "userspace"])
async def test_some_hours(mode: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    require_clean(await live_through(replace(SHORT, mode=mode), tmp_path, lambda hour: None))


@pytest.mark.uml
def test_some_hours_of_ipvs() -> None:
    if reason := missing():
        pytest.skip(reason)
    plan = msgspec.to_builtins(replace(SHORT, mode="ipvs"))
    with UserModeKernel(paths=[ROOT]) as kernel:
        answer = kernel.call(Path(guest.__file__), "live", plan, timeout_seconds=3600.0)
    require_clean(msgspec.convert(answer, list[Hour]))


def a_day(**changes: float) -> list[Hour]:
    """A day in which these grow by so much each hour."""
    grown = {"memory": 0.0, "descriptors": 0.0, "threads": 0.0, "latency": 0.0} | changes
    return [
        Hour(
            number,
            Usage(
                60.0 + grown["memory"] * number,
                20 + int(grown["descriptors"] * number),
                2 + int(grown["threads"] * number),
            ),
            latency_ms=10.0 + grown["latency"] * number,
        )
        for number in range(25)
    ]


def test_a_day_like_any_other_has_no_findings() -> None:
    assert findings(a_day()) == []
    assert findings(a_day(memory=-1.0, latency=0.1)) == []


@pytest.mark.parametrize(
    ("what", "per_hour", "word"),
    [
        ("memory", 0.05, "memory grew by 1."),
        ("descriptors", 0.1, "descriptors grew from"),
        ("threads", 0.1, "threads grew from"),
        ("latency", 1.0, "latency is"),
    ],
)
def test_what_grows_is_found(what: str, per_hour: float, word: str) -> None:
    (found,) = findings(a_day(**{what: per_hour}))
    assert word in found


def test_drift_is_found() -> None:
    hours = a_day()
    hours[7] = replace(hours[7], drift="- a rule")
    assert findings(hours) == ["hour 7: drift: - a rule"]
