"""A followed connection as lines for people and as data for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kpctl.trace.live import Followed
from kpctl.trace.marking import END_OF_CHAIN, Passed
from kpctl.trace.packets import Ruling
from kubeproxy.facts.address import join_host_port

_WITHOUT_EFFECT = ("", "continue", "return")
_RULINGS = {
    Ruling.FORWARD: "forwarded",
    Ruling.REJECT: "rejected",
    Ruling.DROP: "dropped",
    Ruling.UNTOUCHED: "left alone: no rule translates it",
}


def followed_lines(followed: Followed, *, mode: str, is_wide: bool = False) -> Iterator[str]:
    """What the packet met, chain by chain."""
    arrival = followed.arrival
    place = f"{join_host_port(arrival.destination, arrival.port)}/{arrival.protocol.value}"
    yield f"A new connection to {place}" + (
        f", which is {followed.service}" if followed.service else ", of no Service"
    )
    last = ("", "")
    for passed in followed.passed:
        if not is_wide and not _is_worth_showing(passed):
            continue
        if (passed.table, passed.chain) != last:
            last = (passed.table, passed.chain)
            yield _chain_line(followed, passed)
        yield f"    {_rule_text(followed, passed)}"
    yield ""
    yield from _conclusion(followed, mode)


def _is_worth_showing(passed: Passed) -> bool:
    return passed.rule != END_OF_CHAIN or passed.is_drop


def _rule_text(followed: Followed, passed: Passed) -> str:
    if passed.verdict in _WITHOUT_EFFECT:
        return passed.rule
    # What a rule of nftables finds in a map is the Service's.
    is_found = "map @" in passed.rule and followed.service
    return f"{passed.rule}  → {passed.verdict}" + (f"  # {followed.service}" if is_found else "")


def _chain_line(followed: Followed, passed: Passed) -> str:
    owner = followed.owners.get((passed.table, passed.chain))
    return f"  {passed.table} {passed.chain}" + (f"  # {owner}" if owner else "")


def _conclusion(followed: Followed, mode: str) -> Iterator[str]:
    to = ""
    if followed.ruling is Ruling.FORWARD and followed.reached:
        to = f" to {join_host_port(*followed.reached)}"
    agrees = "as planned" if followed.is_as_planned else f"but the plan says {followed.expected}"
    yield f"Verdict: {_RULINGS[followed.ruling]}{to}; {agrees}."
    if mode == "ipvs":
        yield "IPVS itself reports nothing: what it chose is seen in the rules behind it."
    elif mode == "userspace" and followed.ruling is Ruling.FORWARD:
        yield "From there a process of the proxy carries it: `kpctl connections` shows where to."


def followed_data(followed: Followed, *, mode: str) -> dict[str, object]:
    """The same as plain data."""
    arrival, reached = followed.arrival, followed.reached
    return {
        "destination": arrival.destination,
        "port": arrival.port,
        "protocol": arrival.protocol.value,
        "mode": mode,
        "service": followed.service or None,
        "verdict": followed.ruling.value,
        "planned": followed.expected.value,
        "agrees": followed.is_as_planned,
        "reached": reached and {"address": reached[0], "port": reached[1]},
        "steps": [_step(followed, passed) for passed in followed.passed],
    }


def _step(followed: Followed, passed: Passed) -> dict[str, object]:
    owner = followed.owners.get((passed.table, passed.chain))
    return {
        "table": passed.table,
        "chain": passed.chain,
        "service": str(owner) if owner else None,
        "rule": passed.rule,
        "verdict": passed.verdict or None,
    }
