"""Iptables items one by one, as arguments of iptables: what is added, changed or removed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from kubeproxy.modes.base import AnyChange, K
from kubeproxy.modes.netfilter.items import (
    Chain,
    ChainGroup,
    ChainState,
    GroupRules,
    GuestChain,
    GuestRules,
    Jump,
    Position,
    Rules,
    Section,
    SharedChain,
)
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule


def item_lines(items: Mapping[K, object]) -> list[str]:
    """A line for each chain, rule and jump among these items; other items are passed over."""
    return [line for item, value in items.items() for line in _lines(item, value)]


def explained(changes: Iterable[AnyChange]) -> list[AnyChange]:
    """The same without sections that only seem to be missing.

    A shared chain that holds a rule of another program is written again as a whole, so that all of
    its sections count as missing. What people want to see is the rule.
    """
    listed = list(changes)
    held = {
        (change.item.table, change.item.name): frozenset(map(canonical_rule, text.splitlines()))
        for change in listed
        if isinstance(change.item, SharedChain) and (text := _unknown_text(change.old))
    }
    return [change for change in listed if not _is_there(change, held)]


def _unknown_text(state: object) -> str:
    return state.text if isinstance(state, ChainState) else ""


def _is_there(change: AnyChange, held: Mapping[tuple[str, str], Collection[str]]) -> bool:
    item, wanted = change.item, change.new
    if not held or not isinstance(item, Section) or not isinstance(wanted, Rules):
        return False
    found = held.get((item.table, item.chain), ())
    return all(canonical_rule(line) in found for line in wanted.lines())


def _lines(item: object, value: object) -> Iterator[str]:
    match item, value:
        case Chain(), Rules():
            yield from _chain(item.table, item.name, value.text)
        case ChainGroup(), GroupRules():
            for name, text in value.chains.items():
                yield from _chain(item.table, name, text)
        case SharedChain(), ChainState(text, foreign) if text:
            yield from _rules(item.table, foreign)
            if not foreign:
                yield f"-t {item.table} -N {item.name} (its rules are out of order)"
        case SharedChain(), _:
            yield from _chain(item.table, item.name, "")
        case Section(), Rules():
            yield from _rules(item.table, value.text)
        case GuestChain(), GuestRules(is_read=False):
            # What was read there is another program's as well, and stays.
            yield from _chain(item.table, item.name, value.text)
        case Jump(), Position():
            verb = "-I" if value is Position.FIRST else "-A"
            yield f"-t {item.table} {verb} {item.chain} {item.rule}"


def _chain(table: str, name: str, rules: str) -> Iterator[str]:
    yield f"-t {table} -N {name}"
    yield from _rules(table, rules)


def _rules(table: str, rules: str) -> Iterator[str]:
    yield from (f"-t {table} {line}" for line in rules.splitlines())
