"""The canary: an unused chain in each table, whose loss means that the table was flushed.

Why: firewall managers flush whole tables when they reload, and iptables has no notifications.
Promise: the chain in mangle is checked every interval, and a flush is reported once it is gone
from the other tables too, because a repair in the middle of a flush would be flushed as well.
Leaves to others: the repair.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from kubeproxy.errors import KernelError
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import DriftListener
from kubeproxy.modes.iptables.names import CANARY

logger = get_logger(__name__)

TABLES = ("mangle", "nat", "filter")
"""The first is the one that is checked every interval, as upstream does."""
_RESTORED = "".join(f"*{table}\n:{CANARY} - [0:0]\nCOMMIT\n" for table in TABLES)
_POLL_SECONDS = 0.1
_FLUSH_SECONDS = 5.0


class Chains(Protocol):
    """What the canary needs of iptables."""

    async def restore(self, text: str) -> None: ...

    async def has_chain(self, table: str, chain: str) -> bool: ...


Sleep = Callable[[float], Awaitable[None]]


async def set_canary(chains: Chains) -> None:
    """Create the canary chain in every table, in one call, unless the first table has it.

    Where a proxy before us left it there, it did so in the others too; and if one lacks it, a flush
    is merely reported without waiting for that table.
    """
    if not await chains.has_chain(TABLES[0], CANARY):
        await chains.restore(_RESTORED)


class CanaryMonitor:
    """Watches the tables of one family; `sleep` is an argument so that tests need not wait."""

    def __init__(self, chains: Chains, interval_seconds: float, sleep: Sleep) -> None:
        self._chains = chains
        self._interval_seconds = interval_seconds
        self._sleep = sleep

    async def run(self, drifted: DriftListener) -> None:
        """Until cancelled: set the canary, wait for its loss, report it, start over."""
        while True:
            await self._set()
            await self._wait_for_loss()
            drifted(await self._wait_for_end_of_flush())

    async def _set(self) -> None:
        """Set the canary, and retry after the interval until that succeeds."""
        while True:
            try:
                await set_canary(self._chains)
            except KernelError as error:
                logger.error(error, "Could not set up iptables canary", chain=CANARY)
                await self._sleep(self._interval_seconds)
            else:
                return

    async def _wait_for_loss(self) -> None:
        while True:
            await self._sleep(self._interval_seconds)
            if not await self._is_alive(TABLES[0]):
                return

    async def _is_alive(self, table: str) -> bool:
        """Is the canary in this table? While that cannot be found out, it is assumed to be.

        The lock may be held by another program, or the tool be missing while it is upgraded.
        """
        try:
            return await self._chains.has_chain(table, CANARY)
        except KernelError:
            return True

    async def _wait_for_end_of_flush(self) -> str:
        """Wait until the other tables are flushed too. Return the description of what happened."""
        waited = 0.0
        while any([await self._is_alive(table) for table in TABLES[1:]]):
            if waited >= _FLUSH_SECONDS:
                return "Inconsistent iptables state detected: only some tables were flushed"
            await self._sleep(_POLL_SECONDS)
            waited += _POLL_SECONDS
        return f"iptables was flushed: chain {CANARY} is gone from all tables"
