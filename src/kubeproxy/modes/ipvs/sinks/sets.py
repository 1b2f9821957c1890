"""The sink for sets and their entries.

Entries are compared as values, never as the text a tool prints, so a range like 10.0.0.1/32 is not
mistaken for a change. Recognised as ours: the names of each family in `names`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.errors import Rejected
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import Batch, Change
from kubeproxy.modes.ipvs.compile.sets import SetWork, compile_sets, refusal_text
from kubeproxy.modes.ipvs.items import PRESENT, IpSet, Presence, SetEntry, SetItem, SetValue
from kubeproxy.modes.ipvs.names import SetName, set_name
from kubeproxy.modes.ipvs.sinks.tables import Tables


class SetSink:
    """The sets of one family.

    Not transactional: part of a rejected batch may be in the kernel. Adding an entry that exists
    and deleting one that does not succeed, so repeating a batch, whole or in part, is harmless.
    """

    name = "ipset"
    item_types: tuple[type, ...] = (IpSet, SetEntry)
    is_transactional = False

    def __init__(self, tables: Tables, family: Family) -> None:
        self._tables = tables
        self._names = tuple(set_name(family, name) for name in SetName)
        self.last_read: frozenset[SetEntry] = frozenset()
        """The entries as of the last `read`: by them the server sink recognises what is ours."""

    async def read(self) -> Mapping[SetItem, SetValue]:
        sets: dict[SetItem, SetValue] = {}
        entries: dict[SetEntry, Presence] = {}
        for name in self._names:
            listed = self._tables.ipset.find(name)
            if listed is not None:
                sets[IpSet(name)] = listed.head
                entries |= {SetEntry(name, *entry): PRESENT for entry in listed.entries}
        self.last_read = frozenset(entries)
        return sets | entries

    def compile(self, changes: Sequence[Change[SetItem, SetValue]]) -> Iterator[Batch[SetWork]]:
        return compile_sets(changes)

    async def apply(self, batch: Batch[SetWork]) -> None:
        """Create and destroy sets, and change entries. Raises Rejected with the refused ones."""
        work = batch.payload
        for name, head in work.created:
            self._tables.ipset.create(name, head)
        for name in work.destroyed:
            self._tables.ipset.destroy(name)
        refused = self._tables.ipset.change(work.entries) if work.entries else []
        if refused:
            raise Rejected("; ".join(refusal_text(*refusal) for refusal in refused[:3]))
