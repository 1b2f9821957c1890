"""What a sample of `kpctl top` is made of."""

from __future__ import annotations

from kpctl.top.sample import Rounds, Sample, Traffic, refused_since, rounds_since, rows_of
from kpctl.top.view import document, lines, rounds_text
from kubeproxy.facts.ids import Family, Protocol, ServicePortId
from kubeproxy.inspection.types import History, Round
from kubeproxy.modes.base import RefusedPackets

WEB = ServicePortId("shop", "web", "http", Protocol.TCP)
API = ServicePortId("shop", "api", "http", Protocol.TCP)
GONE = (WEB, "reject", "has no endpoints")
FOUR = Family.IPV4


def a_sample(**given: object) -> Sample:
    traffic = Traffic()
    traffic.add(FOUR, API, "10.0.0.1:80")
    for number in range(4):
        traffic.add(FOUR, WEB, f"10.0.0.{number // 3 + 1}:80")
    return Sample(2.0, rows_of(traffic.take(), {}), Rounds(), **given)  # type: ignore[arg-type]


def test_rows_are_sorted_by_connections_and_show_shares() -> None:
    rows = document("here", "nftables", a_sample())["services"]
    assert isinstance(rows, list)
    assert [row["service"] for row in rows] == ["shop/web:http", "shop/api:http"]
    assert rows[0]["connectionsPerSecond"] == 2.0
    assert rows[0]["endpoints"] == [
        {"endpoint": "10.0.0.1:80", "share": 0.75},
        {"endpoint": "10.0.0.2:80", "share": 0.25},
    ]


def test_traffic_that_was_taken_is_not_counted_twice() -> None:
    traffic = Traffic()
    traffic.add(FOUR, WEB, "10.0.0.1:80")
    assert traffic.take()
    assert not traffic.take()


def test_refusals_count_from_the_last_sample_on() -> None:
    first, held = refused_since({}, [RefusedPackets(*GONE, 5)])
    assert first == {GONE: 5}
    second, held = refused_since(held, [RefusedPackets(*GONE, 7)])
    assert second == {GONE: 2}
    third, _ = refused_since(held, [RefusedPackets(*GONE, 3)])
    assert third == {GONE: 3}, "the rule was written again and counts from 0"


def test_a_service_that_only_refuses_has_a_row_with_the_reason() -> None:
    (row,) = rows_of({}, {FOUR: {GONE: 4}})
    assert (row.connections, row.rejected, row.dropped) == (0, 4, 0)
    text = lines("here", "iptables", Sample(2.0, [row], Rounds()))
    assert text[4].split() == ["shop/web:http/TCP", "0.0", "2.0", "0.0", "has", "no", "endpoints"]


def test_what_does_not_fit_and_what_was_lost_is_said() -> None:
    text = lines("here", "nftables", a_sample(overruns=3, notes=("a note",)), most_rows=1)
    assert text[-3:] == [
        "... and 1 more",
        "events were lost 3 times: there were more connections",
        "note: a note",
    ]


def a_round(at: float, seconds: float, latency: float = 0.0) -> Round:
    return Round(at, FOUR, False, seconds, 1, 1, 1, 1, 0, "", int(latency > 0), latency)


def test_rounds_of_the_interval_are_summed_and_the_slowest_change_named() -> None:
    history = History((a_round(1, 9.0), a_round(5, 0.001), a_round(6, 0.002, 1.5)), ())
    rounds = rounds_since(history, 4)
    assert rounds_text(rounds) == "rounds: 2, 3.0 ms together; endpoints programmed within 1.50 s"
    assert rounds_text(rounds_since(history, 6)) == (
        "rounds: none in this interval, the last took 2.0 ms"
    )
    assert rounds_text(rounds_since(History((), ()), 0)) == "rounds: none yet"
