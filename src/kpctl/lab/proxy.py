"""`kube-proxy` on the nodes of a lab: started, given objects, observed, stopped.

Every node runs the real program as a process of its own in the node's namespace, fed by one
directory of manifests that all of them watch. `settle` waits until each has synced after a given
time, as its own health port reports. Nothing global on the machine is changed: the size of the
connection tracking table and the process' OOM score are left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from kpctl.lab.namespaces import Namespaces
from kpctl.lab.pace import scaled
from kpctl.lab.sockets import bound_socket
from kpctl.lab.topology import POD_CIDR
from kubeproxy.errors import KernelError
from kubeproxy.facts.address import family_of
from kubeproxy.facts.ids import Family, Protocol

HEALTH_PORT = 10256
METRICS_PORT = 10249
START_SECONDS = 120.0
"""Until the first sync. Far more than any start takes; a proxy that ends is noticed at once. This
and the other limits are for an ordinary machine: `pace` stretches them on a slower one."""
STOP_SECONDS = 60.0
"""Even a killed process may wait seconds for the kernel, while namespaces are being removed."""

SETTLE_SECONDS = 60.0
_ASK_SECONDS = 20.0
_UDP_IDLE_MILLISECONDS = 250
_POLL_SECONDS = 0.01
_START_POLL_SECONDS = 0.05
_WAITING = "waiting until it ends"
"""What a proxy logs while another one runs."""
_SYNCED = re.compile(r'"[sS]yncProxyRules complete" ipFamily="(\w+)"')
"""Upstream spells it with a small letter in ipvs mode, and in that mode logs it from `--v=4` on."""
_LAST_SYNC = re.compile(
    r'^kubeproxy_sync_proxy_rules_last_timestamp_seconds\{ip_family="(\w+)"\} (\S+)$', re.MULTILINE
)
_FAILING = re.compile(r'^kubeproxy_health_check_endpoints\{state="failing"\} (\d+)$', re.MULTILINE)
BASE_FLAGS: Mapping[str, str] = {
    "cluster-cidr": ",".join(POD_CIDR[family] for family in Family),
    "iptables-min-sync-period": "0s",
    "healthz-bind-address": f"127.0.0.1:{HEALTH_PORT}",
    "metrics-bind-address": f"127.0.0.1:{METRICS_PORT}",
    "conntrack-max-per-core": "0",
    "oom-score-adj": "0",
    "v": "2",
}


class ProxyFailed(KernelError):
    """A proxy of the lab failed. The text ends with the last lines of its log."""


class Proxies:
    """One proxy per node, all with the same mode and flags."""

    def __init__(self, namespaces: Namespaces, directory: Path) -> None:
        self._namespaces = namespaces
        self._directory = directory
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._leaving: list[tuple[str, asyncio.subprocess.Process]] = []
        self.mode = ""
        self.modes: list[str] = []
        """All that have run here: a proxy keeps what it needs to remove what they have left."""
        self.flags: Mapping[str, str] = {}
        self.other_programs: dict[str, Callable[[str], Sequence[str]]] = {}
        """Modes of another program: the command line for a node, flags included."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self._namespaces.topology.nodes)

    @property
    def is_running(self) -> bool:
        """Have they been started? `settle` finds one that has ended since."""
        return bool(self._running)

    def write(self, name: str, manifests: Iterable[Mapping[str, object]]) -> None:
        """Replace one manifest file atomically, or remove it if there are no manifests."""
        items = list(manifests)
        document = {"apiVersion": "v1", "kind": "List", "items": items} if items else None
        self.write_document(name, document)

    def write_document(self, name: str, document: Mapping[str, object] | None) -> None:
        """Replace one manifest file atomically by this document, or remove it."""
        path = self.manifests / f"{name}.json"
        if document is None:
            path.unlink(missing_ok=True)
            return
        draft = self.manifests / f".{name}.draft"
        draft.write_bytes(msgspec.json.encode(document))
        draft.rename(path)

    async def start(self, mode: str, flags: Mapping[str, str]) -> None:
        """Start a proxy on every node and wait for the first sync. An empty flag is left out."""
        self._set_mode(mode, flags)
        began = time.time()
        for node in self.nodes:
            self._running[node] = await self._spawn(node)
        await self._wait(began, self._first_sync, START_SECONDS, _START_POLL_SECONDS)

    async def replace(self, mode: str, flags: Mapping[str, str]) -> None:
        """Start other proxies beside those that run, end these, and wait for the first sync.

        Of two on one node the second waits. A first one that carries connections stays for them.
        """
        waiting = {node: self.log(node).count(_WAITING) for node in self.nodes}
        leaving = self._running
        self._set_mode(mode, flags)
        self._running = {node: await self._spawn(node) for node in self.nodes}
        for node, before in waiting.items():
            await self._wait_for_waiting(node, before)
        self._leaving += leaving.items()
        began = time.time()
        for process in leaving.values():
            _send_signal(process, signal.SIGTERM)
        await self._wait(began, self._first_sync, START_SECONDS, _START_POLL_SECONDS)

    def _set_mode(self, mode: str, flags: Mapping[str, str]) -> None:
        self.mode, self.flags = mode, flags
        self.modes.append(mode)

    async def wait_for_leaving(self) -> None:
        """Wait until the proxies that were replaced have ended. Raises ProxyFailed."""
        leaving, self._leaving = self._leaving, []
        for node, process in leaving:
            if not await _wait_or_kill(process):
                raise self._failure(node, "did not end after it was replaced")

    async def _wait_for_waiting(self, node: str, before: int) -> None:
        deadline = time.monotonic() + scaled(START_SECONDS)
        while self.log(node).count(_WAITING) <= before:
            self._check_running(node)
            if time.monotonic() > deadline:
                raise self._failure(node, "did not wait for the one before")
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End every proxy and wait for it. Raises ProxyFailed for one that ignores the signal."""
        for _, process in self._leaving:
            _send_signal(process, signal.SIGKILL)
        ending, self._running = self._running, {}
        for process in ending.values():
            _send_signal(process, number)
        waits = (_wait_or_kill(process) for process in ending.values())
        stopped = await asyncio.gather(*waits)
        for node, is_stopped in zip(ending, stopped, strict=True):
            if not is_stopped:
                raise self._failure(node, f"did not stop after {number.name}")

    async def restart(self, number: signal.Signals) -> None:
        await self.stop(number)
        await self.start(self.mode, self.flags)

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Let every proxy stand still: what it has installed stays, and nothing repairs it."""
        for process in self._running.values():
            _send_signal(process, signal.SIGSTOP)
        try:
            async with asyncio.timeout(scaled(STOP_SECONDS)):
                while not all(map(_is_stopped, self._running.values())):
                    await asyncio.sleep(_POLL_SECONDS)
            yield
        finally:
            for process in self._running.values():
                _send_signal(process, signal.SIGCONT)

    async def clean_up(self) -> None:
        """Run the program with --cleanup on every node."""
        for node in self.nodes:
            process = await self._run(node, ["--cleanup"])
            if await process.wait() != 0:
                raise self._failure(node, "failed to clean up")

    async def settle(self, *, since: float) -> None:
        """Wait until every proxy has synced both families after `since` (wall-clock time)."""
        await self._wait(since, self.last_sync, SETTLE_SECONDS, _POLL_SECONDS)

    async def notice(self, failing: int) -> None:
        """Wait until so many endpoints fail the health checks of every proxy."""
        limit = scaled(SETTLE_SECONDS)
        deadline = time.monotonic() + limit
        for node in self.nodes:
            while (found := await self._failing(node)) != failing:
                self._check_running(node)
                if time.monotonic() > deadline:
                    what = f"finds {found} endpoints failing after {limit:.0f} s, not {failing}"
                    raise self._failure(node, what)
                await asyncio.sleep(_START_POLL_SECONDS)

    async def _failing(self, node: str) -> int:
        found = _FAILING.search(await self._ask(node, METRICS_PORT, "/metrics"))
        return int(found[1]) if found else 0

    async def last_sync(self, node: str) -> Mapping[Family, float]:
        """When this node's proxy last synced each family. Empty while it does not answer."""
        return parse_last_syncs(await self._ask(node, HEALTH_PORT, "/healthz"))

    async def _first_sync(self, node: str) -> Mapping[Family, float]:
        """The same from the metrics, which cost more to produce.

        The health port does not show whether there was a sync at all: it counts the start as an
        update, so that a proxy that never syncs becomes unhealthy. In its iptables mode upstream's
        metrics server ceases to answer where the kernel has no nfacct: its log is read.
        """
        if self.mode in self.other_programs:
            return dict.fromkeys(logged_syncs(self.log(node)), time.time())
        found = _LAST_SYNC.findall(await self._ask(node, METRICS_PORT, "/metrics"))
        return {Family(name): float(value) for name, value in found}

    async def _ask(self, node: str, port: int, path: str) -> str:
        try:
            async with asyncio.timeout(scaled(_ASK_SECONDS)):
                return await self.get(node, "127.0.0.1", port, path)
        except OSError:
            return ""

    async def _wait(
        self,
        since: float,
        ask: Callable[[str], Awaitable[Mapping[Family, float]]],
        timeout_seconds: float,
        poll_seconds: float,
    ) -> None:
        limit = scaled(timeout_seconds)
        deadline = time.monotonic() + limit
        for node in self.nodes:
            while not _is_after(await ask(node), since):
                self._check_running(node)
                if time.monotonic() > deadline:
                    raise self._failure(node, f"did not sync within {limit:.0f} s")
                await asyncio.sleep(poll_seconds)

    def _check_running(self, node: str) -> None:
        process = self._running.get(node)
        if process is None or process.returncode is not None:
            raise self._failure(node, "is not running")

    async def get(self, node: str, address: str, port: int, path: str) -> str:
        """The answer to an HTTP request made on a node, headers and all."""
        sock = bound_socket(self._namespaces, node, family_of(address), Protocol.TCP)
        return await _http_get(sock, address, port, path)

    def log(self, node: str, *, lines: int = 0) -> str:
        """The log of this node's proxy, or its last lines, without the flags logged at start."""
        path = self._log_path(node)
        text = path.read_text(errors="replace") if path.exists() else ""
        found = [line for line in text.splitlines() if "] FLAG: --" not in line]
        return "\n".join(found[-lines:])

    async def _spawn(self, node: str) -> asyncio.subprocess.Process:
        if other := self.other_programs.get(self.mode):
            return await self._execute(node, other(node))
        flags = {
            **BASE_FLAGS,
            "proxy-mode": self.mode,
            "hostname-override": node,
            "manifests": str(self.manifests),
            "inspection-socket": str(self.socket(node)),
            **_slow_flags(self.mode),
            **self.flags,
        }
        given = [f"--{name}={value}" for name, value in flags.items() if value]
        return await self._run(node, given)

    async def _run(self, node: str, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        return await self._execute(node, [sys.executable, "-m", "kubeproxy", *arguments])

    async def _execute(self, node: str, program: Sequence[str]) -> asyncio.subprocess.Process:
        with self._log_path(node).open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self._namespaces.command(node, program),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def privileges(self, node: str) -> str:
        """What the kernel shows about the process of this node's proxy."""
        return Path(f"/proc/{self._running[node].pid}/status").read_text()

    def socket(self, node: str) -> Path:
        """Where this node's proxy can be inspected."""
        return self._directory / f"{node}.sock"

    def _log_path(self, node: str) -> Path:
        return self._directory / f"{node}.log"

    def _failure(self, node: str, what: str) -> ProxyFailed:
        tail = self.log(node, lines=15)
        return ProxyFailed(f"kube-proxy on {node} {what}; its last lines:\n{tail}")


def _slow_flags(mode: str) -> Mapping[str, str]:
    """Flags of a mode whose defaults are too short for a slow machine."""
    if mode != "userspace":
        return {}
    # An endpoint that replies later than that finds the client's flow forgotten.
    return {"udp-timeout": f"{round(scaled(_UDP_IDLE_MILLISECONDS))}ms"}


def _send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _is_stopped(process: asyncio.subprocess.Process) -> bool:
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "T"


async def _wait_or_kill(process: asyncio.subprocess.Process) -> bool:
    """Wait for the end. Return False if it had to be forced."""
    try:
        async with asyncio.timeout(scaled(STOP_SECONDS)):
            await process.wait()
    except TimeoutError:
        _send_signal(process, signal.SIGKILL)
        await process.wait()
        return False
    return True


def _is_after(syncs: Mapping[Family, float], since: float) -> bool:
    return all(syncs.get(family, 0.0) >= since for family in Family)


def logged_syncs(text: str) -> set[Family]:
    """The families that upstream's proxy has synced, from its log."""
    return {Family(name) for name in _SYNCED.findall(text)}


class _FamilyHealth(msgspec.Struct, rename="camel"):
    last_updated: datetime


class _Health(msgspec.Struct):
    status: dict[str, _FamilyHealth] = {}


def parse_last_syncs(answer: str) -> Mapping[Family, float]:
    """When each family last synced, from an answer of the health port."""
    _, _, body = answer.partition("\r\n\r\n")
    try:
        health = msgspec.json.decode(body, type=_Health)
    except msgspec.DecodeError:
        return {}
    return {Family(name): each.last_updated.timestamp() for name, each in health.status.items()}


async def _http_get(sock: socket.socket, address: str, port: int, path: str) -> str:
    loop = asyncio.get_running_loop()
    host = f"[{address}]" if ":" in address else address
    try:
        await loop.sock_connect(sock, (address, port))
        request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        await loop.sock_sendall(sock, request.encode())
        received = []
        while chunk := await loop.sock_recv(sock, 65536):
            received.append(chunk)
        return b"".join(received).decode(errors="replace")
    finally:
        sock.close()
