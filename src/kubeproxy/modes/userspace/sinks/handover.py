"""The last task of a carrier whose proxy is replaced: serve until the successor does, then drain.

Rules lead new connections here until the successor has removed or replaced them, and what is open
then goes on until it ends. Promise: it ends by itself, unless a peer keeps a connection open; how
long that may take is decided by what asked the process to end: the kubelet and systemd kill it
after a while. Leaves to others: when to begin.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from kubeproxy.errors import KernelError
from kubeproxy.modes.netfilter.sinks.xtables import Tables
from kubeproxy.modes.userspace.names import CHAINS
from kubeproxy.modes.userspace.sinks.sockets import SocketSink

PAUSE_SECONDS = 0.5
_PORT = re.compile(r"--to-(?:ports |destination \S+:)(\d+)$", re.MULTILINE)


class HandOver:
    """Waits for the end of what one family carries."""

    def __init__(
        self,
        sockets: SocketSink,
        tables: Tables,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sockets = sockets
        self._tables = tables
        self._sleep = sleep

    async def run(self) -> None:
        """Return when no rule leads here and no connection is open, or the carrier has ended."""
        self._sockets.release_claims()
        while await self._is_led_to():
            await self._sleep(PAUSE_SECONDS)
        while await self._is_carrying():
            await self._sleep(PAUSE_SECONDS)

    async def _is_led_to(self) -> bool:
        try:
            saved = await self._tables.save("nat")
        except KernelError:
            return True
        return bool(redirected_ports(saved) & self._sockets.bound_ports())

    async def _is_carrying(self) -> bool:
        try:
            carried = await self._sockets.carried(0)
        except KernelError:
            return False  # the carrier is gone, and its connections with it
        return any(count.open for count in carried.counts)


def redirected_ports(saved: str) -> frozenset[int]:
    """The ports to which the portals of a saved nat table lead. Pure."""
    portals = tuple(f"-A {chain} " for chain in CHAINS["nat"])
    lines = (line for line in saved.splitlines() if line.startswith(portals))
    return frozenset(int(found[1]) for line in lines if (found := _PORT.search(line)))
