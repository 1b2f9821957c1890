"""Are these outcomes what was expected? Pure but for the memory of sticky clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kpctl.flows.spread import unevenness
from kpctl.flows.text import Expected
from kpctl.lab.probe import Fate, Outcome


def judge(
    outcomes: Sequence[Outcome], expected: Expected, seen: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """What is wrong; `seen` says which source addresses each host may see (empty: any)."""
    wrong = Counter(
        sentence for outcome in outcomes if (sentence := _mistake(outcome, expected, seen))
    )
    sentences = [f"{text} ({count} of {len(outcomes)})" for text, count in wrong.items()]
    if not sentences and expected.is_even:
        uneven = unevenness(hosts_of(outcomes), expected.hosts)
        sentences += [uneven] if uneven else []
    return sentences


def hosts_of(outcomes: Sequence[Outcome]) -> Counter[str]:
    """Who answered how often."""
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


class Memory:
    """Where sticky clients stick."""

    def __init__(self) -> None:
        self._stuck: dict[str, str] = {}

    def judge(self, key: str, outcomes: Sequence[Outcome], expected: Expected) -> list[str]:
        """What is wrong with where these outcomes went, given where earlier ones did."""
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
    return ", ".join(sorted(hosts)) or "nobody"
