"""Iptables items one by one, as arguments of iptables: what is added, changed or removed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeproxy.modes.base import K
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


def item_lines(items: Mapping[K, object]) -> list[str]:
    """A line for each chain, rule and jump among these items; other items are passed over."""
    return [line for item, value in items.items() for line in _lines(item, value)]


def _lines(item: object, value: object) -> Iterator[str]:
    match item, value:
        case Chain(), Rules():
            yield from _chain(item.table, item.name, value.text)
        case ChainGroup(), GroupRules():
            for name, text in value.chains.items():
                yield from _chain(item.table, name, text)
        case SharedChain(), ChainState.UNKNOWN:
            # Which rules these are is not known: all of the chain's sections count as missing.
            yield f"-t {item.table} -N {item.name} (with rules that are not ours, or out of order)"
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
