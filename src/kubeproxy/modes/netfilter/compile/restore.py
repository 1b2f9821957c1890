"""From the changes of one batch to restore input, and what holds once it is applied. Pure.

The order inside a table: declare chains (which empties them), fill them, point to them, detach,
delete. One restore commits a table at once, so no packet sees the steps between. Names that another
mode has are made free before that, by a commit of its own: in nf_tables a name means, until the
end of a commit, the chain that had it at the beginning, so rules for the new chain would end up in
the renamed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.modes.base import Change
from kubeproxy.modes.netfilter.compile.changes import ChangesByType, RuleChange, by_type
from kubeproxy.modes.netfilter.compile.shared import SharedContent
from kubeproxy.modes.netfilter.items import GroupRules, Jump, Order, Position, Rules, Scope
from kubeproxy.modes.netfilter.names import old_name
from kubeproxy.modes.netfilter.rules.text import chain_line

SharedContents: TypeAlias = Mapping[tuple[str, str], SharedContent]
"""Believed content by table and chain."""


class Surroundings(Struct, frozen=True):
    """What else a table holds that matters to us.

    `set_aside` are chains of another mode that must be renamed, because we want their names.
    `before` has, by built-in chain, how many rules stay in front of our jumps.
    """

    set_aside: tuple[str, ...] = ()
    before: Mapping[str, int] = {}


NOTHING_ELSE = Surroundings()


class RestoreInput(Struct, frozen=True):
    """The text for one `iptables-restore`, and what it promises.

    `renaming` is another one that must be run first; as a rule there is none. `shared` is what the
    shared chains it touches hold once it is applied. `added` and `removed` count rules, for the
    metrics.
    """

    table: str
    text: str
    shared: SharedContents
    added: int
    removed: int
    renaming: str = ""


def compose(
    table: str,
    changes: Iterable[RuleChange],
    shared: SharedContents,
    scope: Scope,
    surroundings: Surroundings = NOTHING_ELSE,
) -> RestoreInput:
    """The restore input that brings about these changes, all of one table.

    `shared` is what the shared chains are believed to hold now: it decides the positions at which
    rules are inserted, and the spelling by which they are deleted.
    """
    typed = by_type(changes)
    parts = _Parts()
    for group in typed.groups:
        parts.add_group(group.old or _NO_CHAINS, group.new or _NO_CHAINS)
    for chain in typed.chains:
        parts.add_chain(chain.item.name, None if chain.new is None else chain.new.text)
    for guest in typed.guests:
        if guest.new is not None:  # another program has the chain too, so it is never removed
            parts.add_chain(guest.item.name, guest.new.text)
    after = _add_shared_chains(parts, table, typed, shared)
    parts.pointers += _jump_commands(typed.jumps, scope, surroundings.before)
    return RestoreInput(
        table,
        parts.text(table),
        after,
        added=typed.added_rules,
        removed=typed.removed_rules,
        renaming=_renaming(table, surroundings.set_aside),
    )


def _renaming(table: str, chains: Sequence[str]) -> str:
    """Restore input that gives chains their old names; the jumps that lead to them follow."""
    lines = [f"-E {chain} {old_name(chain)}\n" for chain in chains]
    return "".join((f"*{table}\n", *lines, "COMMIT\n")) if lines else ""


def _add_shared_chains(
    parts: _Parts, table: str, typed: ChangesByType, shared: SharedContents
) -> SharedContents:
    """Edit the shared chains that change. Return what they hold afterwards."""
    fresh = {change.item.name for change in typed.shared_chains if change.new is not None}
    dropped = {change.item.name for change in typed.shared_chains if change.new is None}
    sections: dict[str, dict[Order, Rules | None]] = {}
    for section in typed.sections:
        sections.setdefault(section.item.chain, {})[section.item.order] = section.new
    after: dict[tuple[str, str], SharedContent] = {}
    for name in sorted(dropped):
        # Its sections go with it: nothing can be deleted from a chain that was emptied here, nor,
        # in a later batch, from one that is believed to be empty.
        parts.add_chain(name, None)
        after[table, name] = SharedContent()
    for name in sorted((fresh | sections.keys()) - dropped):
        is_new = name in fresh
        before = SharedContent() if is_new else shared.get((table, name), SharedContent())
        edit = before.edit(sections.get(name, {}), is_new=is_new)
        after[table, name] = edit.after
        if edit.is_rewritten:
            parts.rules[name] = ""
        parts.pointers.append(edit.commands)
    return after


_NO_CHAINS = GroupRules({})


class _Parts:
    """The pieces of a table's input, in the order they are written.

    Chains go by name, the last first: both variants of the tool keep chains in a sorted list that
    they search from its head, and so take half the time they need for any other order.
    """

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}
        self.pointers: list[str] = []
        self.removed: list[str] = []

    def add_chain(self, name: str, text: str | None) -> None:
        """Rewrite a chain. Without a text empty and delete it, whether it exists or not."""
        if text is not None:
            self.rules[name] = text
        else:
            # Declared first: -X refuses a chain that does not exist or is not empty.
            self.rules.setdefault(name, "")
            self.removed.append(name)

    def add_group(self, old: GroupRules, new: GroupRules) -> None:
        """Write those chains of a group that differ; delete those it has no longer."""
        for chain in new.differing(old):
            self.rules[chain] = new.chains[chain]
        for chain in old.chains:
            if chain not in new.chains:
                self.add_chain(chain, None)

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


def _jump_commands(
    changes: Sequence[Change[Jump, Position]], scope: Scope, before: Mapping[str, int]
) -> Iterator[str]:
    """Insert and delete jumps in the scope's order: of two put first, the later ends on top."""
    by_jump = {change.item: change for change in changes}
    for jump, position in scope.jumps:
        change = by_jump.get(jump)
        if change is None:
            continue
        if change.new is None:
            yield f"-D {jump.chain} {jump.rule}\n"
        elif position is Position.FIRST:
            number = f" {before[jump.chain] + 1}" if jump.chain in before else ""
            yield f"-I {jump.chain}{number} {jump.rule}\n"
        else:
            yield f"-A {jump.chain} {jump.rule}\n"
