"""When to run: the state table of the bounded frequency runner."""

from __future__ import annotations

import pytest

from kubeproxy.errors import ConfigError
from kubeproxy.sync.runner import Runner


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
    made.begin()
    made.end(10.0, is_success=True)
    made.request()
    assert made.due_at() == 11.0


def test_a_burst_of_requests_costs_one_more_run() -> None:
    made = runner()
    made.begin()
    for _ in range(100):
        made.request()
    made.end(10.0, is_success=True)
    assert made.due_at() == 11.0
    made.begin()
    made.end(12.0, is_success=True)
    assert made.due_at() == 3612.0


def test_a_failure_brings_the_next_run_forward_and_again() -> None:
    made = runner()
    for end in (10.0, 40.0):
        made.begin()
        made.end(end, is_success=False)
        assert made.due_at() == end + 30


def test_a_request_supersedes_a_retry_and_success_ends_it() -> None:
    made = runner()
    made.begin()
    made.end(10.0, is_success=False)
    made.request()
    assert made.due_at() == 11.0
    made.begin()
    made.end(12.0, is_success=True)
    assert made.due_at() == 12.0 + 3600


def test_the_retry_never_exceeds_the_longest_interval() -> None:
    made = Runner("sync", min_seconds=1, retry_seconds=100, max_seconds=20)
    made.begin()
    made.end(0.0, is_success=False)
    assert made.due_at() == 20.0


def test_a_longest_interval_below_the_shortest_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must be >= minInterval"):
        Runner("sync", min_seconds=2, retry_seconds=1, max_seconds=1)


def test_no_pause_allows_back_to_back_runs() -> None:
    made = Runner("sync", min_seconds=0, retry_seconds=1, max_seconds=10)
    made.begin()
    made.request()
    made.end(5.0, is_success=True)
    assert made.due_at() == 5.0
