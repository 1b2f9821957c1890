"""Watches what this mode depends on: the carrier process, the jumps to our chains, refused claims.

Promises: a carrier that exits is replaced; flushed rules and a port that has become free are
reported as drift. Leaves to others: the repair, which is the engine's.
"""

from __future__ import annotations

import asyncio
import shlex

from kubeproxy.errors import KernelError
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import DriftListener
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.modes.userspace.scaffold import SCOPE
from kubeproxy.modes.userspace.sinks.sockets import SocketSink

_RESTART_PAUSE_SECONDS = 1.0

logger = get_logger(__name__)


class Monitor:
    """Waits for the carrier to exit, and checks rules and claims once per period meanwhile."""

    def __init__(self, sockets: SocketSink, tables: Xtables, period_seconds: float) -> None:
        self._sockets = sockets
        self._tables = tables
        self._period_seconds = period_seconds

    async def run(self, drifted: DriftListener) -> None:
        """Run until cancelled; call `drifted` when another process changes what is ours."""
        while True:
            try:
                async with asyncio.timeout(self._period_seconds):
                    await self._sockets.supervisor.wait_exited()
            except TimeoutError:
                await self._check(drifted)
            else:
                await self._restart_carrier()

    async def _check(self, drifted: DriftListener) -> None:
        if not await self._has_jumps():
            drifted("iptables was flushed: rules that lead to the portals are gone")
        elif self._sockets.retry_refused():
            drifted("a port that another program had is free now")

    async def _has_jumps(self) -> bool:
        """Are the jumps to our chains in place? One of each table stands for all.

        If the xtables lock cannot be taken, nothing is known, which is not reported as drift.
        """
        one_each = {jump.table: jump for jump, _ in SCOPE.jumps}
        try:
            for jump in one_each.values():
                rule = shlex.split(jump.rule)
                done = await self._tables.command("-C", jump.chain, "-t", jump.table, *rule)
                if not done.is_success:
                    return False
        except KernelError:
            return True
        return True

    async def _restart_carrier(self) -> None:
        logger.error(None, "The carrier process ended with its connections; starting a new one")
        try:
            await self._sockets.ensure_carrier()
        except KernelError as error:
            logger.error(error, "The carrier process could not be started")
        # A carrier that exits again at once must not keep the processor busy.
        await asyncio.sleep(_RESTART_PAUSE_SECONDS)
