"""The table, sets, and chains with their rules as transactions. Pure.

Structure is built in the order in which parts may refer to each other, and removed in the reverse:
a rule never names what does not exist yet, and nothing is deleted while a rule still names it. The
order is table, sets, and then chains by their kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from kubeproxy.facts.ids import ServiceName
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import Transaction
from kubeproxy.modes.base import AnyChange, Batch, Change
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    Foreign,
    ForeignItem,
    SetItem,
    SetSpec,
    Table,
    TableItem,
)
from kubeproxy.modes.nftables.names import FamilyLayout

_BYTES_PER_OBJECT, _BYTES_PER_RULE = 150, 400
"""Roughly what an object or rule takes. An estimate is good enough for a bound."""

_TABLE_RANK, _SET_RANK = -1, 0
"""Below every kind of chain."""


class StructureChange(ABC):
    """One structural change: its place in the building order, and its messages.

    Adding has three phases, `clear`, `declare` and `fill`, and removing two, `clear` and `delete`.
    One phase is done for all changes of a transaction before the next, because the rules of one
    chain may name another chain or a set.
    """

    change: AnyChange
    rank: int
    weight = _BYTES_PER_OBJECT

    @property
    def is_new(self) -> bool:
        """Is there no such object yet?"""
        return self.change.old is None

    @property
    def service(self) -> ServiceName | None:
        """The Service that brings the change about."""
        return None if self.change.owner is None else self.change.owner.service

    @abstractmethod
    def declare(self, transaction: Transaction) -> None:
        """Append what makes the object exist."""

    def fill(self, transaction: Transaction) -> None:  # noqa: B027 - only chains hold something
        """Append what the object holds and is no item of its own."""

    def clear(self, transaction: Transaction) -> None:  # noqa: B027 - only chains hold something
        """Append what empties an object that stays, or that goes."""

    @abstractmethod
    def delete(self, transaction: Transaction) -> None:
        """Append what removes the empty object."""


class TableChange(StructureChange):
    """The table is made, replaced, woken, or removed."""

    rank = _TABLE_RANK

    def __init__(self, change: Change[TableItem, Table]) -> None:
        self.change = change

    def declare(self, transaction: Transaction) -> None:
        if self.change.old is not None and not self.change.old.is_usable:
            self.delete(transaction)
        body = nft.table_body(names.TABLE_NAME, names.TABLE_COMMENT)
        transaction.add(nft.NEWTABLE, body, f"table {names.TABLE_NAME}", nft.CREATE)

    def delete(self, transaction: Transaction) -> None:
        body = nft.table_body(names.TABLE_NAME)
        transaction.add(nft.DELTABLE, body, f"table {names.TABLE_NAME}")


class SetChange(StructureChange):
    """A set or map is declared, gets another timeout, or is removed."""

    rank = _SET_RANK

    def __init__(self, change: Change[SetItem, SetSpec]) -> None:
        self.change = change
        self._name = change.item.name
        self._spec = change.new
        found = change.new if change.old is None else change.old
        self.is_verdict_map = found is not None and found.data_type == nft.NFT_DATA_VERDICT

    def declare(self, transaction: Transaction) -> None:
        if self._spec is not None:
            body = codec.set_body(self._name, self._spec, identity=len(transaction) + 1)
            transaction.add(nft.NEWSET, body, f"set {self._name}", nft.CREATE)

    def delete(self, transaction: Transaction) -> None:
        body = nft.set_reference(names.TABLE_NAME, self._name)
        transaction.add(nft.DELSET, body, f"set {self._name}")


class ForeignChange(StructureChange):
    """An object or flowtable of another process is removed."""

    rank = _SET_RANK

    def __init__(self, change: Change[ForeignItem, Foreign]) -> None:
        self.change = change
        self._item = change.item

    def declare(self, transaction: Transaction) -> None:
        """Append nothing: none is ever wanted."""

    def delete(self, transaction: Transaction) -> None:
        body = nft.object_reference(names.TABLE_NAME, self._item.name, self._item.type)
        kind = nft.DELOBJ if self._item.type else nft.DELFLOWTABLE
        transaction.add(kind, body, f"object {self._item.name}")


class ChainChange(StructureChange):
    """A chain is made, gets other rules, or is removed."""

    def __init__(self, change: Change[ChainItem, Chain]) -> None:
        self.change = change
        self.name = change.item.name
        self._old, self._new = change.old, change.new
        self.rank = next(chain.kind for chain in (change.new, change.old) if chain is not None)
        if change.new is not None:
            self.weight += _BYTES_PER_RULE * len(change.new.rules)

    @property
    def has_rules(self) -> bool:
        """Are there rules in the chain now?"""
        return self._old is not None and bool(self._old.rules)

    def emptied(self) -> ChainChange:
        """What has to happen first so that nothing depends on the rules of a chain that goes."""
        kept = None if self._old is None else replace(self._old, rules=())
        return ChainChange(replace(self.change, new=kept))

    @property
    def _is_kept(self) -> bool:
        """Is there a chain on the same hook already? A hook cannot be changed."""
        old, new = self._old, self._new
        return old is not None and new is not None and old.hook == new.hook

    def declare(self, transaction: Transaction) -> None:
        if self._new is None or self._is_kept:
            return
        if self._old is not None:
            self.delete(transaction)  # deleting a base chain takes its rules along
        body = codec.chain_body(self.name, self._new)
        transaction.add(nft.NEWCHAIN, body, f"chain {self.name}", nft.CREATE)

    def fill(self, transaction: Transaction) -> None:
        for rule in () if self._new is None else self._new.rules:
            body = codec.rule_body(self.name, rule)
            transaction.add(nft.NEWRULE, body, f"rule in chain {self.name}", nft.APPEND)

    def clear(self, transaction: Transaction) -> None:
        if self.has_rules:
            body = nft.rules_reference(names.TABLE_NAME, self.name)
            transaction.add(nft.DELRULE, body, f"rules of chain {self.name}")

    def delete(self, transaction: Transaction) -> None:
        body = nft.chain_body(names.TABLE_NAME, self.name)
        transaction.add(nft.DELCHAIN, body, f"chain {self.name}")


def in_building_order(changes: Sequence[StructureChange]) -> list[StructureChange]:
    return sorted(changes, key=lambda change: change.rank)


def add_structure(transaction: Transaction, changes: Sequence[StructureChange]) -> None:
    """Append the messages for additions and replacements, which are in building order."""
    for change in changes:
        change.clear(transaction)
    for change in changes:
        change.declare(transaction)
    for change in changes:
        change.fill(transaction)


def addition_batches(
    layout: FamilyLayout,
    changes: Sequence[StructureChange],
    limit: int,
    *,
    after_readers: bool = False,
) -> Iterator[Batch[Transaction]]:
    """Transactions that add or replace structure."""
    for part in _parts(in_building_order(changes), limit):
        transaction = Transaction(layout.number, after_readers=after_readers)
        add_structure(transaction, part)
        yield _batch(transaction, part)


def removal_batches(
    layout: FamilyLayout, changes: Sequence[StructureChange], limit: int
) -> Iterator[Batch[Transaction]]:
    """Transactions that remove structure.

    Rules refer to sets, objects and chains, and elements of a verdict map refer to chains. So all
    rules go first, then sets, then the rest. Chains of another process may refer to each other in
    any way, hence all rules before the first chain, also when that takes several transactions.
    """
    sets = [change for change in changes if change.rank == _SET_RANK]
    others = [change for change in changes if change.rank != _SET_RANK]
    # Before Linux 6.2 a chain counts as used in the transaction that removes the element.
    if any(isinstance(change, SetChange) and change.is_verdict_map for change in sets):
        parts = [*_parts(sets, limit), *_parts(others, limit)]
    else:
        parts = list(_parts([*sets, *others], limit))
    if len(parts) > 1:
        chains = [c for c in others if isinstance(c, ChainChange) and c.has_rules]
        emptied = [chain.emptied() for chain in chains]
        yield from addition_batches(layout, emptied, limit, after_readers=True)
    for part in parts:
        transaction = Transaction(layout.number, after_readers=True)
        if len(parts) == 1:
            for change in part:
                change.clear(transaction)
        for change in part:
            change.delete(transaction)
        yield _batch(transaction, part)


def _batch(transaction: Transaction, part: Sequence[StructureChange]) -> Batch[Transaction]:
    return Batch(tuple(change.change for change in part), transaction, transaction.size)


def _parts(changes: Sequence[StructureChange], limit: int) -> Iterator[list[StructureChange]]:
    """Cut between items once a part is big."""
    part: list[StructureChange] = []
    size = 0
    for change in changes:
        if part and size + change.weight > limit:
            yield part
            part, size = [], 0
        part.append(change)
        size += change.weight
    if part:
        yield part
