"""From changes to restore input: what one table's batch says, and what holds afterwards. Pure.

The order inside a table: declare chains (which empties them), fill them, point to them, detach,
delete. One restore commits a table at once, so no packet sees the steps between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.backends.base import Change
from kubeproxy.backends.netfilter.items import (
    Chain,
    ChainState,
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
from kubeproxy.backends.netfilter.shared import SharedContent
from kubeproxy.backends.netfilter.text import chain_line

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
        if isinstance(item, Chain):
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


class _Parts:
    """The pieces of a table's input, in the order they are written.

    Chains go by name, the last first: both variants of the tool keep chains in a sorted list that
    they search from its head, and so take half the time they need for any other order.
    """

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}
        self.pointers: list[str] = []
        self.deletions: list[str] = []

    def chain(self, name: str, value: object) -> None:
        """Write a chain anew, or (without a value) empty and delete it, existing or not."""
        if isinstance(value, (Rules, GuestRules)):
            self.rules[name] = value.text
        else:
            self.rules[name] = ""
            self.deletions.append(f"-X {name}\n")

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
                *self.deletions,
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
    point to it. A shared chain of unknown content is replaced in one go, after everything its new
    rules lead to is there, and before anything its old rules led to is deleted.
    """
    for table in scope.tables:
        mine = [change for change in changes if _table_of(change) == table]
        unknown = {_shared_chain_of(change) for change in mine if _is_replacement(change)}
        early, late = [], []
        replaced: dict[str, list[Change]] = {name: [] for name in sorted(unknown)}
        for change in mine:
            chain = _shared_chain_of(change)
            if chain in unknown:
                replaced[chain].append(change)
            elif _is_chain_removal(change) and (unknown or change.owner is None):
                late.append(change)
            else:
                early.append(change)
        for batch in (*_packed(early, limit), *replaced.values(), *_packed(late, limit)):
            yield table, batch


def _table_of(change: Change) -> str:
    item = change.item
    if isinstance(item, (Chain, SharedChain, Section, GuestChain, Jump)):
        return item.table
    raise TypeError(f"{item!r} is not an iptables item")


def _is_replacement(change: Change) -> bool:
    return isinstance(change.item, SharedChain) and change.old is ChainState.UNKNOWN


def _shared_chain_of(change: Change) -> str:
    item = change.item
    if isinstance(item, SharedChain):
        return item.name
    return item.chain if isinstance(item, Section) else ""


def _is_chain_removal(change: Change) -> bool:
    return change.new is None and isinstance(change.item, (Chain, SharedChain))


def _packed(changes: Sequence[Change], limit: int) -> Iterator[list[Change]]:
    batch: list[Change] = []
    size = 0
    for change in changes:
        if size >= limit * _LINE_BYTES and batch[-1].owner != change.owner:
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += size_of(change)
    if batch:
        yield batch


_LINE_BYTES = 100
"""A rule line is about this long."""


def size_of(change: Change) -> int:
    """Input bytes a change takes, about."""
    new = change.new
    return _LINE_BYTES + (len(new.text) if isinstance(new, Rules) else 0)
