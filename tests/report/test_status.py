"""The status: one screen, and whether something is wrong."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.snapshots import NOW, repair, round_, status

from kpctl.report.status import StatusReport, status_report
from kpctl.report.statustext import status_text
from kubeproxy.inspection.types import Collection, History, Problem, Refused, Status

FAILING = Collection("endpointslices", "failing", 12.0, "connection refused")


def report(found: Status, *rounds: str) -> StatusReport:
    history = History(tuple(round_(error=error, latency=0.04) for error in rounds), (repair(),))
    return status_report("a test", found, history)


def text_of(found: StatusReport) -> str:
    return "\n".join(" " * indent + text for indent, text in status_text(found))


def test_a_healthy_proxy_has_no_troubles() -> None:
    found = report(status(), "", "")
    assert not found.troubles
    text = text_of(found)
    for words in (
        "kube-proxy 0.1.0 (v1.36.4) on node worker-a",
        "nftables mode, IPv4 and IPv6",
        "watching for 1 min",
        "median 2.0 ms",
        "lag       2 changes",
        "nft (process 7)",
    ):
        assert words in text
    assert len(text.splitlines()) <= 24, "one screen"
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (status(collections=[FAILING]), "connection refused"),
        (status(is_healthy=False), "a sync is overdue"),
        (status(last_sync_at=None), "not been synced yet"),
        (status(refused=[Refused("shop/web:http/TCP", "no space")]), "refused"),
    ],
)
def test_each_trouble_is_named(found: Status, words: str) -> None:
    assert any(words in trouble for trouble in report(found, "").troubles)
    assert "NOT HEALTHY" in text_of(report(found, ""))


def test_a_failed_round_is_a_trouble_until_the_next_succeeds() -> None:
    assert report(status(), "", "the kernel is busy").troubles
    found = report(status(), "the kernel is busy", "")
    assert not found.troubles and found.rounds.failed == 1
    assert "the last failure: the kernel is busy" in text_of(found)


def test_objects_that_cannot_be_used_are_listed_with_the_time() -> None:
    """They do not make the proxy unhealthy: nothing tells when one was corrected."""
    problems = [
        Problem(NOW - 60 * n, "Service", f"shop/bad-{n}", "no port") for n in range(9, 0, -1)
    ]
    found = report(status(problems=problems), "")
    assert not found.troubles
    text = text_of(found)
    assert "1 min ago: Service shop/bad-1: no port" in text and "… and 4 more" in text


def test_checked_endpoints_are_counted_where_there_are_any() -> None:
    assert "checked" not in text_of(report(status()))
    found = text_of(report(replace(status(), checked=12, failing=3)))
    assert "checked   12 addresses of endpoints, of which 3 fail" in found
