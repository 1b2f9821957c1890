"""Runs inside the user-mode kernel: a day in ipvs mode."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
from tests.soak.day import Hour, Plan, live_through

from kubeproxy.errors import Unsupported
from kubeproxy.kernel.modules import load_module


def live(plan: Mapping[str, object]) -> object:
    """Called by the host."""
    return msgspec.to_builtins(asyncio.run(_live(msgspec.convert(plan, Plan))))


async def _live(plan: Plan) -> list[Hour]:
    if reason := await load_module("ip_vs"):
        raise Unsupported(f"IPVS cannot be loaded here: {reason}")
    return await live_through(plan, Path("/run"), lambda hour: print(hour, flush=True))
