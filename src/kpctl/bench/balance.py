"""Algorithms beside the default and beside other programs: what they cost, how evenly they spread.

    python -m kpctl.bench.balance [connections [services]]

Costs are those of one changed endpoint and of one connection, in each mode. ipvs is measured in a
user-mode kernel, with fewer connections, beside what ipvsadm sets up there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kpctl.bench import balance_guest
from kpctl.bench.balance_cost import costs
from kpctl.bench.balance_spread import haproxy, ours, upstream
from kpctl.bench.records import Size
from kpctl.places.uml import UserModeKernel, missing
from kubeproxy.errors import ProxyError

CONNECTIONS = 100_000
SERVICES = 10_000
_GUEST_SHARE = 10
"""Of the connections that are to spread, the user-mode kernel makes one in so many."""
_GUEST_SECONDS = 1800.0
_CHANGES, _CONNECTS = 40, 1500


async def _measure(connections: int, services: int) -> None:
    sizes = {
        "nftables": Size(services),
        "iptables": Size(max(services // 10, 10)),
        "userspace": Size(max(services // 100, 10)),
    }
    for mode, size in sizes.items():
        changes = _CHANGES if mode != "iptables" else _CHANGES // 4
        for cost in await costs(mode, size, changes=changes, connects=_CONNECTS):
            print(cost)
    for mode in sizes:
        async for spread in ours(mode, connections):
            print(spread)
    for mode in ("nftables", "iptables"):
        print(await upstream(mode, connections))
    for spread in haproxy(connections):
        print(spread)


def _measure_ipvs(connections: int) -> None:
    if reason := missing():
        print(f"ipvs was not measured: {reason}")
        return
    with UserModeKernel() as kernel:
        found = kernel.call(
            Path(balance_guest.__file__),
            "measure",
            connections // _GUEST_SHARE,
            _CHANGES,
            _CONNECTS,
            timeout_seconds=_GUEST_SECONDS,
        )
    assert isinstance(found, list)
    for line in found:
        print(line)


def main(argv: Sequence[str]) -> int:
    numbers = [int(text) for text in argv]
    connections = numbers[0] if numbers else CONNECTIONS
    print(f"load of the machine at the beginning: {os.getloadavg()[0]:.1f}")
    try:
        asyncio.run(_measure(connections, numbers[1] if len(numbers) > 1 else SERVICES))
        _measure_ipvs(connections)
    except ProxyError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
