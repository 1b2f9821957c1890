"""Runs inside the user-mode kernel: one proxy in ipvs mode, fed by an API server in this process.

What the kernel holds is asked of the kernel (/proc/net/ip_vs, ipset), often enough to say when it
was complete; neither program is asked anything. Answers are plain values: they go over a wire.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kubeproxy.bench.cluster import (
    SERVICE_PORT,
    SPARE,
    cluster_ip,
    endpoints_json,
    node_json,
    pod_ip,
    service_json,
    slice_json,
    slice_name,
)
from kubeproxy.bench.program import proxy_flags
from kubeproxy.kernel.ipset import Ipset
from kubeproxy.kernel.ipvs import Ipvs
from kubeproxy.testing.fake_api import FakeApi

NODE_IP = "192.0.2.10"
_CLUSTER_IP_SET = "KUBE-CLUSTER-IP"
_TABLE = Path("/proc/net/ip_vs")
_LOOK_SECONDS = 0.002
_PAUSE_SECONDS = 1.5
"""Between changes: longer than the minSyncPeriod of both programs."""


def measure(
    command: Sequence[str], services: int, endpoints: int, samples: int, limit_seconds: float
) -> dict[str, object]:
    """Cold start and single changes of one program; seconds, and None for what was cut off."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{NODE_IP}/32", "dev", "lo"], check=True)
    return asyncio.run(_measure(command, services, endpoints, samples, limit_seconds))


async def _measure(
    command: Sequence[str], services: int, endpoints: int, samples: int, limit_seconds: float
) -> dict[str, object]:
    api = FakeApi()
    api.store.create("nodes", "", node_json(NODE_IP))
    for index in range(services):
        api.store.create("services", "default", service_json(index))
        api.store.create("endpointslices", "default", slice_json(index, range(endpoints)))
    async with api.serving():
        kubeconfig = Path("/run/bench.kubeconfig")
        kubeconfig.write_text(api.kubeconfig())
        started = time.monotonic()
        process = _start(command, kubeconfig)
        try:
            lines = services * (1 + endpoints)
            cold = await _until(lambda: _is_complete(lines, services), limit_seconds)
            await asyncio.sleep(3)
            usage = _usage(process.pid)
            changes: list[float | None] = []
            while cold is not None and len(changes) < samples and None not in changes:
                index = services // 2 + len(changes)
                changes.append(await _replace(api, index, endpoints, limit_seconds))
        finally:
            process.kill()
            process.wait()
    return {
        "cold": None if cold is None else cold - started,
        "changes": changes,
        "usage": usage,
        "log": Path("/run/bench.log").read_text(errors="replace")[-2000:],
    }


def _start(command: Sequence[str], kubeconfig: Path) -> subprocess.Popen[bytes]:
    json = "--kube-api-content-type=application/json"
    flags = (f"--kubeconfig={kubeconfig}", json, *proxy_flags("ipvs"))
    with Path("/run/bench.log").open("wb") as log:
        return subprocess.Popen([*command, *flags], stdout=log, stderr=log)


async def _until(is_true: Callable[[], bool], limit_seconds: float) -> float | None:
    """The moment at which it was first found true; the API server works meanwhile.

    Looking may be dear: it gets a third of the time at most, for there is but one processor.
    """
    deadline = time.monotonic() + limit_seconds
    while (began := time.monotonic()) < deadline:
        if is_true():
            return time.monotonic()
        await asyncio.sleep(max(_LOOK_SECONDS, 2 * (time.monotonic() - began)))
    return None


def _is_complete(lines: int, services: int) -> bool:
    """Every virtual server with its real servers, and every cluster IP in its set?"""
    if not _TABLE.exists() or len(_TABLE.read_text().splitlines()) < lines + 3:
        return False
    with Ipset() as sets:
        found = sets.find(_CLUSTER_IP_SET)
    return found is not None and len(found.entries) >= services


async def _replace(api: FakeApi, index: int, endpoints: int, limit_seconds: float) -> float | None:
    """One endpoint gives way to another: seconds from the change to the new one being there."""
    await asyncio.sleep(_PAUSE_SECONDS)
    wanted, slots = pod_ip(index, SPARE), (SPARE, *range(1, endpoints))
    patch: dict[str, object] = {"endpoints": endpoints_json(index, slots)}
    with Ipvs() as table:

        def is_there() -> bool:
            found = table.destinations(socket.IPPROTO_TCP, cluster_ip(index), SERVICE_PORT)
            return any(destination.address == wanted for destination in found)

        changed = time.monotonic()
        await api.patch("endpointslices", "default", slice_name(index), patch)
        found = await _until(is_there, limit_seconds)
    return None if found is None else found - changed


def _usage(pid: int) -> dict[str, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "cpu_seconds": sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"),
        "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
    }
