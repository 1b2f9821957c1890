"""A proxy under test as a process: started on a node, observed from outside, stopped.

What it uses is read from /proc. Whether it has synced is read from its metrics page, which both
programs have under the same name. No duration is ever taken from that page.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kpctl.apiserver.build import built
from kpctl.bench.cluster import CLUSTER_CIDR, NODE
from kpctl.bench.records import OURS, UPSTREAM
from kpctl.places.network import PrivateNetwork
from kubeproxy.errors import ProxyError

PROGRAMS = (OURS, UPSTREAM)
_METRICS = ("127.0.0.1", 10249)
_SYNCED = re.compile(
    rb"^kubeproxy_sync_proxy_rules_last_timestamp_seconds\{[^}]*IPv4[^}]*\} ([0-9.e+]+)$", re.M
)
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", re.M)
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.25
_CALM_LOOKS = 5
_BUSY_SECONDS = 0.03
"""Processor time between two readings that counts as work. Less is housekeeping."""
_TICKS = os.sysconf("SC_CLK_TCK")


def programs_of_round(number: int) -> tuple[str, ...]:
    """Both programs, in an order that changes from round to round."""
    return PROGRAMS if number % 2 == 0 else PROGRAMS[::-1]


def command_of(program: str, folder: Path) -> tuple[str, ...]:
    """The program. What it has of its own, as its socket, goes into the folder."""
    if program == OURS:
        # Several run at once on one machine, so that the usual place would be taken.
        return (sys.executable, "-m", "kubeproxy", f"--inspection-socket={folder / 'socket'}")
    return (str(built("kube-proxy")),)


def proxy_flags(mode: str) -> tuple[str, ...]:
    """The flags of both programs besides the API server's. All else is default for both."""
    return (
        f"--proxy-mode={mode}",
        f"--hostname-override={NODE}",
        f"--cluster-cidr={CLUSTER_CIDR}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
        "--metrics-bind-address=127.0.0.1:10249",
        "--healthz-bind-address=127.0.0.1:10256",
        "--oom-score-adj=0",
    )


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a process has used so far, its finished children included."""

    cpu_seconds: float
    resident_mb: float
    peak_mb: float


class RunningProxy:
    """One started proxy."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        network: PrivateNetwork,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self.network = network
        self._log = log
        with log.open("wb") as output, network.inside():
            self.started_at = time.monotonic()
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def usage(self) -> Usage:
        self.require_alive()
        return usage_of(self._process.pid)

    def is_at_work(self, cpu_seconds_before: float) -> bool:
        """Has it used the processor since, or does a tool it started still run?

        A tool's processor time is only known when it has ended, so its mere existence counts.
        """
        is_busy = self.usage().cpu_seconds - cpu_seconds_before > _BUSY_SECONDS
        return is_busy or has_children(self._process.pid)

    def is_synced(self) -> bool:
        """Has it finished a sync of IPv4?"""
        self.require_alive()
        found = _SYNCED.search(self.metrics())
        return found is not None and float(found[1]) > 0

    def require_alive(self) -> None:
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise ProxyError(
                f"the proxy under test ended with code {self._process.returncode}: "
                + " / ".join(lines)
            )

    def wait(self, limit_seconds: float) -> None:
        """Wait until it has ended by itself."""
        self._process.wait(limit_seconds)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def metrics(self) -> bytes:
        """The metrics page; empty while it does not answer."""
        with self.network.inside():
            # Only making the socket depends on the namespace.
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with connection:
            connection.settimeout(5)
            try:
                connection.connect(_METRICS)
                connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: node\r\n\r\n")
                parts = []
                while part := connection.recv(1 << 16):
                    parts.append(part)
            except OSError:
                return b""
            return b"".join(parts)


async def until_at_rest(proxy: RunningProxy, limit_seconds: float) -> None:
    """Wait until the proxy has synced and does nothing more. Raises ProxyError at the limit."""
    deadline, calm = time.monotonic() + limit_seconds, 0
    while calm < _CALM_LOOKS:
        if time.monotonic() > deadline:
            raise ProxyError(f"it was still at work after {limit_seconds:g} s")
        before = proxy.usage().cpu_seconds
        await asyncio.sleep(_LOOK_SECONDS)
        is_calm = not proxy.is_at_work(before) and proxy.is_synced()
        calm = calm + 1 if is_calm else 0


def usage_of(pid: int) -> Usage:
    """What a process has used so far."""
    folder = Path(f"/proc/{pid}")
    # The command name may hold spaces; the fields after its closing bracket do not.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    status = (folder / "status").read_text()
    return Usage(ticks / _TICKS, _megabytes(status, "VmRSS"), _megabytes(status, "VmHWM"))


def private_mb(pid: int) -> float:
    """Memory that no other process shares."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return _megabytes(text, "Private_Clean") + _megabytes(text, "Private_Dirty")


def switches_of(pid: int) -> dict[int, int]:
    """By thread: how often it was given a processor and left it again."""
    found: dict[int, int] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end after it was listed.
        with contextlib.suppress(OSError):
            status = (task / "status").read_text()
            found[int(task.name)] = sum(map(int, _SWITCHES.findall(status)))
    return found


def has_children(pid: int) -> bool:
    """Does some thread of this process wait for another process?"""
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end after it was listed.
        with contextlib.suppress(OSError):
            if (task / "children").read_text().strip():
                return True
    return False


def _megabytes(status: str, field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.M)
    if found is None:
        raise ProxyError(f"the kernel does not show {field} of the proxy under test")
    return int(found[1]) / 1024
