"""Looks for slots that nothing leads to, in pool maps that are too large for a round to list.

Why: such a map is read by key, and keys are known only of pools that dispatch leads to. What else
there is does no harm, because no packet looks it up: slots that an earlier run did not come to
remove, or that another process added. So listing may take its time, beside the rounds. What it
finds is reported like a change by another process: the round asks for these keys alone. While we
write, a listing may show what is gone by then or miss something; neither matters.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection

from kubeproxy.errors import KernelError
from kubeproxy.kernel.nftables.table import NftablesTable
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import DriftListener
from kubeproxy.modes.nftables import names
from kubeproxy.modes.nftables.compile import codec
from kubeproxy.modes.nftables.compile.units import pool_templates
from kubeproxy.modes.nftables.items import ElementItem
from kubeproxy.modes.nftables.names import FamilyLayout
from kubeproxy.modes.nftables.sinks.elements import (
    MOST_STRAYS,
    UNREADABLE,
    LargeMap,
    pool_elements,
)

logger = get_logger(__name__)

PAUSE_SECONDS = 5.0
"""How long a listing waits for the round that asked for it, and for the next one."""


class StraySearch:
    """One search at a time, for what the last read of the table has left open."""

    def __init__(self, layout: FamilyLayout) -> None:
        self._layout = layout
        self._maps: Collection[LargeMap] = ()
        self._requested = asyncio.Event()

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    def request(self, maps: Collection[LargeMap]) -> None:
        """Search these maps, or none. What was requested before is obsolete."""
        self._maps = maps
        if maps:
            self._requested.set()
        else:
            self._requested.clear()

    async def run(
        self,
        open_nftables: Callable[[int], NftablesTable],
        drifted: DriftListener,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """Search when it is requested, until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            await asyncio.sleep(pause_seconds)
            try:
                with contextlib.closing(open_nftables(self._layout.number)) as nftables:
                    await self._search(nftables, drifted)
            except (KernelError, OSError, *UNREADABLE) as error:
                # The next full read requests the next search.
                logger.v(2).info("Cannot look for slots that nothing leads to", err=str(error))

    async def _search(self, nftables: NftablesTable, drifted: DriftListener) -> None:
        for large in self._maps:
            found = await asyncio.to_thread(find_strays, nftables, self._layout, large)
            if found:
                drifted(f"slots of {large.name} that nothing leads to", found)
            if len(found) >= MOST_STRAYS:
                self._requested.set()


def find_strays(
    nftables: NftablesTable, layout: FamilyLayout, large: LargeMap
) -> list[ElementItem]:
    """The first elements of a map that are no slots of its known pools."""
    found: list[ElementItem] = []
    lists = nftables.stream_elements(names.TABLE_NAME, large.name)
    for key, data in pool_elements(lists, pool_templates(layout)[large.name]):
        slots = large.pools.get(key[:-4], 0) if data else 0
        # Read to the end also if there are many: the kernel takes no other request before.
        if len(found) < MOST_STRAYS and (not slots or codec.INDEX.unpack(key[-4:])[0] >= slots):
            found.append(ElementItem(large.name, key))
    return found
