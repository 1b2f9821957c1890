"""The sink for sets and their entries.

Entries are compared as values, never as the text a tool prints, so a range like 10.0.0.1/32 is
not mistaken for a change. Adding what is there and deleting what is not succeed, so a batch may be
repeated, halved or cut short at any point.

Recognised as ours: the seventeen names of each family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.errors import Rejected
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipset.table import EntryChange
from kubeproxy.kernel.ipset.wire import Entry, SetHead
from kubeproxy.modes.base import Batch, Change, Item, Value
from kubeproxy.modes.ipvs.items import PRESENT, IpSet, SetEntry, SetSpec
from kubeproxy.modes.ipvs.names import SetName, set_name
from kubeproxy.modes.ipvs.sinks.tables import Tables

_ENTRIES_PER_BATCH = 4000
_BYTES_PER_ENTRY = 64
"""About; reports only."""


class SetSink:
    """The sets of one family."""

    name = "ipset"
    item_types: tuple[type, ...] = (IpSet, SetEntry)

    def __init__(self, tables: Tables, family: Family) -> None:
        self._tables = tables
        self._names = tuple(set_name(family, name) for name in SetName)
        self.last_read: frozenset[SetEntry] = frozenset()
        """The entries as of the last `read`."""

    async def read(self) -> Mapping[Item, Value]:
        found: dict[Item, Value] = {}
        for name in self._names:
            listed = self._tables.ipset.find(name)
            if listed is not None:
                found[IpSet(name)] = SetSpec(listed.head.type, listed.head.is_ipv6)
                found |= dict.fromkeys(
                    (SetEntry(name, *entry) for entry in listed.entries), PRESENT
                )
        self.last_read = frozenset(item for item in found if isinstance(item, SetEntry))
        return found

    def compile(self, changes: Sequence[Change]) -> Iterator[Batch]:
        """Sets before entries."""
        sets = [change for change in changes if isinstance(change.item, IpSet)]
        entries = [change for change in changes if isinstance(change.item, SetEntry)]
        if sets:
            yield Batch(tuple(sets), None, size=len(sets) * _BYTES_PER_ENTRY)
        for start in range(0, len(entries), _ENTRIES_PER_BATCH):
            part = tuple(entries[start : start + _ENTRIES_PER_BATCH])
            yield Batch(part, None, size=len(part) * _BYTES_PER_ENTRY)

    async def apply(self, batch: Batch) -> None:
        """Part of a refused batch may be in the kernel; doing it again does no harm."""
        entries: list[EntryChange] = []
        for change in batch.changes:
            if isinstance(change.item, SetEntry):
                entries.append(_entry_change(change.item, is_add=change.new is not None))
            elif isinstance(change.item, IpSet) and isinstance(change.new, SetSpec):
                head = SetHead(change.new.kind, change.new.is_ipv6)
                self._tables.ipset.create(change.item.name, head)
        refused = self._tables.ipset.change(entries) if entries else []
        if refused:
            raise Rejected("; ".join(_words(change, reason) for change, reason in refused[:3]))


def _entry_change(item: SetEntry, *, is_add: bool) -> EntryChange:
    entry = Entry(item.address, item.protocol, item.port, item.second, item.prefix_length)
    return EntryChange(item.set_name, entry, is_add)


def _words(change: EntryChange, reason: str) -> str:
    verb = "add to" if change.is_add else "delete from"
    entry = change.entry
    parts = [str(part) for part in (entry.address, entry.port, entry.second) if part]
    return f"{verb} set {change.set_name}: {','.join(parts)}: {reason}"
