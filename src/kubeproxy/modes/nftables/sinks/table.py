"""Executes transactions, and knows what to do about a table that resists.

Promise: what another process puts into our table never ends the program, nor makes it repair the
same thing for ever: what cannot be read or mended is replaced with the whole table, once. Ours is
recognised by the table's name alone: no other program may write there. Leaves to others: the order
of transactions (`compile`), and what there is (`reading`, `elements`).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from kubeproxy.errors import Busy, Drifted, Rejected
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables, NftablesTable
from kubeproxy.kernel.nftables.wire import Transaction
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import SCAFFOLD, AnyChange, Batch, Change, Owner
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile.refusals import describe_refusal
from kubeproxy.modes.nftables.compile.transactions import Ahead, compile_steps
from kubeproxy.modes.nftables.items import (
    TABLE,
    ChainItem,
    ElementItem,
    ForeignItem,
    Item,
    PoolItem,
    SetItem,
    Table,
    TableItem,
    Value,
)
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.sinks.elements import (
    UNREADABLE,
    LargeMap,
    find_elements,
    find_pools,
)
from kubeproxy.modes.nftables.sinks.reading import find_table, read_table
from kubeproxy.modes.nftables.sinks.strays import StraySearch

logger = get_logger(__name__)

_BUSY = frozenset((errno.EAGAIN, errno.EINTR, errno.ENOBUFS))
_CONFLICTS = frozenset((errno.EBUSY, errno.EEXIST, errno.ENOENT, errno.ELOOP, errno.EMLINK))
"""Refusals that are due to what is in the table already."""

_LARGE_BYTES = 100_000

_POOLS_AT_ONCE = 64
"""How many pools of a large map are read before other tasks get their turn: a few milliseconds."""

_READERS_SECONDS = 0.1
"""The kernel usually says after some 10 ms that all are done, and no packet takes this long."""

OpenNftables = Callable[[int], NftablesTable]


class TableSink:
    """The table of one family."""

    name = "nftables"
    item_types: tuple[type, ...] = (
        TableItem,
        SetItem,
        ChainItem,
        ElementItem,
        PoolItem,
        ForeignItem,
    )
    is_transactional = True

    def __init__(self, layout: FamilyLayout, open_nftables: OpenNftables = Nftables) -> None:
        self._layout = layout
        self._open_nftables = open_nftables
        self._nftables: NftablesTable | None = None
        self._refused: set[Owner | None] = set()
        """Owners of whom something was refused since changes of theirs were last compiled."""
        self.strays = StraySearch(layout)
        self._may_have_readers = False
        """May packets be under way that have read what a transaction has replaced since?"""
        self._ahead = Ahead(iter(()))
        self._conflict = ""
        self._is_resisting = False
        self._was_replaced = False

    @property
    def nftables(self) -> NftablesTable:
        """Opened on first use, in the namespace current then."""
        if self._nftables is None:
            self._nftables = self._open_nftables(self._layout.number)
        return self._nftables

    def close(self) -> None:
        if self._nftables is not None:
            self._nftables.close()
            self._nftables = None

    async def read(self) -> Mapping[Item, Value]:
        """Everything in our table. Slow for a big one, so not on the event loop's thread."""
        if self._is_resisting:
            return self._replace(f"the same was refused twice: {self._conflict}")
        try:
            found = await asyncio.to_thread(read_table, self.nftables, self._layout)
            open_maps = [large for large in found.large if not await self._ask(large, found.items)]
        except UNREADABLE as error:
            return self._replace(f"it cannot be read: {error!r}")
        self._was_replaced = False
        self.strays.request(open_maps)
        return found.items

    async def _ask(self, large: LargeMap, items: dict[Item, Value]) -> bool:
        """Read a large map by key. Return whether that is certain to be all there is.

        Each call takes microseconds, so this is done here. In a thread of its own it would have to
        wait for its turn after every call.
        """
        pools = list(large.pools.items())
        slots = 0
        for start in range(0, len(pools), _POOLS_AT_ONCE):
            part = dict(pools[start : start + _POOLS_AT_ONCE])
            found = find_pools(self.nftables, self._layout, large.name, part)
            items.update(found.items)
            slots += found.elements
            await asyncio.sleep(0)
        return slots == large.count

    async def read_some(
        self, elements: Collection[ElementItem]
    ) -> Mapping[Item, Value | None] | None:
        """What there is of these elements, or None if the whole table must be read."""
        if self._is_resisting:
            return None
        try:
            return await asyncio.to_thread(find_elements, self.nftables, self._layout, elements)
        except UNREADABLE:
            return None

    def _replace(self, reason: str) -> Mapping[Item, Value]:
        """Report the table as one that must be replaced, but not twice in a row."""
        if self._was_replaced:
            raise Rejected(f"table {names.TABLE_NAME} resists although it was replaced: {reason}")
        logger.error(reason, "Replacing the nftables table", ipFamily=self._layout.family.value)
        self._was_replaced, self._is_resisting, self._conflict = True, False, ""
        return {TABLE: Table(is_usable=False)} if find_table(self.nftables) else {}

    def compile(self, changes: Sequence[Change[Item, Value]]) -> Iterator[Batch[Transaction]]:
        self._refused.difference_update(change.owner for change in changes)
        self._ahead = Ahead(compile_steps(self._layout, changes, refused=self._refused))
        return self._ahead

    async def apply(self, batch: Batch[Transaction]) -> None:
        """Commit one transaction: all of it or nothing."""
        transaction = batch.payload
        if transaction.after_readers and self._may_have_readers:
            await self._wait_for_readers()
        refusals = await self._commit(transaction)
        if refusals:
            self._refused.update(change.owner for change in batch.changes)
            self._raise(refusals[0], transaction, batch.changes)
        self._may_have_readers = self._may_have_readers or not transaction.after_readers

    async def _commit(self, transaction: Transaction) -> tuple[nft.Refusal, ...]:
        """Commit, and compile the next transaction while the kernel works on a large one.

        That takes it some 20 ms, in which other tasks get their turn, too. A small one takes less
        than a thread takes to begin.
        """
        if transaction.size < _LARGE_BYTES:
            return self.nftables.commit(transaction)
        committing = asyncio.create_task(asyncio.to_thread(self.nftables.commit, transaction))
        await asyncio.sleep(0)
        try:
            self._ahead.compile_next()
        finally:
            refusals = await committing
        return refusals

    async def _wait_for_readers(self) -> None:
        """Let packets under way finish, without making later changes wait for a busy kernel."""
        waiting = asyncio.create_task(asyncio.to_thread(self.nftables.wait_for_readers))
        await asyncio.wait((waiting,), timeout=_READERS_SECONDS)
        self._may_have_readers = False

    def _raise(
        self, refusal: nft.Refusal, transaction: Transaction, changes: Sequence[AnyChange]
    ) -> None:
        text = f"nftables: {describe_refusal(refusal, transaction, changes)}"
        if refusal.errno in _BUSY:
            raise Busy(text, errno=refusal.errno)
        if refusal.errno == errno.ENOENT and not find_table(self.nftables):
            raise Drifted(f"table {names.TABLE_NAME} has disappeared", errno=refusal.errno)
        if refusal.errno in _CONFLICTS and {change.owner for change in changes} == {SCAFFOLD}:
            # Without the scaffold nothing works, so what is in its way must go.
            self._is_resisting = self._conflict == text
            self._conflict = text
        raise Rejected(text, errno=refusal.errno)
