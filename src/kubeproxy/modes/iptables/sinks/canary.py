"""The canary: a chain in each table that nobody needs, so its loss tells of a flush.

Firewall managers flush whole tables when they reload. The chain in mangle is looked at every
interval; once it is gone from the other tables too, the flush is over and repair makes sense.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from kubeproxy.errors import Busy, KernelError
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import DriftListener
from kubeproxy.modes.iptables.names import CANARY

logger = get_logger(__name__)

TABLES = ("mangle", "nat", "filter")
_POLL_SECONDS = 0.1
_FLUSH_SECONDS = 5.0


class Chains(Protocol):
    """What the canary needs of iptables."""

    async def ensure_chain(self, table: str, chain: str) -> None: ...

    async def has_chain(self, table: str, chain: str) -> bool: ...


Sleep = Callable[[float], Awaitable[None]]


async def set_canary(chains: Chains) -> None:
    """Make the canary chain in every table that has none."""
    for table in TABLES:
        await chains.ensure_chain(table, CANARY)


class CanaryMonitor:
    """Watches one family; `sleep` is an argument so that tests need not wait."""

    def __init__(self, chains: Chains, interval_seconds: float, sleep: Sleep) -> None:
        self._chains = chains
        self._interval_seconds = interval_seconds
        self._sleep = sleep

    async def run(self, drifted: DriftListener) -> None:
        """Until cancelled: set the canary, wait for its loss, tell, start over."""
        while True:
            await self._set()
            await self._lost()
            drifted(await self._flush_over())

    async def _set(self) -> None:
        while True:
            try:
                await set_canary(self._chains)
            except KernelError as error:
                logger.error(error, "Could not set up iptables canary", chain=CANARY)
                await self._sleep(self._interval_seconds)
            else:
                return

    async def _lost(self) -> None:
        while True:
            await self._sleep(self._interval_seconds)
            if not await self._is_alive(TABLES[0]):
                return

    async def _is_alive(self, table: str) -> bool:
        """A lock that cannot be had says nothing about the chain: it counts as still there."""
        try:
            return await self._chains.has_chain(table, CANARY)
        except Busy:
            return True

    async def _flush_over(self) -> str:
        """Wait until the other tables are flushed too; what to say about it."""
        waited = 0.0
        while any([await self._is_alive(table) for table in TABLES[1:]]):
            if waited >= _FLUSH_SECONDS:
                return "Inconsistent iptables state detected: only some tables were flushed"
            await self._sleep(_POLL_SECONDS)
            waited += _POLL_SECONDS
        return f"iptables was flushed: chain {CANARY} is gone from all tables"
