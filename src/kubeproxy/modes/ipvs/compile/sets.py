"""From changes of sets and their entries to batches for ipset. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from kubeproxy.kernel.ipset.wire import Entry, EntryChange, SetHead
from kubeproxy.modes.base import Batch, Change, changes_of
from kubeproxy.modes.ipvs.items import IpSet, Presence, SetEntry, SetItem, SetValue

_ENTRIES_PER_BATCH = 4000
_BYTES_PER_ENTRY = 64
"""An estimate, for reports: the messages are framed by `kernel.ipset`."""


class SetWork(Struct, frozen=True):
    """Sets to create, entries to add and delete, or sets to destroy."""

    created: tuple[tuple[str, SetHead], ...] = ()
    destroyed: tuple[str, ...] = ()
    entries: tuple[EntryChange, ...] = ()


def compile_sets(changes: Sequence[Change[SetItem, SetValue]]) -> Iterator[Batch[SetWork]]:
    """One batch with all new sets, then batches of entries, then one with sets that go.

    A set goes only if another configuration had it.
    """
    sets = changes_of(changes, IpSet, SetHead)
    made = [change for change in sets if change.new is not None]
    if made:
        created = tuple((change.item.name, change.new) for change in made if change.new is not None)
        yield Batch(tuple(made), SetWork(created=created), size=len(made) * _BYTES_PER_ENTRY)
    entries = changes_of(changes, SetEntry, Presence)
    for start in range(0, len(entries), _ENTRIES_PER_BATCH):
        part = tuple(entries[start : start + _ENTRIES_PER_BATCH])
        work = SetWork(entries=tuple(map(_entry_change, part)))
        yield Batch(part, work, size=len(part) * _BYTES_PER_ENTRY)
    gone = [change for change in sets if change.new is None]
    if gone:
        work = SetWork(destroyed=tuple(change.item.name for change in gone))
        yield Batch(tuple(gone), work, size=len(gone) * _BYTES_PER_ENTRY)


def _entry_change(change: Change[SetEntry, Presence]) -> EntryChange:
    item = change.item
    entry = Entry(item.address, item.protocol, item.port, item.second, item.prefix_length)
    return EntryChange(item.set_name, entry, is_add=change.new is not None)


def refusal_text(change: EntryChange, reason: str) -> str:
    """A refused entry in words."""
    verb = "add to" if change.is_add else "delete from"
    entry = change.entry
    parts = [str(part) for part in (entry.address, entry.port, entry.second) if part]
    return f"{verb} set {change.set_name}: {','.join(parts)}: {reason}"
