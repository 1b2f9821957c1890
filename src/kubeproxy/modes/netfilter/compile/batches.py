"""Which changes go into which restore, and in which order. Pure.

One restore commits one table at once, so inside a batch no order is visible to packets. Between
batches it is:

    early     what is added or changed; each owner's changes stay together, so that the engine can
              isolate an owner whose rules are refused
    together  shared chains of unknown content with all their sections, and every deletion: the
              old rules may lead to any of the chains deleted, the new ones lead to early ones
    late      chains that no owner has any more, once nothing leads to them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.modes.base import AnyChange
from kubeproxy.modes.netfilter.compile.changes import ChangesByType, RuleChange, by_type
from kubeproxy.modes.netfilter.items import GroupRules, RuleItem, Scope

_LINE_BYTES = 100
"""A rule line is about this long."""
_SHARE = 0.15
"""A restore may be as large as this share of all before it, if that is more than the limit.

iptables-nft has two costs, and a start takes the sum: the tool's own grows faster than the input,
so that restores are limited; the kernel checks the whole table with each commit, so that they
should be few once the table is large. 5,000 Services: 26 restores and 8.4 s of processor time at a
tenth instead of 42 and 10.7 s without a share. On a quicker machine 5.0 s at a tenth, 4.8 s at 0.13
to 0.16, 4.9 s at a fifth and 5.1 s at a quarter.
"""


def split(
    changes: Sequence[RuleChange], scope: Scope, limit: int
) -> Iterator[tuple[str, list[RuleChange]]]:
    """Batches in a safe order, each with its table and about `limit` lines at most."""
    for table in scope.tables:
        mine = [change for change in changes if change.item.table == table]
        yield from ((table, batch) for batch in _batches(mine, limit) if batch)


def _batches(changes: Sequence[RuleChange], limit: int) -> Iterator[list[RuleChange]]:
    typed = by_type(changes)
    dropping = _dropping(typed)
    replaced = _replaced(typed, dropping)
    absorbed = _absorbed(typed)
    moved = {change.item for some in absorbed.values() for change in some}
    early: list[RuleChange] = []
    together: list[RuleChange] = []
    late: list[RuleChange] = []
    for change in changes:
        if change.item in moved:
            continue
        if change.item in replaced:
            into = together
        elif change.owner is None and change.item in dropping:
            into = late
        else:
            into = early
        into.append(change)
        into += absorbed.get(change.item, ())
    sizes = _sizes(typed)
    yield from _packed(early, sizes, limit)
    yield together
    yield from _packed(late, sizes, limit)


def _dropping(typed: ChangesByType) -> set[RuleItem]:
    """The items whose change deletes a chain, to which a rule may still lead."""
    found: set[RuleItem] = {change.item for change in typed.chains if change.new is None}
    found |= {change.item for change in typed.shared_chains if change.new is None}
    found |= {change.item for change in typed.groups if _loses_chains(change.old, change.new)}
    return found


def _loses_chains(old: GroupRules | None, new: GroupRules | None) -> bool:
    return new is None or (old is not None and not old.chains.keys() <= new.chains.keys())


def _replaced(typed: ChangesByType, dropping: set[RuleItem]) -> set[RuleItem]:
    """The items that must change in one restore because a shared chain's content is unknown."""
    states = ((change.item.name, change.old) for change in typed.shared_chains)
    unknown = {name for name, old in states if old is not None and not old.is_known}
    if not unknown:
        return set()
    return (
        dropping
        | {change.item for change in typed.shared_chains if change.item.name in unknown}
        | {change.item for change in typed.sections if change.item.chain in unknown}
    )


def _absorbed(typed: ChangesByType) -> Mapping[RuleItem, Sequence[AnyChange]]:
    """By group: removals of chains that belong to no owner, although the group wants them.

    A chain to which no rule led when the kernel was read is of no group. If a group wants it, both
    changes are about one chain; they go into one batch, where what is wanted counts (`_Parts`).
    """
    loose = {
        change.item.name: change
        for change in typed.chains
        if change.owner is None and change.new is None
    }
    if not loose:
        return {}
    return {
        change.item: [loose[chain] for chain in change.new.chains if chain in loose]
        for change in typed.groups
        if change.new is not None
    }


def _packed(
    changes: Sequence[RuleChange], sizes: Mapping[RuleItem, int], limit: int
) -> Iterator[list[RuleChange]]:
    """Fill batches up to the limit, and start a new one only between two owners."""
    batch: list[RuleChange] = []
    size, written = 0, 0
    for change in changes:
        is_next = change.owner is not None and batch and batch[-1].owner != change.owner
        if is_next and size >= max(limit * _LINE_BYTES, written * _SHARE):
            yield batch
            batch, size, written = [], 0, written + size
        batch.append(change)
        size += sizes.get(change.item, _LINE_BYTES)
    if batch:
        yield batch


def _sizes(typed: ChangesByType) -> dict[RuleItem, int]:
    """About how many bytes of input the changes take; one that is not listed takes a line."""
    found: dict[RuleItem, int] = {
        change.item: _LINE_BYTES * len(change.new.chains) + change.new.size
        for change in typed.groups
        if change.new is not None
    }
    for filled in (typed.chains, typed.sections):
        found |= {
            change.item: _LINE_BYTES + len(change.new.text)
            for change in filled
            if change.new is not None
        }
    return found
