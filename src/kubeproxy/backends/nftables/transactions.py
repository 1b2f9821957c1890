"""Changes become bounded transactions, in an order that no packet can notice. Pure.

    1  foundations       table, sets, class chains: nothing points there yet
    2  early elements    members of sets that rules only test (hairpin, node port addresses)
    3  scaffold          the chains every packet passes
    4  services          dispatch, pools, and the chains of single services (affinity, source
                         ranges): all of one Service in one transaction
    5  late elements     what step 2 would add, removed
    6  removals          chains and sets that are let go, those that point elsewhere first

Every transaction is atomic. Step 4 never splits a Service, so a frontend moves from one class to
another together with its endpoints, and all ports of a new cluster IP appear together. The other
steps only add what is not used yet, replace a chain as a whole, or remove what is not used any
more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kubeproxy.backends.base import Batch, Change
from kubeproxy.backends.nftables import codec, names
from kubeproxy.backends.nftables.names import FamilyLayout
from kubeproxy.backends.nftables.scaffold import BASE_CHAINS, SCAFFOLD_CHAINS
from kubeproxy.backends.nftables.types import (
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
    Table,
    TableItem,
)
from kubeproxy.kernel.netlink import nft

TRANSACTION_BYTES = 400_000
"""Aimed at; one Service is never split. The kernel holds its lock for some 20 ms at this size."""


def compile_transactions(
    layout: FamilyLayout, changes: Sequence[Change], *, limit: int = TRANSACTION_BYTES
) -> Iterator[Batch]:
    """All changes as transactions, to be carried out in order."""
    steps = _Steps(changes)
    yield from _structure(layout, steps.foundations, limit)
    yield from _units(layout, steps.early, limit)
    yield from _structure(layout, steps.scaffold, limit)
    yield from _units(layout, steps.services, limit)
    yield from _units(layout, steps.late, limit)
    yield from _removals(layout, steps.removals, limit)


class _Steps:
    """The changes by step, keeping their order."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self.foundations: list[Change] = []
        self.early: list[Change] = []
        self.scaffold: list[Change] = []
        self.services: list[Change] = []
        self.late: list[Change] = []
        self.removals: list[Change] = []
        for change in changes:
            self._step_of(change).append(change)

    def _step_of(self, change: Change) -> list[Change]:
        item = change.item
        if isinstance(item, ElementItem) and item.set in _ONLY_TESTED:
            return self.late if change.new is None else self.early
        if isinstance(item, (ElementItem, PoolItem)):
            return self.services
        if change.new is None:
            return self.removals
        if isinstance(item, (SetItem, ChainItem)) and "/" in item.name:
            return self.services  # the name of one service's structure holds the service's
        return self.scaffold if _is_scaffold_chain(item) else self.foundations


_ONLY_TESTED = frozenset((names.HAIRPIN, names.NODE_PORT_IPS))


def _is_scaffold_chain(item: object) -> bool:
    return isinstance(item, ChainItem) and _rank(item) >= _SCAFFOLD_RANK


def _rank(item: object) -> int:
    """Structure in the order it may point to each other: later ones point to earlier ones."""
    if isinstance(item, TableItem):
        return 0
    if isinstance(item, SetItem):
        return 1
    if not isinstance(item, ChainItem):
        raise TypeError(f"not a structural item: {item!r}")
    if item.name in BASE_CHAINS:
        return _SCAFFOLD_RANK + 1
    return _owned_chain_rank(item.name) if "/" in item.name else _class_chain_rank(item.name)


def _owned_chain_rank(name: str) -> int:
    """endpoint- ← service-, local- ← external-"""
    if name.startswith("endpoint-"):
        return 2
    return 3 if name.startswith(("service-", "local-")) else 4


def _class_chain_rank(name: str) -> int:
    """pick ← whatever masquerades or short-circuits first ← the scaffold"""
    if name in SCAFFOLD_CHAINS:
        return _SCAFFOLD_RANK
    return 2 if name.startswith(("pick-", "nodeport-pick-")) else 3


_SCAFFOLD_RANK = 5


def _by_rank(changes: Iterable[Change], *, reverse: bool = False) -> list[Change]:
    return sorted(changes, key=lambda change: _rank(change.item), reverse=reverse)


# ---- structure -------------------------------------------------------------------------------


class _Builder:
    """A transaction in the making."""

    def __init__(self, layout: FamilyLayout) -> None:
        self.batch = nft.Batch(layout.number)
        self.changes: list[Change] = []

    def add(self, kind: int, body: bytes, label: str, flags: int = 0) -> None:
        self.batch.add(kind, body, label, flags)

    def done(self) -> Batch:
        return Batch(tuple(self.changes), self.batch, self.batch.size)


def _structure(layout: FamilyLayout, changes: Sequence[Change], limit: int) -> Iterator[Batch]:
    """Sets and chains with their rules; chains are declared before any rule that may name them."""
    for part in _parts(_by_rank(changes), limit):
        builder = _Builder(layout)
        builder.changes.extend(part)
        _build_structure(builder, part)
        yield builder.done()


