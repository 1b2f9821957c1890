"""Elements of our sets and maps as items: all of them listed, or single ones asked for by key.

Why both: the kernel lists a map in messages of 32 kB and walks through it from the beginning for
each of them, while it finds a key in two microseconds in a map of any size. Promise: both ways
report the same, and what is not like ours differs from what we would write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeAlias

from msgspec import Struct

from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import KEYS_PER_CALL, NftablesTable
from kubeproxy.kernel.nftables.wire import ElementTemplate
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.compile.units import index_bytes, indexes, pool_templates
from kubeproxy.modes.nftables.items import Chain, Element, ElementItem, Item, Pool, PoolItem, Value
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules.classes import drawn_pools
from kubeproxy.modes.nftables.rules.refused import COUNTING_NAMES
from kubeproxy.modes.nftables.rules.typeof import LONGEST_POOL
from kubeproxy.modes.nftables.scaffold import known_set_specs

UNREADABLE = (KeyError, IndexError, ValueError, struct.error)
"""What decoding raises when a dump does not have the form that it is known to have."""

MOST_LISTED = 100_000
"""A map with more slots is not listed but asked for by key: from here on that is quicker."""

MOST_LISTINGS = 20
"""While the kernel moves a map into a larger table, for a moment after many elements were added, a
listing has some elements twice and lacks as many others. Such a one is made again so often."""

MOST_STRAYS = 5_000
"""With more slots than these that no dispatch element leads to, a map is listed, however large."""


_Parse: TypeAlias = Callable[[Iterable[bytes]], tuple[dict[Item, Value], bool]]
"""Makes items of a listing, and says whether it has each element once."""


class LargeMap(Struct, frozen=True):
    """A pool map that is too large to be listed: its pools that dispatch leads to.

    `count` is the number of its elements, if the kernel tells.
    """

    name: str
    pools: Mapping[bytes, int]
    count: int | None


def list_elements(
    nftables: NftablesTable,
    layout: FamilyLayout,
    counts: Mapping[str, int | None],
    chains: Mapping[str, Chain],
) -> tuple[dict[Item, Value], list[LargeMap]]:
    """Elements of the sets we know, of which `counts` has sizes; and the maps that are too large.

    Elements of affinity sets are left out: packets add them. `chains` lead from dispatch to pools.
    """
    items: dict[Item, Value] = {}
    large: list[LargeMap] = []
    templates = pool_templates(layout)
    for name in sorted((known_set_specs(layout).keys() - templates.keys()) & counts.keys()):
        items |= _listed(nftables, name, partial(_members, name))
    expected = _dispatched_pools(items, chains)
    for name in sorted(templates.keys() & counts.keys()):
        found = LargeMap(name, expected[name], counts[name])
        if _is_large(found):
            large.append(found)
        else:
            items |= _listed(nftables, name, partial(_pools, name, templates[name]))
    return items, large


def _listed(nftables: NftablesTable, name: str, parse: _Parse) -> dict[Item, Value]:
    """All elements of one set."""
    for _ in range(MOST_LISTINGS):
        items, has_each_once = parse(nftables.element_lists(names.TABLE_NAME, name))
        if has_each_once:
            break
    return items


def _dispatched_pools(
    items: Mapping[Item, Value], chains: Mapping[str, Chain]
) -> dict[str, dict[bytes, int]]:
    """By map the pools that are in use, each with its number of slots."""
    pools: dict[str, dict[bytes, int]] = {name: {} for name in names.POOL_MAPS}
    drawn: dict[str, dict[str, int]] = {}
    for item, value in items.items():
        if isinstance(item, ElementItem) and isinstance(value, Element) and value.verdict:
            entry = value.verdict.chain
            if entry not in drawn:
                found = drawn_pools(entry, chains)
                drawn[entry] = {name: found[name] for name in found.keys() & pools.keys()}
            for name, count in drawn[entry].items():
                pools[name][item.key] = count
    return pools


def _is_large(found: LargeMap) -> bool:
    expected = sum(found.pools.values())
    strays = 0 if found.count is None else found.count - expected
    return expected > MOST_LISTED and strays <= MOST_STRAYS


def _members(name: str, lists: Iterable[bytes]) -> tuple[dict[Item, Value], bool]:
    """Elements of a set or verdict map; and has the listing each of them once?"""
    elements = [found for listed in lists for found in nft.parse_elements(listed)]
    items: dict[Item, Value] = {
        ElementItem(name, found.key): _element(name, found) for found in elements
    }
    return items, len(items) == len(elements)


def _element(name: str, found: nft.ElementInfo) -> Element:
    """What a counter of ours has counted is no part of what is compared."""
    has_more = found.has_more or (found.packets is not None and name not in COUNTING_NAMES)
    return Element(found.verdict, found.comment, has_more)


def _pools(
    name: str, template: ElementTemplate, lists: Iterable[bytes]
) -> tuple[dict[Item, Value], bool]:
    """The pools of one map; and has the listing each element once?

    What is no slot is reported as a single element, so that it goes.
    """
    pools: dict[bytes, dict[int, bytes]] = {}
    strays: dict[Item, Value] = {}
    count = 0
    for key, data in pool_elements(lists, template):
        count += 1
        index = codec.INDEX.unpack(key[-4:])[0] if data else LONGEST_POOL
        if index >= LONGEST_POOL or not any(data):
            strays[ElementItem(name, key)] = Element()
        else:
            pools.setdefault(key[:-4], {})[index] = data
    has_each_once = count == len(strays) + sum(map(len, pools.values()))
    items = {PoolItem(name, key): join_slots(slots) for key, slots in pools.items()}
    return strays | items, has_each_once


def pool_elements(
    lists: Iterable[bytes], template: ElementTemplate
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and data; no data where an element is not like ours."""
    for listed in lists:
        quickly = template.parse(listed)
        if quickly is not None:
            yield from zip(*quickly, strict=True)
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


