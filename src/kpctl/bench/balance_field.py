"""A small network with our engine on its node, for measuring algorithms.

    client ── node ── pods        each connection may come from another address of the client's

The engine runs in this process, so that the moment of a commit is known; only the API server is
left out. Service i asks for what its number says (`VARIANTS`), all others for nothing.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kpctl.bench.cluster import POD_PORT, SERVICE_PORT, cluster_ip, pod_ip
from kpctl.bench.facts import endpoint, endpoint_slice, node, service
from kpctl.bench.records import Size
from kpctl.bench.world import Site, ip
from kpctl.look.quiet import IgnoreRounds
from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import Family
from kubeproxy.facts.policy import Algorithm, Policy
from kubeproxy.modes.registry import load_mode
from kubeproxy.sync.clock import SystemClock
from kubeproxy.sync.engine import Engine, EngineTimes

CLIENTS = "198.18.0.0/15"
"""Client addresses: 131,072."""
NODE_ADDRESS = "10.254.0.1"

_HANG_UP = struct.pack("ii", 1, 0)
_TIMEOUT_SECONDS = 20.0
_ADDRESS_BYTES = 4


class Variant(Struct, frozen=True, gc=False):
    """What a Service asks for, with a name for people."""

    name: str
    algorithm: Algorithm | None = None
    heavy: int = 1
    """The weight of its first endpoint; the others have 1."""


DEFAULT = Variant("default")
CONTROL = Variant("default, again")
"""Another Service of the default: how far its figures are from those of the first is chance."""
VARIANTS = (
    DEFAULT,
    *(Variant(algorithm.value, algorithm) for algorithm in Algorithm),
    Variant("weights", heavy=3),
)


def variants_of(mode: str) -> tuple[Variant, ...]:
    """Those that differ from the mode's default."""
    possible = load_mode(mode).algorithms
    same = {"nftables": Algorithm.RANDOM, "iptables": Algorithm.RANDOM}.get(
        mode, Algorithm.ROUND_ROBIN
    )
    return tuple(
        v
        for v in VARIANTS
        if v.algorithm is None or (v.algorithm in possible and v.algorithm is not same)
    )


class Field:
    """One engine over a cluster of a given size. Service i is of `variants[i]`."""

    def __init__(self, site: Site, mode: str, size: Size, variants: Sequence[Variant]) -> None:
        settings = parse_command_line([])
        assert isinstance(settings, Settings)
        found = load_mode(mode)
        self.variants = tuple(variants)
        self._size = size
        self._site = site
        self._node = replace(node(ip=NODE_ADDRESS), mode=mode, algorithms=found.algorithms)
        self.engine = Engine(
            found.create(Family.IPV4, found.options(settings.config, settings.extensions)),
            self._node,
            clock=SystemClock(),
            listener=IgnoreRounds(),
            times=EngineTimes(min_seconds=0.0),
        )
        for index in range(size.services):
            variant = self._variant(index)
            facts = service(_name(index), cluster_ip=cluster_ip(index))
            policy = Policy(variant.algorithm) if variant.algorithm else None
            self.engine.pipeline.store.set_service(replace(facts, policy=policy))
            self.set_slots(index, range(size.endpoints))

    def _variant(self, index: int) -> Variant:
        return self.variants[index] if index < len(self.variants) else DEFAULT

    def set_slots(self, index: int, slots: Sequence[int]) -> None:
        """Give a Service these endpoints."""
        pods = [endpoint(pod_ip(index, slot), POD_PORT) for slot in slots]
        heavy = self._variant(index).heavy
        weights = ((pods[0].address, heavy),) if heavy != 1 else ()
        facts = endpoint_slice(_name(index), pods, slice_name=f"s{index}")
        self.engine.pipeline.store.set_slice(replace(facts, weights=weights))

    async def start(self) -> None:
        with self._site.node.inside():
            await self.engine.backend.probe()
            await self.engine.backend.start(self._node)
        await self.round()

    async def round(self) -> int:
        """Bring the kernel to what is wanted. Return the bytes that took."""
        with self._site.node.inside():
            report = await self.engine.round()
        if not report.is_success:
            raise ProxyError(report.failure_text)
        return report.bytes_sent

    async def close(self) -> None:
        await self.engine.backend.close()


def _name(index: int) -> str:
    return f"default/svc-{index:05}"


@contextlib.contextmanager
def site_with_pods() -> Iterator[Site]:
    """A network whose pods tell at which of their addresses they were reached."""
    site = Site()
    try:
        site.wire()
        with site.client.inside():
            ip(f"route add local {CLIENTS} dev lo")
        with site.node.inside():
            ip(f"route add {CLIENTS} via 10.255.0.2")
        with site.pods.inside():
            pods = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL"),
                    *(sys.executable, "-m", "kpctl.bench.pod", str(POD_PORT), "--names"),
                ],
                stdout=subprocess.PIPE,
            )
        try:
            assert pods.stdout is not None
            if pods.stdout.readline() != b"listening\n":
                raise ProxyError("the benchmark's pods did not start")
            yield site
        finally:
            pods.kill()
            pods.communicate()
    finally:
        site.close()


@contextlib.asynccontextmanager
async def field_of(
    mode: str, size: Size, variants: Sequence[Variant]
) -> AsyncIterator[tuple[Site, Field]]:
    """A network with an engine that has synced."""
    with site_with_pods() as site:
        field = Field(site, mode, size, variants)
        try:
            await field.start()
            yield site, field
        finally:
            await field.close()


def client_address(number: int) -> str:
    return f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


class Connection(Struct, frozen=True, gc=False):
    """Whom a connection met, and what `connect` took, in microseconds."""

    met: str
    spent: float
    processor: float
    """The same in processor time: nearly all of it is the kernel's, for both ends."""


def connect(index: int, source: str = "") -> Connection:
    """Connect to Service `index`."""
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HANG_UP)
        opened.settimeout(_TIMEOUT_SECONDS)
        if source:
            opened.bind((source, 0))
        began, processor = time.perf_counter(), time.thread_time()
        try:
            opened.connect((cluster_ip(index), SERVICE_PORT))
            processor = time.thread_time() - processor
            spent = time.perf_counter() - began
            met = socket.inet_ntoa(opened.recv(_ADDRESS_BYTES))
        except OSError as error:
            raise ProxyError(f"{cluster_ip(index)} cannot be reached: {error}") from error
    return Connection(met, spent * 1e6, processor * 1e6)


def spread_of(site: Site, index: int, connections: int, endpoints: int) -> Mapping[str, int]:
    """Whom so many clients met, each with one connection. Endpoints that were not met have 0."""
    counts: Counter[str] = Counter({pod_ip(index, slot): 0 for slot in range(endpoints)})
    with site.client.inside():
        for number in range(connections):
            counts[connect(index, client_address(number)).met] += 1
    return counts
