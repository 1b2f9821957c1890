"""From changes to restore input: what one table's batch says, and what holds afterwards. Pure.

The order inside a table: declare chains (which empties them), fill them, point to them, detach,
delete. One restore commits a table at once, so no packet sees the steps between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.modes.base import Change
from kubeproxy.modes.netfilter.compile.shared import SharedContent
from kubeproxy.modes.netfilter.items import (
    Chain,
    ChainGroup,
    ChainState,
    GroupRules,
    GuestChain,
    GuestRules,
    Jump,
    Order,
    Position,
    Rules,
    Scope,
    Section,
    SharedChain,
)
from kubeproxy.modes.netfilter.rules.text import chain_line

SharedContents: TypeAlias = Mapping[tuple[str, str], SharedContent]
"""Believed content by table and chain."""


class Composed(Struct, frozen=True):
    """Restore input, and what the shared chains hold once it is applied."""

    text: str
    shared: SharedContents


def compose(
    table: str, changes: Iterable[Change], shared: SharedContents, scope: Scope
) -> Composed:
    """The restore input that brings about these changes, all of one table."""
    parts = _Parts()
    sections: dict[str, dict[Order, Rules | None]] = {}
    fresh: set[str] = set()
    jumps: list[Change] = []
    for change in changes:
        item = change.item
        if isinstance(item, ChainGroup):
            parts.group(change.old, change.new)
        elif isinstance(item, Chain):
            parts.chain(item.name, change.new)
        elif isinstance(item, Section):
            new = change.new if isinstance(change.new, Rules) else None
            sections.setdefault(item.chain, {})[item.order] = new
        elif isinstance(item, SharedChain) and change.new is None:
            parts.chain(item.name, None)
        elif isinstance(item, SharedChain):
            fresh.add(item.name)
        elif isinstance(item, GuestChain) and change.new is not None:
            parts.chain(item.name, change.new)
        elif isinstance(item, Jump):
            jumps.append(change)
    after: dict[tuple[str, str], SharedContent] = {}
    for name in sorted(fresh | sections.keys()):
        is_new = name in fresh
        before = SharedContent() if is_new else shared.get((table, name), SharedContent())
        edit = before.edit(sections.get(name, {}), is_new=is_new)
        after[table, name] = edit.after
        parts.shared(name, edit.commands, declare=edit.is_rewritten)
    parts.pointers += _jump_commands(jumps, scope)
    return Composed(parts.text(table), after)


_NO_GROUP = GroupRules({})


class _Parts:
    """The pieces of a table's input, in the order they are written.

    Chains go by name, the last first: both variants of the tool keep chains in a sorted list that
    they search from its head, and so take half the time they need for any other order.
    """

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}
        self.pointers: list[str] = []
        self.removed: list[str] = []

    def chain(self, name: str, value: object) -> None:
        """Write a chain anew, or (without a value) empty and delete it, existing or not."""
        if isinstance(value, (Rules, GuestRules)):
            self.rules[name] = value.text
        else:
            self.rules.setdefault(name, "")
            self.removed.append(name)

    def group(self, old: object, new: object) -> None:
        """Write those chains of a group that differ; delete those it has no longer."""
        before = old if isinstance(old, GroupRules) else _NO_GROUP
        after = new if isinstance(new, GroupRules) else _NO_GROUP
        for chain in after.differing(before):
            self.rules[chain] = after.chains[chain]
        for chain in before.chains:
            if chain not in after.chains:
                self.chain(chain, None)

    def shared(self, name: str, commands: str, *, declare: bool) -> None:
        if declare:
            self.rules[name] = ""
        self.pointers.append(commands)

    def text(self, table: str) -> str:
        order = sorted(self.rules, reverse=True)
        return "".join(
            (
                f"*{table}\n",
                *map(chain_line, order),
                *map(self.rules.__getitem__, order),
                *self.pointers,
                *(f"-X {name}\n" for name in self.removed if not self.rules[name]),
                "COMMIT\n",
            )
        )


def _jump_commands(changes: Sequence[Change], scope: Scope) -> Iterator[str]:
    by_jump = {change.item: change for change in changes}
    for jump, position in scope.jumps:
        change = by_jump.get(jump)
        if change is None:
            continue
        if change.new is None:
            yield f"-D {jump.chain} {jump.rule}\n"
        elif position is Position.FIRST:
            yield f"-I {jump.chain} {jump.rule}\n"
        else:
            yield f"-A {jump.chain} {jump.rule}\n"


def split(
    changes: Sequence[Change], scope: Scope, limit: int
) -> Iterator[tuple[str, list[Change]]]:
    """Batches in a safe order, each of one table and about `limit` lines at most.

    An owner's changes stay together. What nobody owns any more is deleted last, when nothing can
    point to it. Shared chains of unknown content are replaced in one go, after everything their
    new rules lead to is there, together with what their old rules may have led to.
    """
    for table in scope.tables:
        mine = [change for change in changes if _table_of(change) == table]
        unknown = {_shared_chain_of(change) for change in mine if _is_replacement(change)}
        followers = _followers(mine)
        following = {change.item for some in followers.values() for change in some}
        early: list[Change] = []
        replaced: list[Change] = []
        late: list[Change] = []
        for change in mine:
            if following and change.item in following:
                continue
            if unknown and (_shared_chain_of(change) in unknown or _drops_chains(change)):
                into = replaced
            elif change.owner is None and _drops_chains(change):
                into = late
            else:
                into = early
            into.append(change)
            into += followers.get(change.item, ())
        batches = (*_packed(early, limit), replaced, *_packed(late, limit))
        yield from ((table, batch) for batch in batches if batch)


def _followers(changes: Sequence[Change]) -> dict[object, list[Change]]:
    """By group: removals of chains that were read as nobody's, since nothing led to them, but
    which the group wants. Both speak of one chain, so they go into one batch, where the wish
    counts (`_Parts`)."""
    loose = {
        item.name: change
        for change in changes
        if change.owner is None and change.new is None and isinstance(item := change.item, Chain)
    }
    found: dict[object, list[Change]] = {}
    if loose:
        for change in changes:
            if isinstance(change.new, GroupRules):
                found[change.item] = [loose[c] for c in change.new.chains if c in loose]
    return found


def _table_of(change: Change) -> str:
    item = change.item
    if isinstance(item, (ChainGroup, Section, Chain, SharedChain, GuestChain, Jump)):
        return item.table
    raise TypeError(f"{item!r} is not an iptables item")


def _is_replacement(change: Change) -> bool:
    return isinstance(change.item, SharedChain) and change.old is ChainState.UNKNOWN


def _shared_chain_of(change: Change) -> str:
    item = change.item
    if isinstance(item, SharedChain):
        return item.name
    return item.chain if isinstance(item, Section) else ""


def _drops_chains(change: Change) -> bool:
    """Does a chain cease to exist, which something unknown may still point to?"""
    old, new = change.old, change.new
    if isinstance(old, GroupRules) and isinstance(new, GroupRules):
        return not old.chains.keys() <= new.chains.keys()
    return new is None and isinstance(change.item, (Chain, ChainGroup, SharedChain))


def _packed(changes: Sequence[Change], limit: int) -> Iterator[list[Change]]:
    batch: list[Change] = []
    size = 0
    for change in changes:
        is_next = change.owner is not None and batch and batch[-1].owner != change.owner
        if is_next and size >= limit * _LINE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += size_of(change)
    if batch:
        yield batch


_LINE_BYTES = 100
"""A rule line is about this long."""


def size_of(change: Change) -> int:
    """Input bytes a change takes, at most and about."""
    new = change.new
    if isinstance(new, GroupRules):
        return _LINE_BYTES * len(new.chains) + new.size
    return _LINE_BYTES + (len(new.text) if isinstance(new, Rules) else 0)
