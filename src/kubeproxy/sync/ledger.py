"""What every owner wants, what we believe the kernel has, and therefore exactly what to change.

An owner (a service port, or the scaffold) claims items; two owners may claim the same item, and
then the smallest owner's value holds until it leaves. Values are never None; None means "absent".
Knows neither Kubernetes nor Linux.

    wanted     owner → item → value        what `put` was given
    owners     item → owner, or several    who claims it; the smallest one's value is wanted
    pending    item → believed value       only items whose believed value is not the wanted one
    blame      item → owner                who gave up an item that is pending and has no owner

    put(owner, fragment)     kernel_belief == wanted?   yes: nothing pending
            │                        │
            ▼                        no
      wanted, owners ──────▶ pending[item] = believed value ──difference()──▶ changes
                                     ▲                                          │
        resync(read), resync_some ───┘                            confirm() after apply

What is believed of an item is therefore never stored twice: `pending[item]` if it is there, else
the wanted value. In steady state nothing is pending, an item costs one entry in `owners`, and the
difference is found without looking at the rest.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic

from kubeproxy.modes.base import I, O, OwnedChange, V


class Ledger(Generic[O, I, V]):
    """Wanted by owner against applied."""

    def __init__(self) -> None:
        self._wanted: dict[O, Mapping[I, V]] = {}
        # One owner is the rule; a list of owners, smallest first, is the exception.
        self._owners: dict[I, O | _Claim[O]] = {}
        self._pending: dict[I, V | None] = {}
        self._blame: dict[I, O] = {}

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def owners(self) -> tuple[O, ...]:
        return tuple(self._wanted)

    def fragment(self, owner: O) -> Mapping[I, V]:
        """What this owner wants."""
        return self._wanted.get(owner, {})

    def wanted(self, item: I) -> V | None:
        """The value that should hold, or None if nothing wants the item."""
        claim = self._owners.get(item)
        if claim is None:
            return None
        return self._wanted[_first(claim)][item]

    def put(self, owner: O, fragment: Mapping[I, V]) -> None:
        """Replace everything this owner wants; an empty fragment forgets the owner."""
        before = self._wanted.get(owner)
        if before is None:
            self._put_first(owner, fragment)
            return
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
            self._update_pending(item, old, owner)

    def _put_first(self, owner: O, fragment: Mapping[I, V]) -> None:
        """The same for an owner that wanted nothing before: at a start that is every owner."""
        owners, pending = self._owners, self._pending
        if fragment:
            self._wanted[owner] = fragment
        for item, value in fragment.items():
            if item in owners:
                believed = self._believed(item)
                self._claim(item, owner)
                self._update_pending(item, believed, owner)
                continue
            owners[item] = owner
            if pending.setdefault(item, None) == value:  # a read has found it
                del pending[item]
                self._blame.pop(item, None)

    def remove(self, owner: O) -> None:
        self.put(owner, {})

    def _believed(self, item: I) -> V | None:
        """What the kernel is believed to hold for this item."""
        return self._pending[item] if item in self._pending else self.wanted(item)

    def _update_pending(self, item: I, believed: V | None, owner: O) -> None:
        """Record the item as pending if the believed value is not the wanted one."""
        if self.wanted(item) == believed:
            self._pending.pop(item, None)
            self._blame.pop(item, None)
        else:
            self._pending[item] = believed
            if item not in self._owners:
                self._blame[item] = owner

    def _claim(self, item: I, owner: O) -> None:
        held = self._owners.get(item)
        if held is None:
            self._owners[item] = owner
        elif isinstance(held, _Claim):
            insort(held, owner)
        else:
            self._owners[item] = _Claim(sorted((held, owner)))

    def _release(self, item: I, owner: O) -> None:
        held = self._owners[item]
        if not isinstance(held, _Claim):
            del self._owners[item]
            return
        del held[bisect_left(held, owner)]
        if len(held) == 1:
            self._owners[item] = held[0]

    def difference(self, accept: Callable[[I], bool] | None = None) -> list[OwnedChange[O, I, V]]:
        """Everything that must change, grouped by owner; only items `accept` lets through."""
        groups: dict[O | None, list[OwnedChange[O, I, V]]] = {}
        for change in self.differences(accept):
            groups.setdefault(change.owner, []).append(change)
        return [change for owner in sorted(groups, key=_owner_order) for change in groups[owner]]

    def differences(
        self, accept: Callable[[I], bool] | None = None
    ) -> Iterator[OwnedChange[O, I, V]]:
        """The same in no order, one by one: for looking at the first of them only."""
        for item, old in self._pending.items():
            if accept is None or accept(item):
                claim = self._owners.get(item)
                if claim is None:
                    yield OwnedChange(self._blame.get(item), item, old, None)
                else:
                    owner = _first(claim)
                    yield OwnedChange(owner, item, old, self._wanted[owner][item])

    def confirm(self, changes: Iterable[OwnedChange[O, I, V]]) -> None:
        """Record that these changes are in the kernel."""
        for change in changes:
            wanted = self.wanted(change.item)
            if wanted is change.new or wanted == change.new:
                self._pending.pop(change.item, None)
                self._blame.pop(change.item, None)
            else:
                self._pending[change.item] = change.new
        if not self._pending:
            # At a start everything was pending, and an emptied dictionary keeps its size.
            self._pending = {}
            self._blame = {}

    def resync(self, applied: Mapping[I, V], accept: Callable[[I], bool] | None = None) -> int:
        """Set what is believed to exactly `applied`, for the items `accept` lets through.

        Return the number of items that were believed to be in another state: drift.
        """
        return sum(self._believe(item, applied.get(item)) for item in self._known(applied, accept))

    def resync_some(self, found: Mapping[I, V | None]) -> int:
        """Set what is believed of these items alone; None stands for absent. Return the drift."""
        return sum(self._believe(item, value) for item, value in found.items())

    def _believe(self, item: I, found: V | None) -> bool:
        """Set what is believed of one item. Return whether it was believed to be otherwise."""
        wanted = self.wanted(item)
        has_drifted = found != self._pending.get(item, wanted)
        if found != wanted:
            self._pending[item] = found
        elif item in self._pending:
            del self._pending[item]
            self._blame.pop(item, None)
        return has_drifted

    def _known(self, applied: Mapping[I, V], accept: Callable[[I], bool] | None) -> set[I]:
        known = self._owners.keys() | self._pending.keys()
        if accept is not None:
            known = {item for item in known if accept(item)}
        return known | applied.keys()


class _Claim(list[O]):
    """Several owners of one item, smallest first."""

    __slots__ = ()


def _first(claim: O | _Claim[O]) -> O:
    return claim[0] if isinstance(claim, _Claim) else claim


def _owner_order(owner: O | None) -> tuple[bool, O | None]:
    return (owner is not None, owner)
