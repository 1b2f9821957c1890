"""Watches what this mode depends on beside rules: the carrier process, and refused claims.

Promises: a carrier that exits is replaced; a port that has become free is reported as drift. Leaves
to others: the repair, which is the engine's.
"""

from __future__ import annotations

import asyncio

from kubeproxy.errors import KernelError
from kubeproxy.logs import get_logger
from kubeproxy.modes.base import DriftListener
from kubeproxy.modes.userspace.sinks.sockets import SocketSink

_RESTART_PAUSE_SECONDS = 1.0

logger = get_logger(__name__)


class Monitor:
    """Waits for the carrier to exit, and retries refused claims once per period meanwhile."""

    def __init__(self, sockets: SocketSink, period_seconds: float) -> None:
        self._sockets = sockets
        self._period_seconds = period_seconds

    async def run(self, drifted: DriftListener) -> None:
        """Run until cancelled; call `drifted` when a refused claim is held now."""
        while True:
            try:
                async with asyncio.timeout(self._period_seconds):
                    await self._sockets.supervisor.wait_exited()
            except TimeoutError:
                if self._sockets.retry_refused():
                    drifted("a port that another program had is free now")
            else:
                await self._restart_carrier()

    async def _restart_carrier(self) -> None:
        logger.error(None, "No carrier process runs, so no connection is carried; starting one")
        try:
            await self._sockets.ensure_carrier()
        except KernelError as error:
            logger.error(error, "The carrier process could not be started")
        # A carrier that exits again at once must not keep the processor busy.
        await asyncio.sleep(_RESTART_PAUSE_SECONDS)