def _build_structure(builder: _Builder, changes: Sequence[Change]) -> None:
    for change in changes:
        _declare(builder, change)
    for change in changes:
        if isinstance(change.new, Chain):
            _write_rules(builder, change.item, change.old, change.new)


def _parts(changes: list[Change], limit: int) -> Iterator[list[Change]]:
    """Cut between items once a part is big; an estimate is good enough for a bound."""
    part: list[Change] = []
    size = 0
    for change in changes:
        weight = _weight(change.new)
        if part and size + weight > limit:
            yield part
            part, size = [], 0
        part.append(change)
        size += weight
    if part:
        yield part


def _weight(value: object) -> int:
    """Roughly the bytes a structural item takes."""
    return 150 + (400 * len(value.rules) if isinstance(value, Chain) else 0)


def _declare(builder: _Builder, change: Change) -> None:
    item, old, new = change.item, change.old, change.new
    if isinstance(item, TableItem):
        _declare_table(builder, old)
    elif isinstance(item, SetItem) and isinstance(new, SetSpec):
        body = codec.set_body(item.name, new, len(builder.batch) + 1)
        builder.add(nft.NEWSET, body, f"set {item.name}", nft.CREATE)
    elif isinstance(item, ChainItem) and isinstance(new, Chain):
        _declare_chain(builder, item, old, new)


def _declare_table(builder: _Builder, old: object) -> None:
    label = f"table {names.TABLE_NAME}"
    if isinstance(old, Table):  # somebody else's, in a form that cannot be adopted
        builder.add(nft.DELTABLE, nft.table_body(names.TABLE_NAME), label)
    body = nft.table_body(names.TABLE_NAME, names.TABLE_COMMENT)
    builder.add(nft.NEWTABLE, body, label, nft.CREATE)


def _declare_chain(builder: _Builder, item: ChainItem, old: object, new: Chain) -> None:
    label = f"chain {item.name}"
    if isinstance(old, Chain):
        if old.hook == new.hook:
            return
        # A hook cannot be changed; deleting a base chain takes its rules along.
        body = nft.chain_body(names.TABLE_NAME, item.name)
        builder.add(nft.DELCHAIN, body, label)
    builder.add(nft.NEWCHAIN, codec.chain_body(item.name, new), label, nft.CREATE)


def _write_rules(builder: _Builder, item: object, old: object, new: Chain) -> None:
    if not isinstance(item, ChainItem):
        return
    if isinstance(old, Chain) and old.hook == new.hook and old.rules:
        _flush(builder, item.name)
    for rule in new.rules:
        body = codec.rule_body(item.name, rule)
        builder.add(nft.NEWRULE, body, f"rule in chain {item.name}", nft.APPEND)


def _flush(builder: _Builder, chain: str) -> None:
    body = nft.reference(names.TABLE_NAME, chain)
    builder.add(nft.DELRULE, body, f"rules of chain {chain}")


def _removals(layout: FamilyLayout, changes: Sequence[Change], limit: int) -> Iterator[Batch]:
    """Whatever points elsewhere goes first: rules, then chains, then sets."""
    for part in _parts(_by_rank(changes, reverse=True), limit):
        builder = _Builder(layout)
        builder.changes.extend(part)
        for change in part:
            if isinstance(change.item, ChainItem) and _has_rules(change.old):
                _flush(builder, change.item.name)
        for change in part:
            _remove(builder, change.item)
        yield builder.done()


def _has_rules(value: object) -> bool:
    return isinstance(value, Chain) and bool(value.rules)


def _remove(builder: _Builder, item: object) -> None:
    if isinstance(item, ChainItem):
        body = nft.chain_body(names.TABLE_NAME, item.name)
        builder.add(nft.DELCHAIN, body, f"chain {item.name}")
    elif isinstance(item, SetItem):
        body = nft.reference(names.TABLE_NAME, item.name)
        builder.add(nft.DELSET, body, f"set {item.name}")
    elif isinstance(item, TableItem):
        body = nft.table_body(names.TABLE_NAME)
        builder.add(nft.DELTABLE, body, f"table {names.TABLE_NAME}")


# ---- services --------------------------------------------------------------------------------


