"""Compares the outcomes of probes with what a flow expects. Pure, except `Stickiness`.

Mistakes are returned as sentences, and none means that everything is as expected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kpctl.flows.spread import unevenness
from kpctl.flows.text import Expected
from kpctl.lab.probe import Fate, Outcome


def check_outcomes(
    outcomes: Sequence[Outcome], expected: Expected, seen: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Check fates, hosts, source addresses and spread. Return what is wrong.

    `seen` holds the source addresses that each host may see; empty means any.
    """
    wrong = Counter(
        sentence for outcome in outcomes if (sentence := _mistake(outcome, expected, seen))
    )
    sentences = [f"{text} ({count} of {len(outcomes)})" for text, count in wrong.items()]
    if not sentences and expected.is_even:
        uneven = unevenness(hosts_of(outcomes), expected.hosts, expected.weights)
        sentences += [uneven] if uneven else []
    if not sentences and expected.is_in_turn:
        sentences += _out_of_turn(hosts_of(outcomes), expected.weights)
    return sentences


def _out_of_turn(counts: Counter[str], weights: Mapping[str, int]) -> list[str]:
    """Whole cycles give exact counts, whichever of them began with the first probe."""
    total, cycle = sum(counts.values()), sum(weights.values())
    wanted = {host: total * weight / cycle for host, weight in weights.items()}
    if all(counts[host] == due for host, due in wanted.items()):
        return []
    shown = ", ".join(f"{host} {counts[host]}" for host in sorted(weights))
    return [f"{total} answers did not come in turn ({shown})"]


def hosts_of(outcomes: Sequence[Outcome]) -> Counter[str]:
    """The hosts that answered, with how often."""
    return Counter(outcome.answer.host for outcome in outcomes if outcome.answer is not None)


def _mistake(outcome: Outcome, expected: Expected, seen: Mapping[str, tuple[str, ...]]) -> str:
    if outcome.fate is not expected.fate:
        who = f" by {outcome.answer.host}" if outcome.answer else ""
        return f"expected {expected.fate.value}, was {outcome.fate.value}{who}"
    if expected.fate is not Fate.ANSWERED or outcome.answer is None:
        return ""
    answer = outcome.answer
    if answer.host not in expected.hosts:
        return f"answered by {answer.host}"
    allowed = seen.get(answer.host, ())
    if allowed and answer.source not in allowed:
        return f"{answer.host} must see {' or '.join(allowed)}, saw {answer.source}"
    return ""


class Stickiness:
    """Remembers which host each sticky client met, from one check to the next."""

    def __init__(self) -> None:
        self._stuck: dict[str, str] = {}

    def check(self, key: str, outcomes: Sequence[Outcome], expected: Expected) -> list[str]:
        """Check which hosts answered, given those before. Return what is wrong."""
        hosts = set(hosts_of(outcomes))
        if expected.still and hosts != {expected.still}:
            return [f"must still meet {expected.still}, met {_names(hosts)}"]
        if expected.not_only and hosts == {expected.not_only}:
            return [f"still met only {expected.not_only}"]
        if not (expected.is_sticky or expected.is_as_before):
            return []
        if len(hosts) != 1:
            return [f"must stick to one endpoint, met {_names(hosts)}"]
        (host,) = hosts
        if expected.is_as_before and host != self._stuck.get(key):
            return [f"must meet {self._stuck.get(key)} as before, met {host}"]
        self._stuck[key] = host
        return []


def _names(hosts: set[str]) -> str:
    return ", ".join(sorted(hosts)) or "no host"
