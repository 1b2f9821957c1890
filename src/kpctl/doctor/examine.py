"""Examines this host and the proxy on it: reads both, and applies every check."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kpctl.doctor.checks import Case, examine
from kpctl.doctor.findings import Finding
from kpctl.doctor.host import read_host
from kpctl.snapshot.live import read_live
from kpctl.snapshot.types import Snapshot
from kubeproxy.errors import Busy, ProxyError, Unsupported
from kubeproxy.modes.registry import load_mode

_MOST_ROUTES = 200


def examine_here(socket: Path | None) -> list[Finding]:
    """Examine this host and the proxy that answers at the socket, if one does."""
    try:
        snapshot = read_live(socket)
    except ProxyError as error:
        return examine_host(None, str(error))
    return examine_host(snapshot)


def examine_host(snapshot: Snapshot | None, problem: str = "") -> list[Finding]:
    """Examine this host and a proxy on it. Without one, `problem` says why it does not answer."""

    async def look() -> Case:
        host = await read_host(_destinations(snapshot) if snapshot else ())
        unsupported = await _unsupported(snapshot) if snapshot else ""
        return Case(host, snapshot, problem, unsupported)

    return examine(asyncio.run(look()))


def _destinations(snapshot: Snapshot) -> list[str]:
    """Return some virtual addresses and endpoints: each network of them once or twice."""
    found: dict[str, None] = {}
    networks: set[str] = set()
    for _, plan in snapshot.plans():
        endpoints = [endpoint.address for endpoint in plan.reachable[:10]]
        for address in (*(f.address for f in plan.frontends if f.address), *endpoints):
            network = address.rpartition(":" if ":" in address else ".")[0]
            if network not in networks:
                networks.add(network)
                found[address] = None
    return list(found)[:_MOST_ROUTES]


async def _unsupported(snapshot: Snapshot) -> str:
    mode, settings = load_mode(snapshot.mode), snapshot.settings
    try:
        options = mode.options(settings.config, settings.extensions)
        await mode.check(tuple(snapshot.pipelines), options)
    except Unsupported as error:
        return str(error)
    except Busy:
        return ""  # a held lock says nothing about the host
    return ""
