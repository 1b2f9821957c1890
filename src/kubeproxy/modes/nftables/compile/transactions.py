"""Changes become bounded transactions, in an order that no packet can notice. Pure.

    1  foundations       table, sets, class chains: nothing points there yet
    2  early elements    members of sets that rules only test (hairpin, node port addresses)
    3  scaffold          the chains every packet passes
    4  services          dispatch, pools, and the chains of single services (affinity, source
                         ranges): all of one Service in one transaction
    5  late elements     what step 2 would add, removed
    6  removals          chains and sets that are not wanted any more, in the reverse order

Every transaction is atomic. Step 4 never splits a Service, so a frontend moves from one class to
another together with its endpoints, and all ports of a new cluster IP appear together. The other
steps only add what is not used yet, replace a chain as a whole, or remove what is not used any
more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubeproxy.kernel.nftables.wire import Transaction
from kubeproxy.modes.base import AnyChange, Batch, changes_of
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.structure import (
    ChainChange,
    SetChange,
    StructureChange,
    TableChange,
    addition_batches,
    removal_batches,
)
from kubeproxy.modes.nftables.compile.units import ServiceChanges, unit_batches
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    ChainKind,
    Element,
    ElementItem,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
    Table,
    TableItem,
)
from kubeproxy.modes.nftables.names import FamilyLayout

TRANSACTION_BYTES = 400_000
"""A target, because a Service is never split. The kernel holds its lock for 20 ms at this size."""


def compile_transactions(
    layout: FamilyLayout, changes: Sequence[AnyChange], *, limit: int = TRANSACTION_BYTES
) -> Iterator[Batch[Transaction]]:
    """All changes as transactions, to be executed in order."""
    steps = _Steps(changes)
    yield from addition_batches(layout, steps.foundations, limit)
    yield from unit_batches(layout, steps.early, limit)
    yield from addition_batches(layout, steps.scaffold, limit)
    yield from unit_batches(layout, steps.services, limit)
    yield from unit_batches(layout, steps.late, limit)
    yield from removal_batches(layout, steps.removals, limit)


class _Steps:
    """The changes by step."""

    def __init__(self, changes: Sequence[AnyChange]) -> None:
        self.foundations: list[StructureChange] = []
        self.scaffold: list[StructureChange] = []
        self.removals: list[StructureChange] = []
        self._own_sets: list[SetChange] = []
        self._own_chains: list[ChainChange] = []
        self._sort_structure(changes)
        elements = changes_of(changes, ElementItem, Element)
        only_tested = [c for c in elements if c.item.set in _ONLY_TESTED]
        self.early = ServiceChanges(elements=[c for c in only_tested if c.new is not None])
        self.late = ServiceChanges(elements=[c for c in only_tested if c.new is None])
        self.services = ServiceChanges(
            sets=self._own_sets,
            chains=self._own_chains,
            elements=[c for c in elements if c.item.set not in _ONLY_TESTED],
            pools=changes_of(changes, PoolItem, Pool),
        )

    def _sort_structure(self, changes: Sequence[AnyChange]) -> None:
        for table in changes_of(changes, TableItem, Table):
            (self.removals if table.new is None else self.foundations).append(TableChange(table))
        for found in changes_of(changes, SetItem, SetSpec):
            if found.new is None:
                self.removals.append(SetChange(found))
            elif found.new.is_of_service:
                self._own_sets.append(SetChange(found))
            else:
                self.foundations.append(SetChange(found))
        for chain in changes_of(changes, ChainItem, Chain):
            if chain.new is None:
                self.removals.append(ChainChange(chain))
            elif chain.new.kind.is_of_service:
                self._own_chains.append(ChainChange(chain))
            elif chain.new.kind < ChainKind.SCAFFOLD:
                self.foundations.append(ChainChange(chain))
            else:
                self.scaffold.append(ChainChange(chain))


_ONLY_TESTED = frozenset((names.HAIRPIN, names.NODE_PORT_IPS))
