"""When to run: the state table of the bounded frequency runner."""

from __future__ import annotations

import pytest

from kubeproxy.errors import ConfigError
from kubeproxy.sync.runner import MERGED, SPACING, Runner


def runner() -> Runner:
    made = Runner("sync", min_seconds=1, retry_seconds=30, max_seconds=3600)
    made.start(0.0)
    return made


def test_nothing_runs_by_itself_before_the_longest_interval() -> None:
    assert runner().due_at() == 3600


def test_the_first_request_runs_at_once() -> None:
    made = runner()
    made.request()
    assert made.due_at() == float("-inf")


def test_requests_before_the_start_are_remembered() -> None:
    made = Runner("sync", min_seconds=1, retry_seconds=30, max_seconds=3600)
    made.request()
    made.start(5.0)
    assert made.due_at() == float("-inf")


def test_the_pause_counts_from_the_end_of_the_run() -> None:
    made = runner()
    made.request()
    made.begin(0.0)
    made.end(10.0, is_success=True)
    made.request()
    assert made.due_at() == 11.0


def test_a_burst_of_requests_costs_one_more_run() -> None:
    made = runner()
    made.begin(0.0)
    for _ in range(100):
        made.request()
    made.end(10.0, is_success=True)
    assert made.due_at() == 11.0
    made.begin(0.0)
    made.end(12.0, is_success=True)
    assert made.due_at() == 3612.0


def test_a_failure_brings_the_next_run_forward_and_again() -> None:
    made = runner()
    for end in (10.0, 40.0):
        made.begin(0.0)
        made.end(end, is_success=False)
        assert made.due_at() == end + 30


def test_a_request_supersedes_a_retry_and_success_ends_it() -> None:
    made = runner()
    made.begin(0.0)
    made.end(10.0, is_success=False)
    made.request()
    assert made.due_at() == 11.0
    made.begin(0.0)
    made.end(12.0, is_success=True)
    assert made.due_at() == 12.0 + 3600


def test_the_retry_never_exceeds_the_longest_interval() -> None:
    made = Runner("sync", min_seconds=1, retry_seconds=100, max_seconds=20)
    made.begin(0.0)
    made.end(0.0, is_success=False)
    assert made.due_at() == 20.0


def test_a_longest_interval_below_the_shortest_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must be >= minInterval"):
        Runner("sync", min_seconds=2, retry_seconds=1, max_seconds=1)


def test_no_pause_allows_back_to_back_runs() -> None:
    made = Runner("sync", min_seconds=0, retry_seconds=1, max_seconds=10)
    made.begin(0.0)
    made.request()
    made.end(5.0, is_success=True)
    assert made.due_at() == 5.0


def test_the_pause_is_each_services_own() -> None:
    """Where one changes without end, a change elsewhere does not wait for the pause it causes."""
    made = runner()
    made.request("noisy")
    made.begin(10.0)
    made.request("noisy")
    made.end(10.1, is_success=True)
    assert made.due_at() == 11.1
    made.request("quiet")
    assert made.due_at() == pytest.approx(10.1 + SPACING * 0.1)
    made.begin(10.4)
    made.end(10.5, is_success=True)
    made.request("quiet")
    assert made.due_at() == 11.5, "which is not quiet any more"


def test_quick_runs_for_many_services_have_a_pause_too() -> None:
    """Or a thousand changes a second would be a thousand runs, if each takes no time."""
    made = runner()
    made.request("one")
    made.begin(10.0)
    made.end(10.0, is_success=True)
    made.request("another")
    assert made.due_at() == 10.0 + MERGED


def test_many_services_get_a_bounded_share_of_the_time() -> None:
    made, now = runner(), 0.0
    for number in range(100):
        made.request(f"service-{number}")
        now = max(now, made.due_at())
        made.begin(now)
        now += 0.1
        made.end(now, is_success=True)
    assert now >= 99 * (1 + SPACING) * 0.1


def test_a_storm_of_services_is_a_few_runs() -> None:
    """5,000 created within a second: the first at once, the others share runs."""
    made, now, runs = runner(), 0.0, 0
    for number in range(5000):
        made.request(f"service-{number}")
        now = (number + 1) / 5000
        if made.due_at() <= now:
            made.begin(now)
            made.end(now, is_success=True)
            runs += 1
    assert runs <= 1 + now / MERGED


def test_after_a_failure_every_service_waits() -> None:
    made = runner()
    made.request("one")
    made.begin(10.0)
    made.end(10.0, is_success=False)
    made.request("another")
    assert made.due_at() == 11.0


def test_services_are_forgotten_after_their_pause() -> None:
    """Or their number would grow with those that ever existed."""
    made = runner()
    for number in range(1000):
        made.request(f"service-{number}")
        made.begin(float(number))
        made.end(float(number), is_success=True)
    assert len(made.paused) <= 2
