"""Runs inside the user-mode kernel: costs and spread of the algorithms in ipvs mode.

Times mean something only beside each other there: system calls cost many times what they do
elsewhere.
"""

from __future__ import annotations

import asyncio
import shutil

from kpctl.bench.balance_cost import costs
from kpctl.bench.balance_spread import ipvsadm, ours
from kpctl.bench.records import Size
from kubeproxy.modes.ipvs.check import open_ipvs


def measure(connections: int, changes: int, connects: int) -> object:
    """All figures, as sentences. Called by the host."""
    return asyncio.run(_measure(connections, changes, connects))


async def _measure(connections: int, changes: int, connects: int) -> list[str]:
    (await open_ipvs()).close()  # loads the module
    found = await costs("ipvs", Size(100), changes=changes, connects=connects)
    spreads = [spread async for spread in ours("ipvs", connections)]
    if shutil.which("ipvsadm") is None:
        return [*map(str, (*found, *spreads)), "ipvsadm was not measured: it is not installed"]
    return [str(figure) for figure in (*found, *spreads, *ipvsadm(connections))]
