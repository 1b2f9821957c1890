"""Outcomes are compared with what is expected, and an uneven choice is recognised."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kpctl.flows.lasting import Lasting, parse_becomes
from kpctl.flows.outcomes import Stickiness, check_outcomes
from kpctl.flows.spread import FALSE_ALARM, chi_square_tail, unevenness
from kpctl.flows.text import parse_expected
from kpctl.lab.echo import EchoReply
from kpctl.lab.probe import Connection, Fate, Outcome


def met(*hosts: str, source: str = "10.0.0.1") -> list[Outcome]:
    return [Outcome(Fate.ANSWERED, EchoReply(host, source, 1)) for host in hosts]


@pytest.mark.parametrize(
    ("expected", "outcomes", "wrong"),
    [
        ("a or b sees c", met("a", "b"), []),
        ("a", met("a", "b"), ["answered by b (1 of 2)"]),
        ("a sees c", met("a", source="10.0.0.9"), ["a must see 10.0.0.1, saw 10.0.0.9 (1 of 1)"]),
        ("dropped", [Outcome(Fate.DROPPED)], []),
        ("rejected", [Outcome(Fate.DROPPED)], ["expected rejected, was dropped (1 of 1)"]),
        ("dropped", met("a"), ["expected dropped, was answered by a (1 of 1)"]),
    ],
)
def test_outcomes(expected: str, outcomes: list[Outcome], wrong: list[str]) -> None:
    parsed = parse_expected(expected)
    seen = {host: ("10.0.0.1",) if parsed.seen_by(host) else () for host in parsed.hosts}
    assert check_outcomes(outcomes, parsed, seen) == wrong


def test_uneven_answers_are_wrong_only_where_evenness_was_asked() -> None:
    outcomes = met(*["a"] * 100, *["b"] * 10)
    assert check_outcomes(outcomes, parse_expected("a or b"), {}) == []
    assert (
        "unevenly (a 100, b 10)"
        in check_outcomes(outcomes, parse_expected("a or b, evenly"), {})[0]
    )


def test_sticky_clients_are_remembered() -> None:
    stickiness = Stickiness()
    assert stickiness.check("k", met("a", "b"), parse_expected("a or b, sticky")) == [
        "must stick to one endpoint, met a, b"
    ]
    assert stickiness.check("k", met("a", "a"), parse_expected("a or b, sticky")) == []
    assert stickiness.check("k", met("a"), parse_expected("a or b, as before")) == []
    assert stickiness.check("k", met("b"), parse_expected("a or b, as before")) == [
        "must meet a as before, met b"
    ]


def test_what_the_kernel_remembers_and_forgets() -> None:
    stickiness = Stickiness()
    assert stickiness.check("k", met("a", "a"), parse_expected("a or b, still a")) == []
    assert stickiness.check("k", met("a", "b"), parse_expected("a or b, still a")) != []
    assert stickiness.check("k", met("a", "b"), parse_expected("a or b, not only a")) == []
    assert stickiness.check("k", met("a", "a"), parse_expected("a or b, not only a")) != []


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"),
    [(3.841, 1, 0.05), (5.991, 2, 0.05), (7.815, 3, 0.05), (13.816, 2, 0.001), (0, 4, 1.0)],
)
def test_chi_square_agrees_with_the_tables(statistic: float, freedom: int, tail: float) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(tail, rel=2e-3)


HOSTS = ("a", "b", "c")
PROBES = 240
"""As many as the flow that tests the spread sends."""


def found_uneven(weights: tuple[int, int, int], runs: int) -> int:
    lots = random.Random(7)
    return sum(
        bool(unevenness(Counter(lots.choices(HOSTS, weights, k=PROBES)), HOSTS))
        for _ in range(runs)
    )


def test_an_even_choice_raises_no_alarm() -> None:
    """The stated rate is one in a million, so two thousand runs see none."""
    assert FALSE_ALARM == 1e-6
    assert found_uneven((1, 1, 1), 2000) == 0


@pytest.mark.parametrize("weights", [(1, 1, 0), (4, 1, 1)])
def test_a_forgotten_or_favoured_endpoint_is_found(weights: tuple[int, int, int]) -> None:
    assert found_uneven(weights, 500) == 500


class Open(Connection):
    """A connection of which one more request has this outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    async def ask(self, *, timeout_seconds: float = 0.0) -> Outcome:
        return self._outcome


CLOSED = Outcome(Fate.BROKEN, cause="Software caused connection abort")
NO_PEER = Outcome(Fate.BROKEN, cause="Destination address required")


@pytest.mark.parametrize("outcome", [CLOSED, NO_PEER, *met("b"), *met("c")])
async def test_a_flow_moves_or_its_socket_is_closed(outcome: Outcome) -> None:
    """Kernels that cannot close it let it move."""
    wanted = parse_becomes("is closed or moves to b or c")
    assert await Lasting(Open(outcome), "a").check(wanted) == ""


async def test_silence_is_not_a_closed_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kpctl.flows.lasting._PATIENCE_SECONDS", 0.0)
    silent = Outcome(Fate.BROKEN, cause="no answer in time")
    wanted = parse_becomes("is closed or moves to b")
    assert await Lasting(Open(silent), "a").check(wanted) == "must move to b: no answer in time"
    strict = parse_becomes("moves to b")
    assert "connection abort" in await Lasting(Open(CLOSED), "a").check(strict)
