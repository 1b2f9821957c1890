"""The machine that a benchmark ran on: what a reader of its figures must know."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kpctl.bench.records import UPSTREAM
from kubeproxy.version import KUBERNETES_VERSION, PACKAGE_VERSION

_LOOK_SECONDS = 0.5
_IDLE = 0.8


def describe_machine() -> Mapping[str, str]:
    return {
        "processor": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{_memory_gb():.0f} GB",
        "kernel": platform.release(),
        "ours": PACKAGE_VERSION,
        "Python": platform.python_version(),
        UPSTREAM: KUBERNETES_VERSION,
        "iptables": _first_line(["iptables-legacy", "--version"]),
        "nft": _first_line(["nft", "--version"]),
    }


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def revision() -> str:
    """The revision of this program, and whether it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    return _first_line([*git, "describe", "--always", "--dirty", "--exclude=*"]) or "unknown"


def _first_line(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return (done.stdout.strip().splitlines() or [""])[0]


def wait_until_idle(limit_seconds: float) -> bool:
    """Wait until the machine has nothing to do. Return False if the limit passes first.

    The kernel takes a namespace with a hundred thousand rules down long after its owner has ended,
    on the processors that the next run needs.
    """
    deadline = time.monotonic() + limit_seconds
    before = idle_and_total()
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        after = idle_and_total()
        if (after[0] - before[0]) >= _IDLE * (after[1] - before[1]):
            return True
        before = after
    return False


def idle_and_total() -> tuple[int, int]:
    """Idle ticks and all ticks of the processors since the machine started."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = [int(field) for field in fields]
    return ticks[3] + ticks[4], sum(ticks)
