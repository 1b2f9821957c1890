"""The benchmark of many proxies at one API server."""

from __future__ import annotations

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kpctl.bench.fleet import MODE, FleetEffort, count_requests, extrapolate, measure_fleet
from kpctl.bench.records import OURS, UPSTREAM, Measurement, Size, summarise

METRICS = """# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="services",verb="LIST"} 3
apiserver_request_total{code="200",resource="endpointslices",verb="PATCH"} 100
apiserver_request_total{code="200",resource="leases",verb="GET"} 7
apiserver_longrunning_requests{resource="endpointslices",verb="WATCH"} 2
"""


def test_requests_of_proxies_are_told_from_the_writers_and_the_servers_own() -> None:
    assert count_requests(METRICS) == 5


def fleet_figure(name: str, program: str, value: float, unit: str) -> Measurement:
    return Measurement(MODE, f"fleet of 50: {name}", Size(500), program, value, unit)


def test_the_extrapolation_shows_its_arithmetic() -> None:
    measured = [
        fleet_figure("start, API server CPU", OURS, 20, "ms per proxy"),
        fleet_figure("start, API server CPU", UPSTREAM, 30, "ms per proxy"),
        fleet_figure("watch lag, p99", OURS, 9, "ms"),
    ]
    assert extrapolate(summarise(measured)) == [
        "5000 nodes, API server CPU when all start: "
        "ours 20 ms per proxy × 5000 = 100 CPU s; upstream 30 ms per proxy × 5000 = 150 CPU s"
    ]


@pytest.mark.kernel
@pytest.mark.api
@pytest.mark.timeout(1800)
def test_a_small_fleet_is_measured(programs: None) -> None:
    """Two proxies of ours: everything that a row is made of is found."""
    found: list[Measurement] = []
    effort = FleetEffort(
        proxies=2, size=Size(20, 2), samples=2, churn_rate=10, churn_seconds=1.0,
        cutoff_seconds=LIMIT_SECONDS, programs=(OURS,), idle_seconds=0,
    )  # fmt: skip
    measure_fleet(effort, started=lambda _: None, found=found.extend, is_over=lambda _: False)
    values = {each.name.partition(": ")[2]: each.value for each in found}
    # Services, slices and the rest are listed and watched by each, and by no one else.
    assert 4 <= values["start, requests"] <= 20
    assert values["start, bytes"] > values["churn, bytes of a change"] > 0
    assert 0 < values["watch lag, p50"] <= values["watch lag, p99"]
    assert values["watch lag, p50"] < values["programmed, p99"]
    assert len(extrapolate(summarise(found))) == 6
