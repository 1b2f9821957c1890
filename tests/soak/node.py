"""One proxy on a node of its own, and what happens to a node in an hour besides Services.

Whether a change has taken effect is found out by connecting: a Service has one endpoint, on the
node, at one of two ports, and what answers there says which. That is the same in every mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import msgspec
from tests.support.waiting import Pauses

from kpctl.apiserver.small import SmallApiServer
from kpctl.apiserver.store import Json
from kpctl.bench.cluster import NODE, node_json
from kpctl.bench.program import RunningProxy, proxy_flags
from kpctl.bench.world import ip
from kpctl.lab.pace import scaled
from kpctl.places.network import PrivateNetwork
from kpctl.snapshot.client import Client
from kubeproxy.inspection.types import Status

ADDRESS = "172.31.0.10"
PROBE_ADDRESS = "10.96.0.250"
PROBE_PORTS = (9001, 9002)
_CONNECT_SECONDS = 1.0
_PAGES = (
    (10256, "/healthz"),
    (10256, "/livez"),
    (10249, "/metrics"),
    (10249, "/proxyMode"),
    (10249, "/configz"),
    (10249, "/nothing"),
)
_IPTABLES = ("iptables", "-w", "-t", "nat", "-F")
_EDITS = {
    "nftables": ("nft", "delete", "table", "ip", "kube-proxy"),
    "iptables": (*_IPTABLES, "KUBE-SERVICES"),
    "ipvs": (*_IPTABLES, "KUBE-SERVICES"),
    "userspace": (*_IPTABLES, "KUBE-PORTALS-HOST"),
}
"""What another program does to our rules: the proxy has to notice, to read and to repair."""
_SYNC_PERIODS = ("--iptables-sync-period=10s", "--ipvs-sync-period=10s")
"""Modes that nothing notifies of edits read the kernel as often: more often than once per hour."""


class Usage(msgspec.Struct, frozen=True):
    """What the proxy and its processes use at one moment."""

    resident_mb: float
    descriptors: int
    threads: int


class Node:
    """A network namespace with one running proxy."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.mode = mode
        self.api = SmallApiServer()
        self.network = PrivateNetwork()
        self.log = folder / f"{mode}.log"
        self._socket = folder / f"{mode}.sock"
        self._kubeconfig = folder / f"{mode}.kubeconfig"
        self._probed = 0
        self._proxy: RunningProxy | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        """Start the proxy. The objects that exist before are part of its start."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self.network.close)
            with self.network.inside():
                ip("link add up0 type veth peer name up1", "link set up0 up", "link set up1 up")
                ip(f"address add {ADDRESS}/24 dev up0", "route add default dev up0")
                await stack.enter_async_context(self.api.serving())
                for number, port in enumerate(PROBE_PORTS):
                    await stack.enter_async_context(await _answering(b"%d" % number, port))
            self._kubeconfig.write_text(self.api.kubeconfig())
            await self.api.create("nodes", "", node_json(ADDRESS))
            await self.api.create("services", "probe", _probe_service())
            await self.api.create("endpointslices", "probe", _probe_slice(PROBE_PORTS[0]))
            self._proxy = RunningProxy(
                self._command(), network=self.network, environment={}, log=self.log
            )
            stack.callback(self._proxy.stop)
            yield self

    def _command(self) -> Sequence[str]:
        return (
            *(sys.executable, "-m", "kubeproxy", f"--kubeconfig={self._kubeconfig}"),
            *(f"--inspection-socket={self._socket}", *_SYNC_PERIODS, *proxy_flags(self.mode)),
        )

    @property
    def proxy(self) -> RunningProxy:
        assert self._proxy is not None
        return self._proxy

    def end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    # --- what it does ---

    async def probe(self) -> float:
        """Move the endpoint of the probe. Return the seconds until connections go there."""
        self._probed = 1 - self._probed
        port = PROBE_PORTS[self._probed]
        began = time.monotonic()
        await self.api.update("endpointslices", "probe", "probe", _probe_slice(port))
        await self.answers()
        return time.monotonic() - began

    async def answers(self) -> None:
        """Wait until connections go where the probe's endpoint is."""
        pauses = Pauses(self.end_of_log)
        while await self._answer() != b"%d" % self._probed:
            self.proxy.require_alive()
            await asyncio.sleep(pauses.next())

    async def _answer(self) -> bytes:
        try:
            async with asyncio.timeout(scaled(_CONNECT_SECONDS)):
                return await self._exchange(PROBE_ADDRESS, 80, b"")
        except (OSError, TimeoutError):
            return b""

    async def _exchange(self, address: str, port: int, request: bytes, *, most: int = 0) -> bytes:
        loop = asyncio.get_running_loop()
        with self.network.inside():
            # Only making the socket depends on the namespace.
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with connection:
            connection.setblocking(False)
            await loop.sock_connect(connection, (address, port))
            if request:
                await loop.sock_sendall(connection, request)
            parts = b""
            while part := await loop.sock_recv(connection, 1 << 16):
                parts += part
                if most and len(parts) >= most:
                    break
            return parts

    async def page(self, port: int, path: str) -> bytes:
        """The answer of one of its servers, with its head."""
        request = f"GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
        return await self._exchange("127.0.0.1", port, request.encode())

    # --- what happens to it ---

    async def visit(self, dice: Random) -> None:
        """One client of the servers: it may be polite, hasty, or leave in the middle."""
        port, page = dice.choice(_PAGES)
        request = f"GET {page} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n".encode()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(scaled(_CONNECT_SECONDS)):
                cut = dice.choice((len(request), len(request), dice.randrange(len(request))))
                await self._exchange("127.0.0.1", port, request[:cut], most=dice.choice((0, 0, 1)))

    def move_addresses(self, dice: Random) -> None:
        """An address of the host comes and goes."""
        address = f"192.0.2.{dice.randrange(1, 250)}/32"
        with self.network.inside():
            ip(f"address add {address} dev up0", f"address del {address} dev up0")

    def edit_rules(self) -> None:
        """Another program removes rules of ours."""
        with self.network.inside():
            subprocess.run(_EDITS[self.mode], capture_output=True, check=False)

    # --- how it is ---

    async def drift(self) -> str:
        """Compare the kernel with what is wanted. Return the difference; empty if there is none."""
        command = ("-c", "from kpctl.cli import main; main()", "drift", f"--socket={self._socket}")
        with self.network.inside():
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        output, _ = await process.communicate()
        return output.decode()[-2000:] if process.returncode else ""

    def status(self) -> Status:
        client = Client(self._socket)
        try:
            return client.status()
        finally:
            client.close()

    def usage(self) -> Usage:
        self.proxy.require_alive()
        while True:
            # A child that is about to become a tool looks as one that lasts, and may end meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, KeyError):
                return _usage(_family_of(self.proxy.pid))
            self.proxy.require_alive()


