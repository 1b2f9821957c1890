"""The changes of one compile, grouped once by the type of their item. Pure.

Why: which value goes with which item is known here, so that no other code tests for types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.modes.base import AnyChange, Change, changes_of
from kubeproxy.modes.netfilter.items import (
    Chain,
    ChainGroup,
    ChainState,
    GroupRules,
    GuestChain,
    GuestRules,
    Jump,
    Position,
    RuleItem,
    Rules,
    RuleValue,
    Section,
    SharedChain,
)

RuleChange: TypeAlias = Change[RuleItem, RuleValue]


class ChangesByType(Struct, frozen=True):
    """Changes with their own types; the order within each type is the order they came in."""

    groups: list[Change[ChainGroup, GroupRules]]
    chains: list[Change[Chain, Rules]]
    shared_chains: list[Change[SharedChain, ChainState]]
    sections: list[Change[Section, Rules]]
    guests: list[Change[GuestChain, GuestRules]]
    jumps: list[Change[Jump, Position]]

    @property
    def added_rules(self) -> int:
        """Rules there are in the wanted values."""
        return sum(change.new.count for change in self._with_rules() if change.new is not None)

    @property
    def removed_rules(self) -> int:
        """Rules there were in the values believed so far."""
        return sum(change.old.count for change in self._with_rules() if change.old is not None)

    def _with_rules(self) -> list[AnyChange]:
        """The changes whose values are rules and hence can be counted."""
        return [*self.groups, *self.chains, *self.sections, *self.guests]


def by_type(changes: Iterable[RuleChange]) -> ChangesByType:
    """Group changes by the type of their item."""
    listed = list(changes)
    return ChangesByType(
        groups=changes_of(listed, ChainGroup, GroupRules),
        chains=changes_of(listed, Chain, Rules),
        shared_chains=changes_of(listed, SharedChain, ChainState),
        sections=changes_of(listed, Section, Rules),
        guests=changes_of(listed, GuestChain, GuestRules),
        jumps=changes_of(listed, Jump, Position),
    )
