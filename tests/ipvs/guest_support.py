"""Runs inside the user-mode kernel: what is checked and prepared before the mode starts."""

from __future__ import annotations

import asyncio
import subprocess

from kubeproxy.backends.base import ModeOptions
from kubeproxy.backends.ipvs.cleanup import cleanup
from kubeproxy.backends.ipvs.support import check, open_ipvs
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink.ipvs import Service


def check_scheduler(scheduler: str) -> object:
    """Whether the mode can run with this scheduler, and what the probe left behind."""
    return asyncio.run(_check_scheduler(scheduler))


async def _check_scheduler(scheduler: str) -> list[object]:
    problem = ""
    try:
        await check(tuple(Family), ModeOptions(ipvs_scheduler=scheduler))
    except ProxyError as error:
        problem = str(error)
    with await open_ipvs() as table:
        return [problem, len(table.services())]


def clean_foreign() -> object:
    """Clean-up on a host that never ran the mode, with other software's things on it."""
    return asyncio.run(_clean_foreign())


async def _clean_foreign() -> list[object]:
    with await open_ipvs() as table:
        table.create(Service(6, "172.16.0.1", 80, "wrr", 0, 0))
        for words in ("iptables -N KUBE-SERVICES -t nat", "ipset create UNRELATED hash:ip"):
            subprocess.run(words.split(), check=True, capture_output=True)
        problems = await cleanup()
        chains = subprocess.run(["iptables-save"], check=True, capture_output=True, text=True)
        return [list(problems), len(table.services()), "KUBE-SERVICES" in chains.stdout]