class _ServiceBuilder:
    """Structure, then elements to delete, then elements to add; whole Services at a time."""

    def __init__(self, layout: FamilyLayout) -> None:
        self._layout = layout
        self._templates = pool_templates(layout)
        self._slot = layout.address_length + 4
        self.reset()

    def reset(self) -> None:
        self.changes: list[Change] = []
        self.size = 0
        self._structure: list[Change] = []
        self._deleted: dict[str, list[bytes]] = {}
        self._added: dict[str, list[bytes]] = {}

    def put(self, change: Change) -> None:
        self.changes.append(change)
        item = change.item
        if isinstance(item, PoolItem):
            self._put_pool(item, _slots(change.old), _slots(change.new))
        elif isinstance(item, ElementItem):
            self._put_element(item, change.old, change.new)
        else:
            self._structure.append(change)
            self.size += _weight(change.new)

    def _put_element(self, item: ElementItem, old: object, new: object) -> None:
        if old is not None:
            self._note(self._deleted, item.set, [nft.element(item.key)])
        if isinstance(new, Element):
            packed = codec.pack_element(item.key, new.verdict, new.comment)
            self._note(self._added, item.set, [packed])

    def _put_pool(self, item: PoolItem, old: bytes, new: bytes) -> None:
        template = self._templates[item.map]
        width = self._slot
        if not old:
            head, middle = template.head + item.key, template.middle
            added = [
                head + index_bytes(start // width) + middle + new[start : start + width]
                for start in range(0, len(new), width)
            ]
        else:
            added = self._replace_slots(item, old, new)
        self._note(self._added, item.map, added)

    def _replace_slots(self, item: PoolItem, old: bytes, new: bytes) -> list[bytes]:
        """Delete the slots that change, and return those to add; the others are not touched."""
        template = self._templates[item.map]
        width = self._slot
        added: list[bytes] = []
        deleted: list[bytes] = []
        for start in range(0, max(len(old), len(new)), width):
            before, after = old[start : start + width], new[start : start + width]
            if before == after:
                continue
            key = item.key + index_bytes(start // width)
            if any(before):
                deleted.append(template.bare_head + key)
            if after:
                added.append(template.head + key + template.middle + after)
        self._note(self._deleted, item.map, deleted)
        return added

    def _note(self, where: dict[str, list[bytes]], name: str, packed: list[bytes]) -> None:
        if packed:
            where.setdefault(name, []).extend(packed)
            self.size += len(packed) * len(packed[0])

    def done(self) -> Batch:
        builder = _Builder(self._layout)
        builder.changes = self.changes
        _build_structure(builder, _by_rank(self._structure))
        for kind, flags, lists in (
            (nft.DELSETELEM, 0, self._deleted),
            (nft.NEWSETELEM, nft.CREATE, self._added),
        ):
            for name, packed in lists.items():
                for body in nft.elements_bodies(names.TABLE_NAME, name, packed):
                    builder.add(kind, body, f"elements of {name}", flags)
        self.reset()
        return builder.done()


def _slots(value: object) -> bytes:
    return value.slots if isinstance(value, Pool) else b""


_INDEXES = tuple(codec.INDEX.pack(number) for number in range(1024))


def index_bytes(number: int) -> bytes:
    """A pool index as it stands in keys."""
    return _INDEXES[number] if number < len(_INDEXES) else codec.INDEX.pack(number)


def pool_templates(layout: FamilyLayout) -> dict[str, nft.ElementTemplate]:
    """How elements of the pool maps look, by map."""
    by_address = nft.ElementTemplate(layout.address_length + 12, layout.address_length + 4)
    by_node_port = nft.ElementTemplate(12, layout.address_length + 4)
    return {
        names.SERVICE_ENDPOINTS: by_address,
        names.LOCAL_ENDPOINTS: by_address,
        names.NODE_PORT_ENDPOINTS: by_node_port,
        names.NODE_PORT_LOCAL_ENDPOINTS: by_node_port,
    }


def _units(layout: FamilyLayout, changes: Sequence[Change], limit: int) -> Iterator[Batch]:
    """Transactions of whole units."""
    builder = _ServiceBuilder(layout)
    for unit in _grouped(changes):
        if builder.changes and builder.size >= limit:
            yield builder.done()
        for change in unit:
            builder.put(change)
    if builder.changes:
        yield builder.done()


_KEYED_BY_FRONTEND = frozenset(
    (
        names.SERVICE_IPS,
        names.FIREWALL_IPS,
        names.NO_ENDPOINT_SERVICES,
        names.SERVICE_NODE_PORTS,
        names.NO_ENDPOINT_NODE_PORTS,
    )
)


def _grouped(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Groups that must not be split: what a Service changes, and what has a bond with it."""
    units: dict[object, list[Change]] = {}
    homes: dict[object, list[Change]] = {}
    for change in changes:
        # Leftovers nobody owns need not stay together.
        name = change.item if change.owner is None else change.owner.service
        unit = units.setdefault(name, [])
        unit.append(change)
        for bond in _bonds(change):
            other = homes.setdefault(bond, unit)
            if other is not unit:
                _merge(units, homes, other, unit)
                unit = other
    yield from {id(unit): unit for unit in units.values()}.values()


def _bonds(change: Change) -> Iterator[bytes | str]:
    """What moves as a whole: a frontend's key, and a service's own chain with all that goes there.

    Usually all of it is one Service's. But an address and port may move from one to another.
    """
    item = change.item
    if isinstance(item, PoolItem):
        yield item.key
    elif isinstance(item, ChainItem):
        yield item.name
    elif isinstance(item, ElementItem) and item.set in _KEYED_BY_FRONTEND:
        yield item.key
        for value in (change.old, change.new):
            if isinstance(value, Element) and value.verdict and "/" in value.verdict.chain:
                yield value.verdict.chain


def _merge(
    units: dict[object, list[Change]],
    homes: dict[object, list[Change]],
    kept: list[Change],
    gone: list[Change],
) -> None:
    """Two Services turned out to belong together. Very rare, so it may walk."""
    kept.extend(gone)
    for table in (units, homes):
        for key, unit in table.items():
            if unit is gone:
                table[key] = kept
