"""Changes become bounded transactions, in an order that no packet can notice. Pure.

    1  foundations       table, sets, class chains: nothing points there yet
    2  early elements    members of sets that rules only test (hairpin, node port addresses)
    3  scaffold          the chains every packet passes
    4  services          dispatch, pools, and the chains of single services (affinity, source
                         ranges): all of one Service in one transaction
    5  late elements     what step 2 would add, removed
    6  removals          chains and sets that are let go, those that point elsewhere first

Every transaction is atomic. Step 4 never splits a Service, so a frontend moves from one class to
another together with its endpoints, and all ports of a new cluster IP appear together. The other
steps only add what is not used yet, replace a chain as a whole, or remove what is not used any
more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kubeproxy.modes.base import Batch, Change
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.structure import (
    is_scaffold_chain,
    removal_batches,
    structure_batches,
)
from kubeproxy.modes.nftables.compile.units import unit_batches
from kubeproxy.modes.nftables.items import ChainItem, ElementItem, PoolItem, SetItem
from kubeproxy.modes.nftables.names import FamilyLayout

TRANSACTION_BYTES = 400_000
"""Aimed at; one Service is never split. The kernel holds its lock for some 20 ms at this size."""


def compile_transactions(
    layout: FamilyLayout, changes: Sequence[Change], *, limit: int = TRANSACTION_BYTES
) -> Iterator[Batch]:
    """All changes as transactions, to be carried out in order."""
    steps = _Steps(changes)
    yield from structure_batches(layout, steps.foundations, limit)
    yield from unit_batches(layout, steps.early, limit)
    yield from structure_batches(layout, steps.scaffold, limit)
    yield from unit_batches(layout, steps.services, limit)
    yield from unit_batches(layout, steps.late, limit)
    yield from removal_batches(layout, steps.removals, limit)


class _Steps:
    """The changes by step, keeping their order."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self.foundations: list[Change] = []
        self.early: list[Change] = []
        self.scaffold: list[Change] = []
        self.services: list[Change] = []
        self.late: list[Change] = []
        self.removals: list[Change] = []
        for change in changes:
            self._step_of(change).append(change)

    def _step_of(self, change: Change) -> list[Change]:
        item = change.item
        if isinstance(item, ElementItem) and item.set in _ONLY_TESTED:
            return self.late if change.new is None else self.early
        if isinstance(item, (ElementItem, PoolItem)):
            return self.services
        if change.new is None:
            return self.removals
        if isinstance(item, (SetItem, ChainItem)) and "/" in item.name:
            return self.services  # the name of one service's structure holds the service's
        return self.scaffold if is_scaffold_chain(item) else self.foundations


_ONLY_TESTED = frozenset((names.HAIRPIN, names.NODE_PORT_IPS))
