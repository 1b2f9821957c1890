"""Reads our table out of the kernel, and executes transactions.

Promise: `read` reports everything in the table, so that what is not wanted goes away. A table whose
sets have other types than ours is reported as unusable and is replaced as a whole. Ours is
recognised by the table's name alone: no other program may write there. Leaves to others: the order
of transactions (`compile`).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kubeproxy.errors import Busy, Drifted, Rejected
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables, NftablesTable
from kubeproxy.kernel.nftables.wire import ElementTemplate, Transaction
from kubeproxy.modes.base import AnyChange, Batch, Change
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.compile.refusals import describe_refusal
from kubeproxy.modes.nftables.compile.transactions import compile_transactions
from kubeproxy.modes.nftables.compile.units import pool_templates
from kubeproxy.modes.nftables.items import (
    TABLE,
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Item,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
    Table,
    TableItem,
    Value,
)
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules.affinity import affinity_set_spec
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.scaffold import node_port_ips_spec, set_specs

_LONGEST_POOL = 1 << 16

OpenNftables = Callable[[int], NftablesTable]


class TableSink:
    """The table of one family."""

    name = "nftables"
    item_types: tuple[type, ...] = (TableItem, SetItem, ChainItem, ElementItem, PoolItem)

    def __init__(self, layout: FamilyLayout, open_nftables: OpenNftables = Nftables) -> None:
        self._layout = layout
        self._open_nftables = open_nftables
        self._nftables: NftablesTable | None = None

    @property
    def nftables(self) -> NftablesTable:
        """Opened on first use, in the namespace current then."""
        if self._nftables is None:
            self._nftables = self._open_nftables(self._layout.number)
        return self._nftables

    def close(self) -> None:
        if self._nftables is not None:
            self._nftables.close()
            self._nftables = None

    async def read(self) -> Mapping[Item, Value]:
        """Everything in our table. Slow for a big one, so not on the event loop's thread."""
        return await asyncio.to_thread(read_table, self.nftables, self._layout)

    def compile(self, changes: Sequence[Change[Item, Value]]) -> Iterator[Batch[Transaction]]:
        return compile_transactions(self._layout, changes)

    async def apply(self, batch: Batch[Transaction]) -> None:
        """Commit one transaction: all of it or nothing."""
        refusals = self.nftables.commit(batch.payload)
        if refusals:
            self._raise(refusals[0], batch.payload, batch.changes)
        # Other tasks get their turn between transactions: this call may have taken 20 ms.
        await asyncio.sleep(0)

    def _raise(
        self, refusal: nft.Refusal, transaction: Transaction, changes: Sequence[AnyChange]
    ) -> None:
        text = f"nftables: {describe_refusal(refusal, transaction, changes)}"
        if refusal.errno in (errno.EAGAIN, errno.EINTR, errno.ENOBUFS):
            raise Busy(text, errno=refusal.errno)
        if refusal.errno == errno.ENOENT and not _has_table(self.nftables):
            raise Drifted(f"table {names.TABLE_NAME} has disappeared", errno=refusal.errno)
        raise Rejected(text, errno=refusal.errno)


def _has_table(nftables: NftablesTable) -> bool:
    return any(table.name == names.TABLE_NAME for table in nftables.tables())


def read_table(nftables: NftablesTable, layout: FamilyLayout) -> dict[Item, Value]:
    """The table as items, or nothing if there is no table."""
    if not _has_table(nftables):
        return {}
    sets = {
        found.name: codec.parse_set(found)
        for found in nftables.sets(names.TABLE_NAME)
        if not found.flags & nft.NFT_SET_ANONYMOUS
    }
    if not is_adoptable(layout, sets):
        return {TABLE: Table(is_usable=False)}
    items: dict[Item, Value] = {TABLE: Table()}
    items |= {SetItem(name): spec for name, spec in sets.items()}
    items |= _read_chains(nftables)
    items |= _read_elements(nftables, layout, sets.keys())
    return items


def is_adoptable(layout: FamilyLayout, sets: Mapping[str, SetSpec]) -> bool:
    """Could these sets be ours? The type of an existing set cannot be changed, its timeout can."""
    known = set_specs(layout) | {names.NODE_PORT_IPS: node_port_ips_spec(layout)}
    affinity = affinity_set_spec(layout)
    for name, spec in sets.items():
        if names.is_affinity_set(name):
            if _shape(spec) != _shape(affinity):
                return False
        elif spec != known.get(name, spec):
            return False
    return True


def _shape(spec: SetSpec) -> tuple[int, int, int]:
    return spec.key_type, spec.key_length, spec.flags


def _read_chains(nftables: NftablesTable) -> dict[Item, Value]:
    rules: dict[str, list[Rule]] = {}
    for found in nftables.rules(names.TABLE_NAME):
        rules.setdefault(found.chain, []).append(codec.parse_rule(found))
    return {
        ChainItem(chain.name): Chain(
            names.chain_kind(chain.name), tuple(rules.get(chain.name, ())), chain.hook
        )
        for chain in nftables.chains(names.TABLE_NAME)
    }


def _read_elements(
    nftables: NftablesTable, layout: FamilyLayout, present: Iterable[str]
) -> dict[Item, Value]:
    """Elements of the sets we know. Those of affinity sets are left out: packets add them."""
    items: dict[Item, Value] = {}
    known = set_specs(layout).keys() | {names.NODE_PORT_IPS}
    templates = pool_templates(layout)
    for name in sorted(known & set(present)):
        if name in templates:
            items |= _read_pools(nftables, name, templates[name])
            continue
        for found in nftables.elements(names.TABLE_NAME, name):
            items[ElementItem(name, found.key)] = Element(found.verdict, found.comment)
    return items


def _read_pools(nftables: NftablesTable, name: str, template: ElementTemplate) -> dict[Item, Value]:
    pools: dict[bytes, dict[int, bytes]] = {}
    strays: dict[Item, Value] = {}
    for key, data in _pool_elements(nftables, name, template):
        (index,) = codec.INDEX.unpack(key[-4:])
        if index >= _LONGEST_POOL or not any(data):
            # Nothing we would write: reported as a single element, so that it is deleted.
            strays[ElementItem(name, key)] = Element()
        else:
            pools.setdefault(key[:-4], {})[index] = data
    return strays | {PoolItem(name, key): join_slots(slots) for key, slots in pools.items()}


def _pool_elements(
    nftables: NftablesTable, name: str, template: ElementTemplate
) -> Iterator[tuple[bytes, bytes]]:
    for listed in nftables.element_lists(names.TABLE_NAME, name):
        quickly = template.parse(listed)
        if quickly is not None:
            yield from quickly
        else:
            yield from ((found.key, found.data) for found in nft.parse_elements(listed))


def join_slots(slots: Mapping[int, bytes]) -> Pool:
    """Slots in order of index, with zeros for a missing one."""
    width = len(next(iter(slots.values())))
    last = max(slots)
    if last + 1 == len(slots):
        return Pool(b"".join([slots[index] for index in range(last + 1)]))
    return Pool(b"".join([slots.get(index, b"\0" * width) for index in range(last + 1)]))