# ---- by key ----------------------------------------------------------------------------------

MOST_KEYS = 20_000
"""How many keys are asked for before listing everything is the better way."""


def find_elements(
    nftables: NftablesTable, layout: FamilyLayout, elements: Iterable[ElementItem]
) -> dict[Item, Value | None] | None:
    """What there is of these elements; None stands for an item that is not there.

    A slot is part of its pool, so the whole pool is reported. Return None if these are too many.
    """
    by_set: dict[str, list[bytes]] = {}
    known = known_set_specs(layout)
    for element in elements:
        if element.set in known:
            by_set.setdefault(element.set, []).append(element.key)
    questions = [_Question(name, keys, layout) for name, keys in by_set.items()]
    if sum(question.size for question in questions) > MOST_KEYS:
        return None
    found: dict[Item, Value | None] = {}
    for question in questions:
        found |= dict.fromkeys(question.items()) | question.answer(nftables)
    return found


class _Question:
    """Keys of one set to ask for: of a pool map those that are no slots, and pools.

    Another process touched these keys alone. So the rest of a pool is as we wrote it, which is
    without a gap: slots are asked for one by one up to the last that was touched, and from there
    on until one is missing.
    """

    def __init__(self, name: str, keys: Iterable[bytes], layout: FamilyLayout) -> None:
        self._name = name
        self._keys = list(keys)
        self._template = pool_templates(layout).get(name)
        self._last_slots: dict[bytes, int] = {}
        for key in self._keys:
            pool, index = key[:-4], self._index(key)
            if index is not None and index >= self._last_slots.get(pool, 0):
                self._last_slots[pool] = index

    def _index(self, key: bytes) -> int | None:
        """The index in the key of a slot."""
        if self._template is None or len(key) != self._template.key_length:
            return None
        index = int(codec.INDEX.unpack(key[-4:])[0])
        return index if index < LONGEST_POOL else None

    @property
    def size(self) -> int:
        return len(self._keys) + sum(self._last_slots.values())

    def items(self) -> Iterator[Item]:
        """All items that these keys may be part of."""
        for key in self._keys:
            yield ElementItem(self._name, key)
        for pool in self._last_slots:
            yield PoolItem(self._name, pool)

    def answer(self, nftables: NftablesTable) -> dict[Item, Value]:
        """The items that are there."""
        slots = (
            (pool + index_bytes(i)) for pool, last in self._last_slots.items() for i in range(last)
        )
        asked = dict.fromkeys(chain(self._keys, slots))
        found = self._ask(nftables, [[key] for key in asked])
        if self._template is None:
            return _members(self._name, found)[0]
        for pool, last in self._last_slots.items():
            found += self._ask_until_missing(nftables, pool, last + 1)
        return _pools(self._name, self._template, found)[0]

    def _ask_until_missing(self, nftables: NftablesTable, pool: bytes, start: int) -> list[bytes]:
        found: list[bytes] = []
        count = 8
        while True:
            run = [pool + index_bytes(index) for index in range(start, start + count)]
            more = self._ask(nftables, [run])
            found += more
            if len(more) < count:
                return found
            start, count = start + count, KEYS_PER_CALL

    def _ask(self, nftables: NftablesTable, runs: Sequence[Sequence[bytes]]) -> list[bytes]:
        packed = [list(map(nft.key_element, run)) for run in runs]
        found = nftables.element_runs(names.TABLE_NAME, self._name, packed)
        return list(chain.from_iterable(found))


class FoundPools(Struct, frozen=True):
    """What was asked for and is there, and of how many elements it consists."""

    items: dict[Item, Value]
    elements: int


def find_pools(
    nftables: NftablesTable, layout: FamilyLayout, name: str, pools: Mapping[bytes, int]
) -> FoundPools:
    """What there is of these pools, each of which should have so many slots."""
    template = pool_templates(layout)[name]
    runs = [run for pool, count in pools.items() for run in _runs(pool, count)]
    asked = [[template.bare_head + key for key in run] for run in runs]
    found = nftables.element_runs(names.TABLE_NAME, name, asked)
    # Behind a gap, which only another process can leave, there may be more.
    behind = [
        [key] for keys, there in zip(asked, found, strict=True) for key in keys[len(there) + 1 :]
    ]
    rest = nftables.element_runs(names.TABLE_NAME, name, behind)
    elements = sum(map(len, (*found, *rest)))
    items: dict[Item, Value] = {}
    hole = bytes(template.data_length)
    for run, there in zip(runs, found, strict=True):
        slots, pool = template.parse(b"".join(there)), run[0][:-4]
        if slots and slots[0] == run and len(run) == pools[pool] and hole not in slots[1]:
            items[PoolItem(name, pool)] = Pool(b"".join(slots[1]))
        else:
            rest.append(there)
    others, _ = _pools(name, template, map(b"".join, rest))
    return FoundPools(items | others, elements)


def _runs(pool: bytes, count: int) -> Iterator[tuple[bytes, ...]]:
    """The keys of all slots, in parts that fit into one call."""
    keys = tuple([pool + index for index in indexes(count)])
    for start in range(0, count, KEYS_PER_CALL):
        yield keys[start : start + KEYS_PER_CALL]
