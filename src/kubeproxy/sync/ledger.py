"""What every owner wants, what we believe the kernel has, and therefore exactly what to change.

An owner (a service port, or the scaffold) claims items; two owners may claim the same item, and
then the smallest owner's value holds until it leaves. Only items whose wanted value differs from
the believed one are remembered separately, so in steady state the ledger costs one entry an item
and the difference is found without looking at the rest.

Generic: knows neither Kubernetes nor Linux. Values are never None; None means "absent".
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

O = TypeVar("O", bound="SupportsRichComparison")  # noqa: E741 - owner, item, value: O, K, V
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Change(Struct, Generic[O, K, V], frozen=True):
    """One item that must change: `old` is believed to be there, `new` is wanted; None is absent.

    `owner` is whom to blame: the one whose value is wanted, or who gave the item up.
    """

    owner: O | None
    item: K
    old: V | None
    new: V | None


class Ledger(Generic[O, K, V]):
    """Wanted by owner against applied."""

    def __init__(self) -> None:
        self._wanted: dict[O, Mapping[K, V]] = {}
        # One owner is the rule; a list of owners, smallest first, is the exception.
        self._owners: dict[K, O | _Claim[O]] = {}
        self._pending: dict[K, V | None] = {}
        self._blame: dict[K, O] = {}

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def owners(self) -> tuple[O, ...]:
        return tuple(self._wanted)

    def fragment(self, owner: O) -> Mapping[K, V]:
        """What this owner wants."""
        return self._wanted.get(owner, {})

    def wanted(self, item: K) -> V | None:
        """The value that should hold, or None."""
        claim = self._owners.get(item)
        if claim is None:
            return None
        return self._wanted[_first(claim)][item]

    def put(self, owner: O, fragment: Mapping[K, V]) -> None:
        """Replace everything this owner wants; an empty fragment forgets the owner."""
        before = self._wanted.get(owner, {})
        touched = [k for k in before if k not in fragment or fragment[k] != before[k]]
        added = [k for k in fragment if k not in before]
        believed = {item: self._believed(item) for item in (*touched, *added)}
        for item in touched:
            if item not in fragment:
                self._release(item, owner)
        if fragment:
            self._wanted[owner] = fragment
        else:
            self._wanted.pop(owner, None)
        for item in added:
            self._claim(item, owner)
        for item, old in believed.items():
            self._note(item, old, owner)

    def remove(self, owner: O) -> None:
        self.put(owner, {})

    def _believed(self, item: K) -> V | None:
        """What we believe is applied for this item right now."""
        return self._pending[item] if item in self._pending else self.wanted(item)

    def _note(self, item: K, believed: V | None, owner: O) -> None:
        """Remember the item as pending if belief and wish differ."""
        if self.wanted(item) == believed:
            self._pending.pop(item, None)
            self._blame.pop(item, None)
        else:
            self._pending[item] = believed
            self._blame[item] = owner

    def _claim(self, item: K, owner: O) -> None:
        held = self._owners.get(item)
        if held is None:
            self._owners[item] = owner
        elif isinstance(held, _Claim):
            insort(held, owner)
        else:
            self._owners[item] = _Claim(sorted((held, owner)))

    def _release(self, item: K, owner: O) -> None:
        held = self._owners[item]
        if not isinstance(held, _Claim):
            del self._owners[item]
            return
        del held[bisect_left(held, owner)]
        if len(held) == 1:
            self._owners[item] = held[0]

    def difference(self, accept: Callable[[K], bool] | None = None) -> list[Change[O, K, V]]:
        """Everything that must change, grouped by owner; only items `accept` lets through."""
        changes = [
            Change(self._blamed(item), item, old, self.wanted(item))
            for item, old in self._pending.items()
            if accept is None or accept(item)
        ]
        changes.sort(key=_owner_order)
        return changes

    def _blamed(self, item: K) -> O | None:
        claim = self._owners.get(item)
        return self._blame.get(item) if claim is None else _first(claim)

    def confirm(self, changes: Iterable[Change[O, K, V]]) -> None:
        """These changes are in the kernel now."""
        for change in changes:
            if self.wanted(change.item) == change.new:
                self._pending.pop(change.item, None)
                self._blame.pop(change.item, None)
            else:
                self._pending[change.item] = change.new

    def resync(self, applied: Mapping[K, V], accept: Callable[[K], bool] | None = None) -> int:
        """Belief is now exactly `applied` (for the items `accept` lets through).

        Returns how many items were believed to be in another state: drift.
        """
        drifted = 0
        for item in self._known(applied, accept):
            found = applied.get(item)
            if found != self._believed(item):
                drifted += 1
            if found == self.wanted(item):
                self._pending.pop(item, None)
                self._blame.pop(item, None)
            else:
                self._pending[item] = found
        return drifted

    def _known(self, applied: Mapping[K, V], accept: Callable[[K], bool] | None) -> set[K]:
        known = self._owners.keys() | self._pending.keys()
        if accept is not None:
            known = {item for item in known if accept(item)}
        return known | applied.keys()


class _Claim(list[O]):
    """Several owners of one item, smallest first."""

    __slots__ = ()


def _first(claim: O | _Claim[O]) -> O:
    return claim[0] if isinstance(claim, _Claim) else claim


def _owner_order(change: Change[O, K, V]) -> tuple[bool, O | None]:
    return (change.owner is not None, change.owner)
