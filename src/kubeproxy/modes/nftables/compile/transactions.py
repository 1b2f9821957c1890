"""Changes become bounded transactions, in an order that no packet can notice. Pure.

    1  foundations       table, sets, new class chains: nothing points there yet
    2  early elements    members of sets that rules only test (hairpin, node port addresses)
    3  scaffold          the chains every packet passes
    4  entries           new sets and chains of single services (affinity, source ranges) to which
                         dispatch will lead
    5  guards            source ranges of frontends that had none
    6  many new pools    as at a start: nothing leads there yet. Each transaction with dispatch
                         makes the kernel check all jumps of the table; these come without
    7  services          dispatch, pools, and the other chains of single services: all of one
                         Service in one transaction
    8  class chains      those that were there and get other rules: the pools they look up stand
    9  late elements     what step 2 would add, removed; refusals of frontends that have endpoints
                         now; slots and pools nothing wants any more
   10  removals          chains and sets that are not wanted any more

Every transaction is atomic. Step 7 never splits a Service, so a frontend moves from one class to
another together with its endpoints, and all ports of a new cluster IP appear together. The other
steps only add what is not used yet, replace a chain as a whole, or remove what is not used any
more.

Packets are not atomic. The kernel lets one that is under way finish with the rules it began with,
but each look-up sees the elements of its own moment. So between two look-ups of one packet a
transaction may take effect, and some things must not share one:

- a dispatch element and the chain it leads to, if the chain is new: for the packet it is empty
- a dispatch element that leaves a class, and the slots only that class draws: pick-3 was read
  before, slot 2 is looked up after. Such slots stay until step 9, for which the packets that may
  still draw them are waited for (`Transaction.after_readers`)
- a dispatch element and the source ranges of its frontend: the ranges are looked up first, so
  they must be there first
- a dispatch element and the end of a refusal, which is looked up last: a packet that was not
  translated would pass
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain

from kubeproxy.kernel.nftables.wire import Transaction
from kubeproxy.modes.base import AnyChange, Batch, Change, Owner, changes_of
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.structure import (
    ChainChange,
    ForeignChange,
    SetChange,
    StructureChange,
    TableChange,
    addition_batches,
    removal_batches,
)
from kubeproxy.modes.nftables.compile.units import ServiceChanges, split_pools, unit_batches
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    ChainKind,
    Element,
    ElementItem,
    Foreign,
    ForeignItem,
    Pool,
    PoolItem,
    SetItem,
    SetSpec,
    Table,
    TableItem,
)
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.rules.refused import drops

TRANSACTION_BYTES = 400_000
"""A target, because a Service is never split. The kernel holds its lock for 20 ms at this size."""


def compile_transactions(
    layout: FamilyLayout,
    changes: Sequence[AnyChange],
    *,
    limit: int = TRANSACTION_BYTES,
    refused: Container[Owner | None] = (),
) -> Iterator[Batch[Transaction]]:
    """All changes as transactions, to be executed in order.

    `refused` are the owners of whom the kernel refused something since the first of these
    transactions. What their dispatch still uses stays.
    """
    return chain.from_iterable(compile_steps(layout, changes, limit=limit, refused=refused))


def compile_steps(
    layout: FamilyLayout,
    changes: Sequence[AnyChange],
    *,
    limit: int = TRANSACTION_BYTES,
    refused: Container[Owner | None] = (),
) -> Iterator[Iterator[Batch[Transaction]]]:
    """The same by step. What was refused counts from the beginning of the next step."""
    steps = _Steps(changes)
    many = ServiceChanges(pools=steps.services.take_new_pools(layout, more_than=limit))
    yield addition_batches(layout, steps.foundations, limit)
    yield unit_batches(layout, steps.early, limit)
    yield addition_batches(layout, steps.scaffold, limit)
    yield addition_batches(layout, steps.entries, limit)
    yield unit_batches(layout, steps.guards, limit)
    yield unit_batches(layout, many, limit)
    # Nothing leads to a frontend whose source ranges or pools were refused.
    yield unit_batches(layout, steps.services.without(refused), limit)
    yield addition_batches(layout, steps.class_chains, limit)
    yield unit_batches(layout, steps.late.without(refused), limit, after_readers=True)
    removals = [removal for removal in steps.removals if removal.change.owner not in refused]
    yield removal_batches(layout, removals, limit)


class Ahead(Iterator[Batch[Transaction]]):
    """The batches of all steps, of which the next one can be compiled while one is committed.

    Only within a step: the next step may depend on what is refused.
    """

    def __init__(self, steps: Iterator[Iterator[Batch[Transaction]]]) -> None:
        self._steps = steps
        self._step: Iterator[Batch[Transaction]] = iter(())
        self._next: Batch[Transaction] | None = None

    def __next__(self) -> Batch[Transaction]:
        found, self._next = self._next or next(self._step, None), None
        while found is None:
            self._step = next(self._steps)
            found = next(self._step, None)
        return found

    def compile_next(self) -> None:
        """Compile one more batch of this step, if there is one."""
        self._next = self._next or next(self._step, None)


class _Steps:
    """The changes by step."""

    def __init__(self, changes: Sequence[AnyChange]) -> None:
        self.foundations: list[StructureChange] = []
        self.scaffold: list[StructureChange] = []
        self.entries: list[StructureChange] = []
        self.class_chains: list[StructureChange] = []
        self.removals: list[StructureChange] = []
        self._own: list[SetChange | ChainChange] = []
        by_type: dict[type, list[AnyChange]] = {}
        for change in changes:
            by_type.setdefault(type(change.item), []).append(change)
        self._sort_sets(by_type)
        self._sort_chains(by_type)
        self._split_own()
        elements = changes_of(by_type.get(ElementItem, ()), ElementItem, Element)
        shrinking, pools = split_pools(changes_of(by_type.get(PoolItem, ()), PoolItem, Pool))
        self.early, self.guards, self.late = ServiceChanges(), ServiceChanges(), ServiceChanges()
        self.late.pools += shrinking
        self.services = ServiceChanges(structure=self._own, pools=pools)
        self._leads = {c.item.key: c.new is not None for c in elements if c.item.set in _DISPATCH}
        """Frontends whose dispatch changes: does one lead there afterwards?"""
        for element in elements:
            self._step_of(element).elements.append(element)

    def _step_of(self, change: Change[ElementItem, Element]) -> ServiceChanges:
        name = change.item.set
        if name in _ONLY_TESTED:
            return self.late if change.new is None else self.early
        if name == names.FIREWALL_IPS and change.old is None:
            return self.guards
        if name in _AFTER_GUARD and None in (change.old, change.new):
            # Packets that a list of sources admits still find the way that they were led to.
            return self.guards if change.old is None else self.late
        if name in _REFUSALS and change.new is None and self._is_served(change):
            return self.late
        return self.services

    def _is_served(self, refusal: Change[ElementItem, Element]) -> bool:
        """Does dispatch lead to the frontend that is refused no more?

        A frontend that drops has endpoints on other nodes, so dispatch leads there already.
        """
        dropped = refusal.old is not None and drops(refusal.old.verdict)
        return self._leads.get(refusal.item.key, dropped)

    def _sort_sets(self, changes: Mapping[type, Sequence[AnyChange]]) -> None:
        for table in changes_of(changes.get(TableItem, ()), TableItem, Table):
            (self.removals if table.new is None else self.foundations).append(TableChange(table))
        for found in changes_of(changes.get(SetItem, ()), SetItem, SetSpec):
            if found.new is None:
                self.removals.append(SetChange(found))
            elif found.new.is_of_service:
                self._own.append(SetChange(found))
            else:
                self.foundations.append(SetChange(found))
        foreign = changes_of(changes.get(ForeignItem, ()), ForeignItem, Foreign)
        self.removals += map(ForeignChange, foreign)

    def _sort_chains(self, changes: Mapping[type, Sequence[AnyChange]]) -> None:
        for found in changes_of(changes.get(ChainItem, ()), ChainItem, Chain):
            if found.new is None:
                self.removals.append(ChainChange(found))
            elif found.new.kind.is_of_service:
                self._own.append(ChainChange(found))
            elif found.new.kind >= ChainKind.SCAFFOLD:
                self.scaffold.append(ChainChange(found))
            else:
                later = self.foundations if found.old is None else self.class_chains
                later.append(ChainChange(found))

    def _split_own(self) -> None:
        """Of services to which dispatch newly leads, put what is new into the entries."""
        led_to = {c.service for c in self._own if c.is_new and c.rank in _DISPATCHED}
        if led_to:
            self.entries += [c for c in self._own if c.is_new and c.service in led_to]
            self._own = [c for c in self._own if not (c.is_new and c.service in led_to)]


_ONLY_TESTED = frozenset((names.HAIRPIN, names.NODE_PORT_IPS))

_AFTER_GUARD = frozenset((names.ADMITTED_SERVICES, names.ADMITTED_NODE_PORTS))

_REFUSALS = frozenset((names.NO_ENDPOINT_SERVICES, names.NO_ENDPOINT_NODE_PORTS))

_DISPATCH = frozenset((names.SERVICE_IPS, names.SERVICE_NODE_PORTS))

_DISPATCHED = frozenset((ChainKind.SERVICE_POOL, ChainKind.SERVICE_ENTRY))
"""Kinds of chains of a service that elements lead to."""
