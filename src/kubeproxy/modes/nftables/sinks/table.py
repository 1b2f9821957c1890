"""Reads our table out of the kernel, and carries transactions out.

Promise: `read` reports everything in the table, ours or not, so that what nobody wants goes away;
a table whose sets have other types than ours is reported as unusable and is replaced as a whole.
Ours is recognised by the table's name alone: nobody else may write there.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Mapping, Sequence

from kubeproxy.errors import Busy, Drifted, Rejected
from kubeproxy.kernel.netlink.codec import iter_attrs
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import NftHandle, NftSocket
from kubeproxy.modes.base import Batch, Change, Item, Value
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.compile import refusals as blame
from kubeproxy.modes.nftables.compile.transactions import compile_transactions
from kubeproxy.modes.nftables.compile.units import pool_templates
from kubeproxy.modes.nftables.items import (
    TABLE,
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Hook,
    Pool,
    PoolItem,
    Rule,
    SetItem,
    SetSpec,
    Table,
    TableItem,
    Verdict,
)
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.scaffold import node_port_ips_spec, set_specs

_LONGEST_POOL = 1 << 16
_AFFINITY_FLAGS = nft.SET_TIMEOUT | nft.SET_DYNAMIC


OpenSocket = Callable[[int], NftHandle]


class TableSink:
    """The table of one family."""

    name = "nftables"
    item_types: tuple[type, ...] = (TableItem, SetItem, ChainItem, ElementItem, PoolItem)

    def __init__(self, layout: FamilyLayout, open_socket: OpenSocket = NftSocket) -> None:
        self._layout = layout
        self._open_socket = open_socket
        self._socket: NftHandle | None = None

    @property
    def socket(self) -> NftHandle:
        """Opened on first use, in the namespace current then."""
        if self._socket is None:
            self._socket = self._open_socket(self._layout.number)
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def read(self) -> Mapping[Item, Value]:
        """Everything in our table. Long for a big one, so not on the event loop's thread."""
        handle = self.socket
        return await asyncio.to_thread(read_table, handle, self._layout)

    def compile(self, changes: Sequence[Change]) -> Iterable[Batch]:
        return compile_transactions(self._layout, changes)

    async def apply(self, batch: Batch) -> None:
        """One transaction: all of it or nothing."""
        transaction = batch.payload
        if not isinstance(transaction, nft.Batch):
            raise TypeError("not a transaction of this sink")
        refusals = self.socket.commit(transaction)
        if refusals:
            self._refused(refusals, transaction, batch.changes)
        # Between transactions others get their turn: this call may have held the loop for 20 ms.
        await asyncio.sleep(0)

    def _refused(
        self, refusals: Sequence[nft.Refusal], transaction: nft.Batch, changes: Sequence[Change]
    ) -> None:
        first = refusals[0]
        text = f"nftables: {blame.describe(first, transaction, changes)}"
        if first.errno in (errno.EAGAIN, errno.EINTR, errno.ENOBUFS):
            raise Busy(text, errno=first.errno)
        if first.errno == errno.ENOENT and not self._has_table():
            raise Drifted(f"table {names.TABLE_NAME} has disappeared", errno=first.errno)
        raise Rejected(text, errno=first.errno)

    def _has_table(self) -> bool:
        return any(table.name == names.TABLE_NAME for table in self.socket.tables())


def read_table(handle: NftHandle, layout: FamilyLayout) -> dict[Item, Value]:
    """The table as items; empty if there is none."""
    if not any(table.name == names.TABLE_NAME for table in handle.tables()):
        return {}
    sets = {
        found.name: codec.decode_set(found)
        for found in handle.sets(names.TABLE_NAME)
        if not found.flags & nft.SET_ANONYMOUS
    }
    if not is_adoptable(layout, sets):
        return {TABLE: Table(is_usable=False)}
    items: dict[Item, Value] = {TABLE: Table()}
    items |= {SetItem(name): spec for name, spec in sets.items()}
    items |= _read_chains(handle)
    items |= _read_elements(handle, layout, sets.keys())
    return items


def is_adoptable(layout: FamilyLayout, sets: Mapping[str, SetSpec]) -> bool:
    """Could these sets be ours? The type of an existing set cannot be changed."""
    known = set_specs(layout) | {names.NODE_PORT_IPS: node_port_ips_spec(layout)}
    for name, spec in sets.items():
        if name.startswith(names.AFFINITY_PREFIX):
            shape = (spec.key_type, spec.key_length, spec.flags)
            if shape != (layout.address_type, layout.address_length, _AFFINITY_FLAGS):
                return False
        elif spec != known.get(name, spec):
            return False
    return True


def _read_chains(handle: NftHandle) -> dict[Item, Value]:
    rules: dict[str, list[Rule]] = {}
    for found in handle.rules(names.TABLE_NAME):
        rules.setdefault(found.chain, []).append(codec.decode_rule(found))
    return {
        ChainItem(chain.name): Chain(tuple(rules.get(chain.name, ())), _hook(chain.hook))
        for chain in handle.chains(names.TABLE_NAME)
    }


def _hook(found: nft.Hook | None) -> Hook | None:
    return None if found is None else Hook(found.type, found.number, found.priority)


def _read_elements(
    handle: NftHandle, layout: FamilyLayout, present: Iterable[str]
) -> dict[Item, Value]:
    """Elements of the sets we know; those of affinity sets belong to the packets."""
    items: dict[Item, Value] = {}
    known = set_specs(layout).keys() | {names.NODE_PORT_IPS}
    templates = pool_templates(layout)
    for name in sorted(known & set(present)):
        if name in templates:
            items |= _read_pools(handle, name, templates[name])
            continue
        for found in handle.elements(names.TABLE_NAME, name):
            items[ElementItem(name, found.key)] = Element(_verdict(found.verdict), found.comment)
    return items


def _verdict(found: nft.Verdict | None) -> Verdict | None:
    return None if found is None else Verdict(found.code, found.chain)


def _read_pools(handle: NftHandle, name: str, template: nft.ElementTemplate) -> dict[Item, Value]:
    pools: dict[bytes, dict[int, bytes]] = {}
    strays: dict[Item, Value] = {}
    for key, data in _pool_elements(handle, name, template):
        (index,) = codec.INDEX.unpack(key[-4:])
        if index >= _LONGEST_POOL or not any(data):
            # Nothing we would write: named as a single element, so that it is deleted.
            strays[ElementItem(name, key)] = Element()
        else:
            pools.setdefault(key[:-4], {})[index] = data
    return strays | {PoolItem(name, key): join_slots(slots) for key, slots in pools.items()}


def _pool_elements(
    handle: NftHandle, name: str, template: nft.ElementTemplate
) -> Iterable[tuple[bytes, bytes]]:
    for listed in handle.element_lists(names.TABLE_NAME, name):
        quickly = template.parse(listed)
        if quickly is not None:
            yield from quickly
            continue
        for _, raw in iter_attrs(listed):
            found = nft.parse_element(raw)
            yield found.key, found.data


def join_slots(slots: Mapping[int, bytes]) -> Pool:
    """Slots in order of index; a missing one is zeros."""
    width = len(next(iter(slots.values())))
    last = max(slots)
    if last + 1 == len(slots):
        return Pool(b"".join([slots[index] for index in range(last + 1)]))
    return Pool(b"".join([slots.get(index, b"\0" * width) for index in range(last + 1)]))
