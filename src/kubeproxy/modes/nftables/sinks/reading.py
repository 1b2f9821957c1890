"""Our table as items, read out of the kernel.

Promise: everything in the table is reported, so that what is not wanted goes away, and whatever
another process has put there differs from what we would write. A table whose sets have other types
than ours is unusable and is replaced as a whole. Leaves to others: elements (`elements`), and what
to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import NftablesTable
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.items import (
    TABLE,
    Chain,
    ChainItem,
    Foreign,
    ForeignItem,
    Item,
    SetItem,
    SetSpec,
    Table,
    Value,
)
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules.affinity import affinity_set_spec
from kubeproxy.modes.nftables.rules.expressions import Rule
from kubeproxy.modes.nftables.rules.refused import COUNTING_SETS, Counted
from kubeproxy.modes.nftables.scaffold import known_set_specs
from kubeproxy.modes.nftables.sinks.elements import LargeMap, list_elements


def find_table(nftables: NftablesTable) -> nft.TableInfo | None:
    """Our table, if there is one."""
    return next((t for t in nftables.tables() if t.name == names.TABLE_NAME), None)


class Reading(Struct, frozen=True):
    """The table as items, but for maps that are so large that they must be asked for by key."""

    items: dict[Item, Value]
    large: Sequence[LargeMap] = ()


def read_table(nftables: NftablesTable, layout: FamilyLayout) -> Reading:
    """The table, or nothing if there is no table."""
    table = find_table(nftables)
    if table is None:
        return Reading({})
    declared = nftables.sets(names.TABLE_NAME)
    named = [found for found in declared if not found.flags & nft.NFT_SET_ANONYMOUS]
    sets = {found.name: codec.parse_set(found) for found in named}
    if not is_adoptable(layout, sets):
        return Reading({TABLE: Table(is_usable=False)})
    items: dict[Item, Value] = {
        TABLE: Table(is_dormant=bool(table.flags & nft.NFT_TABLE_F_DORMANT))
    }
    items |= {SetItem(name): spec for name, spec in sets.items()}
    chains = _read_chains(nftables)
    items |= {ChainItem(name): chain for name, chain in chains.items()}
    items |= _read_foreign(nftables)
    counts = {found.name: found.count for found in named}
    elements, large = list_elements(nftables, layout, counts, chains)
    return Reading(items | elements, large)


def is_adoptable(layout: FamilyLayout, sets: Mapping[str, SetSpec]) -> bool:
    """Could these sets be ours? The type of an existing set cannot be changed, its timeout can."""
    known = known_set_specs(layout)
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


def _read_chains(nftables: NftablesTable) -> dict[str, Chain]:
    rules: dict[str, list[Rule]] = {}
    for found in nftables.rules(names.TABLE_NAME):
        rules.setdefault(found.chain, []).append(codec.parse_rule(found))
    return {
        chain.name: Chain(
            names.chain_kind(chain.name), tuple(rules.get(chain.name, ())), chain.hook
        )
        for chain in nftables.chains(names.TABLE_NAME)
        if not chain.flags & nft.NFT_CHAIN_BINDING  # goes with the rule that jumps there
    }


def _read_foreign(nftables: NftablesTable) -> dict[Item, Value]:
    found = (*nftables.objects(names.TABLE_NAME), *nftables.flowtables(names.TABLE_NAME))
    return {ForeignItem(thing.name, thing.type): Foreign() for thing in found}


def read_counted(nftables: NftablesTable) -> list[Counted]:
    """What the sets that count refused packets have counted. Raises KernelError."""
    return [
        Counted(counting, found.key, found.packets)
        for counting in COUNTING_SETS
        for listed in nftables.element_lists(names.TABLE_NAME, counting.name)
        for found in nft.parse_elements(listed)
        if found.packets
    ]