@contextlib.asynccontextmanager
async def _closing(server: asyncio.Server) -> AsyncIterator[None]:
    try:
        yield
    finally:
        server.close()


async def _answering(word: bytes, port: int) -> contextlib.AbstractAsyncContextManager[None]:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(word)
            await writer.drain()
        writer.close()

    return _closing(await asyncio.start_server(answer, ADDRESS, port))


def _family_of(pid: int) -> list[int]:
    """The process and its children that last: those that run a tool come and go."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children = (task / "children").read_text().split()
            found += [int(child) for child in children if _is_python(int(child))]
    return found


def _usage(processes: Sequence[int]) -> Usage:
    fields = [_status(pid) for pid in processes]
    return Usage(
        resident_mb=sum(int(found["VmRSS"].split()[0]) for found in fields) / 1024,
        descriptors=sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in processes),
        threads=sum(int(found["Threads"]) for found in fields),
    )


def _is_python(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").resolve() == Path(sys.executable).resolve()


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _probe_service() -> Json:
    ports = [{"name": "web", "port": 80, "protocol": "TCP"}]
    return {"metadata": {"name": "probe"}, "spec": {"clusterIP": PROBE_ADDRESS, "ports": ports}}


def _probe_slice(port: int) -> Json:
    return {
        "metadata": {"name": "probe", "labels": {"kubernetes.io/service-name": "probe"}},
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}, "nodeName": NODE}],
    }
