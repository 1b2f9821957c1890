"""Services as transactions: their elements, pools and own chains, never split. Pure.

Elements of one set share a message, deletions come before additions, and of a pool only the slots
that differ are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.modes.base import Batch, Change
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.compile.structure import Builder, build_structure, by_rank, weight_of
from kubeproxy.modes.nftables.items import ChainItem, Element, ElementItem, Pool, PoolItem
from kubeproxy.modes.nftables.names import FamilyLayout


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
            self.size += weight_of(change.new)

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
        builder = Builder(self._layout)
        builder.changes = self.changes
        build_structure(builder, by_rank(self._structure))
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


def unit_batches(layout: FamilyLayout, changes: Sequence[Change], limit: int) -> Iterator[Batch]:
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
