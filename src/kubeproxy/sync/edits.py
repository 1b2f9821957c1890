"""Differences between what the kernel holds and what is wanted, as lines for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from kubeproxy.modes.base import SCAFFOLD, AnyBackend, AnyChange, AnyItem, AnyValue


class Edit(Struct, frozen=True):
    """What differs for one owner: `removed` is in the kernel, `added` is wanted."""

    owner: str
    removed: tuple[str, ...]
    added: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """The lines as a diff shows them."""
        yield from (f"- {line}" for line in self.removed)
        yield from (f"+ {line}" for line in self.added)


def edits_of(backend: AnyBackend, changes: Iterable[AnyChange], unowned: str) -> Iterator[Edit]:
    """Group changes by owner. `unowned` is the name for what nothing wants.

    Owners are in the order in which they first appear.
    """
    grouped: dict[str, list[AnyChange]] = {}
    for change in backend.explained(changes):
        grouped.setdefault(_owner_text(change, unowned), []).append(change)
    for owner, found in grouped.items():
        before, after = _lines(backend, found, "old"), _lines(backend, found, "new")
        removed, added = Counter(before) - Counter(after), Counter(after) - Counter(before)
        if removed or added:
            yield Edit(owner, tuple(removed.elements()), tuple(added.elements()))


def _owner_text(change: AnyChange, unowned: str) -> str:
    if change.owner is None:
        return unowned
    return "for all Services" if change.owner == SCAFFOLD else str(change.owner)


def _lines(backend: AnyBackend, changes: list[AnyChange], side: str) -> list[str]:
    """The lines of one side, in an order that does not depend on that of the changes."""
    values = ((change.item, getattr(change, side)) for change in changes)
    found = [_worded(backend, item, value) for item, value in values if value is not None]
    return [line for lines in sorted(map(list, found)) for line in lines]


def _worded(backend: AnyBackend, item: AnyItem, value: AnyValue) -> Sequence[str]:
    """One item as lines, or as it is where the mode has no words for it.

    Another program may have put anything there, and looking at it must never fail a repair.
    """
    try:
        return backend.lines({item: value})
    except Exception:
        return [f"{item}: {value}"]
