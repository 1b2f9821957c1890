"""Runs inside the user-mode kernel: what is checked and prepared before the mode starts."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.objects_text import service_text, slice_text

from kpctl.look.apply import apply_once
from kpctl.look.offline import OfflineRequest, read_input
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.ipvs.wire import Service
from kubeproxy.modes.base import AnyMode, Running
from kubeproxy.modes.ipvs.check import check, open_ipvs
from kubeproxy.modes.ipvs.cleanup import cleanup
from kubeproxy.modes.ipvs.options import DEFAULT_SCHEDULER, Options
from kubeproxy.modes.registry import load_mode
from kubeproxy.modes.traces import find_traces
from kubeproxy.sync.clock import SystemClock

ONLY_IPTABLES = ("KUBE-SVC-", "KUBE-SEP-", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-CANARY")

_INTERRUPTS = Path("/proc/interrupts")

SERVICE = service_text("10.96.0.10") + slice_text("10.244.1.5")


def timer_interrupts(seconds: float) -> object:
    """How many there are while nothing happens."""
    before = _timer_interrupts()
    time.sleep(seconds)
    return _timer_interrupts() - before


def _timer_interrupts() -> int:
    (line,) = (each for each in _INTERRUPTS.read_text().splitlines() if each.endswith("timer"))
    return int(line.split()[1])


def check_scheduler(scheduler: str) -> object:
    """Whether the mode can run with this scheduler, and what the probe left behind."""
    return asyncio.run(_check_scheduler(scheduler))


async def _check_scheduler(scheduler: str) -> list[object]:
    problem = ""
    try:
        await check(tuple(Family), Options(scheduler=scheduler or DEFAULT_SCHEDULER))
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


def switch_from_iptables() -> object:
    """The program runs once in each mode; what of iptables mode is left, and is ipvs mode there."""
    return asyncio.run(_switch_from_iptables())


async def _switch_from_iptables() -> list[object]:
    files = Path(tempfile.mkdtemp()) / "web.yaml"
    files.write_text(SERVICE)
    request = OfflineRequest(files=(files,), node="worker-a")
    before = await _sync(request, "iptables")
    after = await _sync(request, "ipvs")
    again = await _sync(request, "ipvs")
    return [
        any(word in before for word in ONLY_IPTABLES),
        [word for word in ONLY_IPTABLES if word in after],
        "KUBE-IPVS-FILTER" in after,
        after == again,
    ]


async def _retire_others(request: OfflineRequest, mode: AnyMode) -> None:
    """Remove what other modes have left, as the daemon does after its first sync."""
    settings = read_input(request).settings
    options = mode.options(settings.config, await mode.resolve(settings.extensions))
    backends = [mode.create(family, options) for family in Family]
    for backend in backends:
        await backend.probe()
        for sink in backend.kernel_sinks:
            await sink.read()
    running = Running(mode.name, tuple(backends))
    for name in find_traces(running):
        assert (await load_mode(name).retire(running)).problems == ()


async def _sync(request: OfflineRequest, mode: str) -> str:
    loaded = load_mode(mode)
    await apply_once(request, loaded, SystemClock())
    await _retire_others(request, loaded)
    saved = subprocess.run(["iptables-save"], check=True, capture_output=True, text=True).stdout
    return "".join(line for line in saved.splitlines(keepends=True) if not line.startswith("#"))
