"""Our table as items, read out of the kernel.

Promise: everything in the table is reported, so that what is not wanted goes away, and whatever
another process has put there differs from what we would write. A table whose sets have other types
than ours is unusable and is replaced as a whole. Leaves to others: what to do about it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import NftablesTable
from kubeproxy.kernel.nftables.wire import ElementTemplate
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.compile.units import pool_templates
from kubeproxy.modes.nftables.items import (
    TABLE,
    Chain,
    ChainItem,
    Element,
    ElementItem,
    Foreign,
    ForeignItem,
    Item,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
    Table,
    Value,
)
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules.affinity import affinity_set_spec
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.rules.typeof import LONGEST_POOL
from kubeproxy.modes.nftables.scaffold import node_port_ips_spec, set_specs

UNREADABLE = (KeyError, IndexError, ValueError, struct.error)
"""What decoding raises when a dump does not have the form that it is known to have."""


def find_table(nftables: NftablesTable) -> nft.TableInfo | None:
    """Our table, if there is one."""
    return next((t for t in nftables.tables() if t.name == names.TABLE_NAME), None)


def read_table(nftables: NftablesTable, layout: FamilyLayout) -> dict[Item, Value]:
    """The table as items, or nothing if there is no table."""
    table = find_table(nftables)
    if table is None:
        return {}
    sets = {
        found.name: codec.parse_set(found)
        for found in nftables.sets(names.TABLE_NAME)
        if not found.flags & nft.NFT_SET_ANONYMOUS
    }
    if not is_adoptable(layout, sets):
        return {TABLE: Table(is_usable=False)}
    items: dict[Item, Value] = {
        TABLE: Table(is_dormant=bool(table.flags & nft.NFT_TABLE_F_DORMANT))
    }
    items |= {SetItem(name): spec for name, spec in sets.items()}
    items |= _read_chains(nftables)
    items |= _read_elements(nftables, layout, sets.keys())
    items |= _read_foreign(nftables)
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


def _shape(spec: SetSpec) -> tuple[int, int, int, bool]:
    return spec.key_type, spec.key_length, spec.flags, spec.has_expressions


def _read_chains(nftables: NftablesTable) -> dict[Item, Value]:
    rules: dict[str, list[Rule]] = {}
    for found in nftables.rules(names.TABLE_NAME):
        rules.setdefault(found.chain, []).append(codec.parse_rule(found))
    return {
        ChainItem(chain.name): Chain(
            names.chain_kind(chain.name), tuple(rules.get(chain.name, ())), chain.hook
        )
        for chain in nftables.chains(names.TABLE_NAME)
        if not chain.flags & nft.NFT_CHAIN_BINDING  # goes with the rule that jumps there
    }


def _read_foreign(nftables: NftablesTable) -> dict[Item, Value]:
    found = (*nftables.objects(names.TABLE_NAME), *nftables.flowtables(names.TABLE_NAME))
    return {ForeignItem(thing.name, thing.type): Foreign() for thing in found}


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
            value = Element(found.verdict, found.comment, found.has_more)
            items[ElementItem(name, found.key)] = value
    return items


def _read_pools(nftables: NftablesTable, name: str, template: ElementTemplate) -> dict[Item, Value]:
    """The pools of one map. What is no slot is reported as a single element, so that it goes."""
    pools: dict[bytes, dict[int, bytes]] = {}
    strays: dict[Item, Value] = {}
    for key, data in _pool_elements(nftables, name, template):
        index = codec.INDEX.unpack(key[-4:])[0] if data else LONGEST_POOL
        if index >= LONGEST_POOL or not any(data):
            strays[ElementItem(name, key)] = Element()
        else:
            pools.setdefault(key[:-4], {})[index] = data
    return strays | {PoolItem(name, key): join_slots(slots) for key, slots in pools.items()}


def _pool_elements(
    nftables: NftablesTable, name: str, template: ElementTemplate
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and data; no data where an element is not like ours."""
    for listed in nftables.element_lists(names.TABLE_NAME, name):
        quickly = template.parse(listed)
        if quickly is not None:
            yield from quickly
            continue
        for found in nft.parse_elements(listed):
            is_ours = found.key and not found.has_more and not found.comment
            yield found.key, found.data if is_ours else b""


def join_slots(slots: Mapping[int, bytes]) -> Pool:
    """Slots in order of index, with zeros for a missing one."""
    width = len(next(iter(slots.values())))
    last = max(slots)
    if last + 1 == len(slots):
        return Pool(b"".join([slots[index] for index in range(last + 1)]))
    return Pool(b"".join([slots.get(index, b"\0" * width) for index in range(last + 1)]))
