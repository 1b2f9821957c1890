"""Services as transactions: their elements, pools and own chains, never split. Pure.

A *unit* is what must take effect together: all changes of a Service, and those of another one that
share a frontend's key or a chain with it. Elements of one set share a message, deletions come
before additions, and of a pool only the slots that differ are sent.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.wire import ElementTemplate, Transaction
from kubeproxy.modes.base import AnyChange, Batch, Change, Owner
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.compile.structure import (
    ChainChange,
    SetChange,
    StructureChange,
    add_structure,
    in_building_order,
)
from kubeproxy.modes.nftables.items import Element, ElementItem, Pool, PoolItem
from kubeproxy.modes.nftables.names import FamilyLayout


class ServiceChanges(Struct):
    """Changes to what belongs to services, by type."""

    structure: list[SetChange | ChainChange] = field(default_factory=list)
    elements: list[Change[ElementItem, Element]] = field(default_factory=list)
    pools: list[Change[PoolItem, Pool]] = field(default_factory=list)

    def take_new_pools(
        self, layout: FamilyLayout, *, more_than: int
    ) -> list[Change[PoolItem, Pool]]:
        """Take out the pools of which nothing exists yet, if they are more than so many bytes."""
        new = [change for change in self.pools if change.old is None]
        slots = sum(len(_slots(change.new)) for change in new) // (layout.address_length + 4)
        if slots * pool_templates(layout)[names.SERVICE_POOLS].size <= more_than:
            return []
        self.pools = [change for change in self.pools if change.old is not None]
        return new

    def without(self, owners: Container[Owner | None]) -> ServiceChanges:
        """The same without the changes of these owners."""
        return ServiceChanges(
            structure=[c for c in self.structure if c.change.owner not in owners],
            elements=[c for c in self.elements if c.owner not in owners],
            pools=[c for c in self.pools if c.owner not in owners],
        )


PoolChange: TypeAlias = Change[PoolItem, Pool]


def split_pools(changes: Sequence[PoolChange]) -> tuple[list[PoolChange], list[PoolChange]]:
    """The changes that make pools shorter, and those that go before them.

    A pool that becomes shorter first gets its new slots and keeps the surplus ones, which is a
    value of its own: the ledger believes in it until the surplus is gone too.
    """
    shorter: list[PoolChange] = []
    before: list[PoolChange] = []
    for change in changes:
        old, new = _slots(change.old), _slots(change.new)
        kept = new + old[len(new) :]
        if len(old) <= len(new):
            before.append(change)
            continue
        if kept != old:
            before.append(replace(change, new=Pool(kept)))
        shorter.append(replace(change, old=Pool(kept)))
    return shorter, before


def _slots(pool: Pool | None) -> bytes:
    return b"" if pool is None else pool.slots


_BLOCK_SLOTS = 64


def differing_slots(old: bytes, new: bytes, width: int) -> list[int]:
    """Where slots begin that differ. A pool may be long, so equal blocks are passed over."""
    block, end = _BLOCK_SLOTS * width, max(len(old), len(new))
    found: list[int] = []
    for first in range(0, end, block):
        if old[first : first + block] != new[first : first + block]:
            found += [
                start
                for start in range(first, min(first + block, end), width)
                if old[start : start + width] != new[start : start + width]
            ]
    return found


class Unit(Struct):
    """Changes that must not be split."""

    structure: list[StructureChange] = field(default_factory=list)
    elements: list[Change[ElementItem, Element]] = field(default_factory=list)
    pools: list[Change[PoolItem, Pool]] = field(default_factory=list)


# ---- grouping --------------------------------------------------------------------------------

_KEYED_BY_FRONTEND = frozenset(
    (
        names.SERVICE_IPS,
        names.FIREWALL_IPS,
        names.NO_ENDPOINT_SERVICES,
        names.SERVICE_NODE_PORTS,
        names.NO_ENDPOINT_NODE_PORTS,
        names.ADMITTED_SERVICES,
        names.ADMITTED_NODE_PORTS,
    )
)


class _Units:
    """One unit for each Service, joined with another one where a bond demands it.

    A bond is a frontend's key or a chain of a service: all that has it changes as a whole. Usually
    that is one Service's anyway. But an address and port may move from one to another.
    """

    def __init__(self) -> None:
        self._by_service: dict[object, Unit] = {}
        self._by_bond: dict[bytes | str, Unit] = {}

    def of(self, change: AnyChange) -> Unit:
        # Leftovers without an owner need not stay together.
        name = change.item if change.owner is None else change.owner.service
        found = self._by_service.get(name)
        if found is None:
            found = self._by_service[name] = Unit()
        return found

    def bind(self, unit: Unit, bond: bytes | str) -> Unit:
        """Give the unit a bond. Return the unit in which its changes are now."""
        home = self._by_bond.setdefault(bond, unit)
        if home is not unit:
            self._join(home, unit)
        return home

    def _join(self, kept: Unit, gone: Unit) -> None:
        """Make one unit of two. Very rare, so it may walk through all of them."""
        kept.structure += gone.structure
        kept.elements += gone.elements
        kept.pools += gone.pools
        self._by_service |= {k: kept for k, unit in self._by_service.items() if unit is gone}
        self._by_bond |= {k: kept for k, unit in self._by_bond.items() if unit is gone}

    def all(self) -> Iterator[Unit]:
        yield from {id(unit): unit for unit in self._by_service.values()}.values()


def _grouped(changes: ServiceChanges) -> Iterator[Unit]:
    """The units these changes fall into."""
    units = _Units()
    for structural in changes.structure:
        unit = units.of(structural.change)
        unit.structure.append(structural)
        if isinstance(structural, ChainChange):
            units.bind(unit, structural.name)
    for element in changes.elements:
        unit = units.of(element)
        unit.elements.append(element)
        if element.item.set in _KEYED_BY_FRONTEND:
            unit = units.bind(unit, element.item.key)
            for value in (element.old, element.new):
                verdict = None if value is None else value.verdict
                if verdict is not None and names.is_chain_of_service(verdict.chain):
                    unit = units.bind(unit, verdict.chain)
    for pool in changes.pools:
        unit = units.of(pool)
        unit.pools.append(pool)
        units.bind(unit, pool.item.key)
    return units.all()


# ---- transactions ----------------------------------------------------------------------------


def unit_batches(
    layout: FamilyLayout, changes: ServiceChanges, limit: int, *, after_readers: bool = False
) -> Iterator[Batch[Transaction]]:
    """Transactions of whole units, each about as big as the limit."""
    builder = _Builder(layout, after_readers=after_readers)
    for unit in _grouped(changes):
        if builder.changes and builder.size >= limit:
            yield builder.batch()
            builder = _Builder(layout, after_readers=after_readers)
        builder.put(unit)
    if builder.changes:
        yield builder.batch()


class _Builder:
    """One transaction of units: structure, then elements to delete, then elements to add."""

    def __init__(self, layout: FamilyLayout, *, after_readers: bool) -> None:
        self.changes: list[AnyChange] = []
        self.size = 0
        self._after_readers = after_readers
        self._family = layout.number
        self._templates = pool_templates(layout)
        self._width = layout.address_length + 4
        self._structure: list[StructureChange] = []
        self._deleted: dict[str, list[bytes]] = {}
        self._added: dict[str, list[bytes]] = {}

    def put(self, unit: Unit) -> None:
        for structural in unit.structure:
            self.changes.append(structural.change)
            self._structure.append(structural)
            self.size += structural.weight
        for element in unit.elements:
            self.changes.append(element)
            self._put_element(element)
        for pool in unit.pools:
            self.changes.append(pool)
            self._put_pool(pool)

    def _put_element(self, change: Change[ElementItem, Element]) -> None:
        item, new = change.item, change.new
        if change.old is not None:
            self._note(self._deleted, item.set, [nft.element(item.key)])
        if new is not None:
            packed = nft.verdict_element(item.key, new.verdict, new.comment)
            self._note(self._added, item.set, [packed])

    def _put_pool(self, change: Change[PoolItem, Pool]) -> None:
        item = change.item
        old, new = _slots(change.old), _slots(change.new)
        template = self._templates[item.map]
        width = self._width
        if not old:
            head, middle = template.head + item.key, template.middle
            starts = range(0, len(new), width)
            added = [
                head + index + middle + new[start : start + width]
                for index, start in zip(indexes(len(starts)), starts, strict=True)
            ]
        else:
            added = self._replace_slots(item, old, new)
        self._note(self._added, item.map, added)

    def _replace_slots(self, item: PoolItem, old: bytes, new: bytes) -> list[bytes]:
        """Delete the slots that change, leave the others alone. Return those to add."""
        template, width, pack = self._templates[item.map], self._width, codec.INDEX.pack
        bare, head = template.bare_head + item.key, template.head + item.key
        middle, hole = template.middle, b"\0" * width
        starts = differing_slots(old, new, width)
        deleted = [
            bare + pack(start // width)
            for start in starts
            if old[start : start + width] not in (b"", hole)
        ]
        self._note(self._deleted, item.map, deleted)
        return [
            head + pack(start // width) + middle + new[start : start + width]
            for start in starts
            if start < len(new)
        ]

    def _note(self, where: dict[str, list[bytes]], name: str, packed: list[bytes]) -> None:
        if packed:
            where.setdefault(name, []).extend(packed)
            self.size += len(packed) * len(packed[0])

    def batch(self) -> Batch[Transaction]:
        transaction = Transaction(self._family, after_readers=self._after_readers)
        add_structure(transaction, in_building_order(self._structure))
        for kind, flags, lists in (
            (nft.DELSETELEM, 0, self._deleted),
            (nft.NEWSETELEM, nft.CREATE, self._added),
        ):
            for name, packed in lists.items():
                for body in nft.elements_bodies(names.TABLE_NAME, name, packed):
                    transaction.add(kind, body, f"elements of {name}", flags)
        return Batch(tuple(self.changes), transaction, transaction.size)


_INDEXES = tuple(codec.INDEX.pack(number) for number in range(1024))


def indexes(count: int) -> Iterable[bytes]:
    """The first indexes of a pool as they stand in keys."""
    return _INDEXES[:count] if count <= len(_INDEXES) else map(index_bytes, range(count))


def index_bytes(number: int) -> bytes:
    """A pool index as it stands in keys."""
    return _INDEXES[number] if number < len(_INDEXES) else codec.INDEX.pack(number)


@lru_cache(maxsize=2)
def pool_templates(layout: FamilyLayout) -> Mapping[str, ElementTemplate]:
    """How elements of the pool maps look, by map."""
    by_address = ElementTemplate(layout.address_length + 12, layout.address_length + 4)
    by_node_port = ElementTemplate(12, layout.address_length + 4)
    return {
        names.SERVICE_POOLS: by_address,
        names.LOCAL_POOLS: by_address,
        names.NODE_PORT_POOLS: by_node_port,
        names.NODE_PORT_LOCAL_POOLS: by_node_port,
    }
