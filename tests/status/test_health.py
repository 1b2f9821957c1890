"""The sync-health state machine as a table, and the bodies of /healthz and /livez byte by byte."""

from __future__ import annotations

import pytest

from kubeproxy.facts.ids import Family
from kubeproxy.go.time import (
    format_http_date,
    format_rfc3339_micro,
    format_rfc3339_nano,
    format_unix_date,
    format_uptime,
)
from kubeproxy.status.health import (
    ProxyHealth,
    SyncState,
    assess,
    healthz_response,
    livez_response,
    queue,
    update,
)

V4, V6 = Family.IPV4, Family.IPV6
NOON_NS = 1_794_744_000 * 10**9  # 2026-11-15T12:00:00Z
SECOND = 10**9

# Steps are "<second> <family> <q(ueued)|u(pdated)>"; the timeout is 60 seconds.
TABLE = {
    "nothing happened yet": ([], 1000, True),
    "queued but never updated: still starting": (["0 4 q"], 1000, True),
    "updated, nothing owed": (["0 4 u"], 1000, True),
    "owed for less than the timeout": (["0 4 u", "10 4 q"], 69.9, True),
    "owed for exactly the timeout": (["0 4 u", "10 4 q"], 70, False),
    "asking again does not restart the wait": (["0 4 u", "10 4 q", "60 4 q"], 70, False),
    "a success ends the wait": (["0 4 u", "10 4 q", "80 4 u"], 1000, True),
    "a new wait starts after a success": (["0 4 u", "1 4 q", "2 4 u", "50 4 q"], 100, True),
    "queued before the first update is forgotten by it": (["0 4 q", "30 4 u"], 1000, True),
    "one late family is enough": (["0 4 u", "0 6 u", "10 6 q"], 70, False),
    "a late family that never reported does not count": (["0 4 u", "0 6 q"], 1000, True),
}


def run(steps: list[str]) -> SyncState:
    state = SyncState(timeout_seconds=60)
    for step in steps:
        second, number, verb = step.split()
        family = V4 if number == "4" else V6
        if verb == "q":
            state = queue(state, family, float(second))
        else:
            state = update(state, family, NOON_NS + int(second) * SECOND)
    return state


@pytest.mark.parametrize(("steps", "now", "is_healthy"), TABLE.values(), ids=TABLE)
def test_health_by_history(steps: list[str], now: float, is_healthy: bool) -> None:
    assert assess(run(steps), now).is_healthy is is_healthy


def test_healthz_passing() -> None:
    """All families healthy, node eligible: 200, lastUpdated is the time of the request."""
    health = assess(run(["0 4 u", "1 6 u"]), 5)
    response = healthz_response(health, NOON_NS + 5 * SECOND + 85182829 * 10, eligible=True)
    assert response.code == 200
    assert response.body == (
        b'{"lastUpdated":"2026-11-15T12:00:05.85182829Z",'
        b'"currentTime":"2026-11-15T12:00:05.85182829Z",'
        b'"nodeEligible":true,"healthy":true,"status":{'
        b'"IPv4":{"lastUpdated":"2026-11-15T12:00:00Z","healthy":true},'
        b'"IPv6":{"lastUpdated":"2026-11-15T12:00:01Z","healthy":true}}}'
    )


def test_an_ineligible_node_fails_healthz_although_the_proxy_is_healthy() -> None:
    health = assess(run(["7 6 u"]), 8)
    response = healthz_response(health, NOON_NS, eligible=False)
    assert response.code == 503
    assert response.body == (
        b'{"lastUpdated":"2026-11-15T12:00:07Z","currentTime":"2026-11-15T12:00:00Z",'
        b'"nodeEligible":false,"healthy":true,"status":{'
        b'"IPv6":{"lastUpdated":"2026-11-15T12:00:07Z","healthy":true}}}'
    )
    assert livez_response(health, NOON_NS).code == 200


def test_a_late_family_fails_both_and_is_named() -> None:
    health = assess(run(["0 4 u", "3 6 u", "9 4 q"]), 100)
    response = livez_response(health, NOON_NS)
    assert response.code == 503
    assert response.body == (
        b'{"lastUpdated":"2026-11-15T12:00:03Z","currentTime":"2026-11-15T12:00:00Z",'
        b'"healthy":false,"status":{'
        b'"IPv4":{"lastUpdated":"2026-11-15T12:00:00Z","healthy":false},'
        b'"IPv6":{"lastUpdated":"2026-11-15T12:00:03Z","healthy":true}}}'
    )
    assert healthz_response(health, NOON_NS, eligible=True).code == 503


def test_before_any_report_there_is_no_status_and_a_zero_time() -> None:
    health = assess(run([]), 0)
    assert healthz_response(health, NOON_NS, eligible=False).body == (
        b'{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-11-15T12:00:00Z",'
        b'"nodeEligible":false,"healthy":true}'
    )
    assert livez_response(health, NOON_NS).code == 200


def test_the_holder_uses_its_clocks_and_zone() -> None:
    """Waiting follows the monotonic clock: a jump of the wall clock changes no health."""
    wall, monotonic = [NOON_NS], [0.0]
    health = ProxyHealth(
        60, monotonic=lambda: monotonic[0], wall_ns=lambda: wall[0], offset=lambda: 3600
    )
    assert health.healthz().code == 503  # no Node seen yet
    health.node_eligible = True
    health.updated(V4)
    health.queued(V4)
    wall[0] += 3600 * SECOND
    assert health.healthz().code == 200
    assert b'"currentTime":"2026-11-15T14:00:00+01:00"' in health.livez().body
    monotonic[0] = 60
    assert health.livez().code == 503
    assert not health.is_healthy()


@pytest.mark.parametrize(
    ("unix_ns", "offset", "text"),
    [
        (NOON_NS, 0, "2026-11-15T12:00:00Z"),
        (NOON_NS + 1, 0, "2026-11-15T12:00:00.000000001Z"),
        (NOON_NS + 500_000_000, 0, "2026-11-15T12:00:00.5Z"),
        (NOON_NS, -16200, "2026-11-15T07:30:00-04:30"),
    ],
)
def test_times_as_go_prints_them(unix_ns: int, offset: int, text: str) -> None:
    assert format_rfc3339_nano(unix_ns, offset) == text


def test_other_spellings_of_time() -> None:
    assert format_rfc3339_micro(NOON_NS + 1_999) == "2026-11-15T12:00:00.000001Z"
    assert format_unix_date(NOON_NS - 14 * 86400 * SECOND) == "Sun Nov  1 12:00:00 UTC 2026"
    assert format_http_date(NOON_NS) == "Sun, 15 Nov 2026 12:00:00 GMT"
    assert format_uptime(3 * 3600 + 4 * 60 + 5) == "3 hr 04 min 05 sec"


def test_no_sync_is_owed_while_another_proxy_serves() -> None:
    """One that waits for its turn is alive and healthy, however long that takes."""
    now = 0.0
    health = ProxyHealth(60, monotonic=lambda: now, wall_ns=lambda: NOON_NS)
    health.node_eligible = health.is_waiting = True
    health.updated(V4)
    health.queued(V4)
    now = 1000.0
    assert (health.healthz().code, health.livez().code) == (200, 200)
    health.is_waiting = False
    health.queued(V4)
    now = 2000.0
    assert (health.healthz().code, health.livez().code) == (503, 503)
