"""The client's own limit, the proxy rules and the back-off: pure functions of time and text."""

from __future__ import annotations

import pytest

from kubeproxy.api.auth.proxy import choose_proxy
from kubeproxy.api.backoff import Backoff, BackoffPolicy
from kubeproxy.api.limits import TokenBucket
from kubeproxy.errors import ConfigError


def test_a_burst_is_free_and_then_requests_are_spaced() -> None:
    bucket = TokenBucket(qps=2, burst=3)
    assert [bucket.reserve(0.0) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]


def test_tokens_come_back_with_time_but_not_more_than_the_burst() -> None:
    bucket = TokenBucket(qps=2, burst=3)
    for _ in range(3):
        bucket.reserve(0.0)
    assert bucket.reserve(0.5) == 0
    assert bucket.reserve(0.5) == 0.5
    assert [bucket.reserve(100.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_a_negative_rate_is_no_limit() -> None:
    bucket = TokenBucket(qps=-1, burst=1)
    assert {bucket.reserve(0.0) for _ in range(100)} == {0.0}


def test_zero_means_the_default() -> None:
    bucket = TokenBucket(qps=0, burst=0)
    waits = [bucket.reserve(0.0) for _ in range(11)]
    assert waits[9:] == [0.0, 0.2]


def test_a_clock_that_stands_still_or_jumps_back_gives_no_tokens() -> None:
    bucket = TokenBucket(qps=1, burst=1)
    assert bucket.reserve(10.0) == 0
    assert bucket.reserve(9.0) == 1.0


def test_back_off_doubles_up_to_its_cap() -> None:
    backoff = Backoff(BackoffPolicy())
    waits = [backoff.fail(0.0, 0.0) for _ in range(8)]
    assert waits == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_back_off_adds_jitter_and_forgets_after_two_quiet_minutes() -> None:
    backoff = Backoff(BackoffPolicy())
    assert backoff.fail(0.0, 1.0) == 1.6
    assert backoff.fail(119.0, 0.5) == pytest.approx(2.4)
    assert backoff.fail(119.0 + 121.0, 0.0) == 0.8


ENV = {"HTTPS_PROXY": "http://proxy:3128", "http_proxy": "plain:8080"}


@pytest.mark.parametrize(
    ("server", "no_proxy", "expected"),
    [
        ("https://api.example:6443", "", "http://proxy:3128"),
        ("http://api.example", "", "http://plain:8080"),
        ("https://127.0.0.1:6443", "", ""),
        ("https://localhost", "", ""),
        ("https://[::1]:6443", "", ""),
        ("https://10.96.0.1:443", "192.168.0.0/16, 10.96.0.0/12", ""),
        ("https://10.80.0.1:443", "10.96.0.0/12", "http://proxy:3128"),
        ("https://[fd00::1]", "fd00::/64", ""),
        ("https://10.96.0.1", "10.96.0.1", ""),
        ("https://[fd00::1]", "fd00:0::1", ""),
        ("https://10.96.0.1", "10.96.0.1:8443", "http://proxy:3128"),
        ("https://10.96.0.1:8443", "10.96.0.1:8443", ""),
        ("https://a.b.example", "b.example", ""),
        ("https://a.b.example", ".example", ""),
        ("https://a.b.example", "*.example", ""),
        ("https://example", ".example", "http://proxy:3128"),
        ("https://notexample", "example", "http://proxy:3128"),
        ("https://api", "*", ""),
        ("https://api", "not/a/network", "http://proxy:3128"),
    ],
)
def test_the_environment_decides_about_a_proxy(server: str, no_proxy: str, expected: str) -> None:
    assert choose_proxy(server, "", ENV | {"NO_PROXY": no_proxy}) == expected


def test_the_kubeconfig_beats_the_environment() -> None:
    env = ENV | {"NO_PROXY": "*"}
    assert choose_proxy("https://api", "http://mine:1", env) == "http://mine:1"


def test_a_socks_proxy_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="put an HTTP proxy in front"):
        choose_proxy("https://api", "socks5://x:1080", {})
