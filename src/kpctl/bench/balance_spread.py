"""How evenly connections spread over ten endpoints: ours, upstream's kube-proxy, HAProxy, IPVS.

Each connection comes from another client address, so that hashes spread as well. A choice at random
deviates by chance: of n connections to each endpoint by about 1/√n.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from statistics import pstdev

from msgspec import Struct

from kpctl.bench.balance_field import (
    Variant,
    connect,
    field_of,
    site_with_pods,
    spread_of,
    variants_of,
)
from kpctl.bench.cluster import POD_PORT, SERVICE_PORT, cluster_ip, pod_ip
from kpctl.bench.feed import Feed
from kpctl.bench.program import RunningProxy, command_of, proxy_flags
from kpctl.bench.records import OURS, UPSTREAM, Size
from kpctl.bench.world import NODE_ADDRESS, Site, ip
from kubeproxy.errors import ProxyError

ENDPOINTS = 10
_START_SECONDS = 60.0
_HAPROXY = {
    "roundrobin": "roundrobin",
    "random": "random(1)",
    "source": "source\n  hash-type consistent",
    "leastconn": "leastconn",
}
"""Balancing of HAProxy by its name, as its configuration spells it."""


_SCHEDULERS = ("rr", "sh", "mh", "lc")
"""Of IPVS, as ipvsadm spells them."""


class Spread(Struct, frozen=True):
    """How often each endpoint was met; `heavy` is the weight of the first."""

    who: str
    counts: Mapping[str, int]
    heavy: int = 1

    def deviations(self) -> list[float]:
        """How far each endpoint is from its share, as a part of it."""
        total = sum(self.counts.values())
        weights = [self.heavy, *[1] * (len(self.counts) - 1)]
        due = [total * weight / sum(weights) for weight in weights]
        return [count / share - 1 for count, share in zip(self.counts.values(), due, strict=True)]

    def __str__(self) -> str:
        total, found = sum(self.counts.values()), self.deviations()
        chance = 1 / math.sqrt(total / len(found))
        return (
            f"{total:,} connections over {len(found)} endpoints, {self.who}: largest deviation from"
            f" its share {max(map(abs, found)):.2%}, standard deviation {pstdev(found):.2%}"
            f" (a fair choice at random: {chance:.2%})"
        )


async def ours(mode: str, connections: int) -> AsyncIterator[Spread]:
    """Our engine in one mode, with each algorithm."""
    size = Size(len(variants_of(mode)), ENDPOINTS)
    async with field_of(mode, size, variants_of(mode)) as (site, field):
        for index, variant in enumerate(field.variants):
            counts = spread_of(site, index, connections, ENDPOINTS)
            yield Spread(_named(mode, variant), counts, variant.heavy)


def _named(mode: str, variant: Variant) -> str:
    weights = f" (first endpoint {variant.heavy} × as much)" if variant.heavy != 1 else ""
    return f"{OURS} in {mode} mode, {variant.name}{weights}"


async def upstream(mode: str, connections: int) -> Spread:
    """Upstream's kube-proxy, fed by a small API server on the node."""
    with tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as folder, site_with_pods() as site:
        with site.node.inside():
            ip(f"address add {NODE_ADDRESS}/32 dev lo")
        feed = Feed(Path(folder))
        await feed.load(Size(1, ENDPOINTS))
        async with feed.reached_from(site) as access:
            command = (*command_of(UPSTREAM, Path(folder)), *access.flags, *proxy_flags(mode))
            log = Path(folder) / "log"
            proxy = RunningProxy(command, network=site.node, environment={}, log=log)
            try:
                await _synced(proxy)
                counts = spread_of(site, 0, connections, ENDPOINTS)
            finally:
                proxy.stop()
    return Spread(f"upstream's kube-proxy in {mode} mode", counts)


async def _synced(proxy: RunningProxy) -> None:
    limit = time.monotonic() + _START_SECONDS
    while not proxy.is_synced():
        if time.monotonic() > limit:
            raise ProxyError("upstream's kube-proxy did not sync")
        await asyncio.sleep(0.1)


def haproxy(connections: int) -> Iterator[Spread]:
    """HAProxy with one listener, for each of its ways to balance."""
    with site_with_pods() as site:
        with site.node.inside():
            ip(f"address add {cluster_ip(0)}/32 dev lo")
        for name, words in _HAPROXY.items():
            with _running_haproxy(site, words):
                counts = spread_of(site, 0, connections, ENDPOINTS)
            yield Spread(f"HAProxy, {name}", counts)


def ipvsadm(connections: int) -> Iterator[Spread]:
    """IPVS as ipvsadm sets it up, with each scheduler; nothing of ours is there."""
    with site_with_pods() as site:
        with site.node.inside():
            ip(f"address add {cluster_ip(0)}/32 dev lo")
        for scheduler in _SCHEDULERS:
            with site.node.inside():
                _set_up_ipvs(scheduler)
            yield Spread(f"ipvsadm, {scheduler}", spread_of(site, 0, connections, ENDPOINTS))


def _set_up_ipvs(scheduler: str) -> None:
    place = f"{cluster_ip(0)}:{SERVICE_PORT}"
    servers = (f"-a -t {place} -r {pod_ip(0, slot)}:{POD_PORT} -m" for slot in range(ENDPOINTS))
    for words in ("-C", f"-A -t {place} -s {scheduler}", *servers):
        subprocess.run(["ipvsadm", *words.split()], check=True)


@contextlib.contextmanager
def _running_haproxy(site: Site, words: str) -> Iterator[None]:
    servers = "".join(
        f"  server s{slot} {pod_ip(0, slot)}:{POD_PORT}\n" for slot in range(ENDPOINTS)
    )
    text = (
        "global\n  maxconn 1000\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 5s\n"
        f"  timeout server 5s\nlisten bench\n  bind {cluster_ip(0)}:{SERVICE_PORT}\n"
        f"  balance {words}\n{servers}"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as config:
        config.write(text)
        config.flush()
        with site.node.inside():
            # With -db it stays in the foreground; it says so when it listens.
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "haproxy", "-db", "-f", config.name],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        try:
            _listening(site)
            yield
        finally:
            process.kill()
            process.wait()


def _listening(site: Site) -> None:
    limit = time.monotonic() + _START_SECONDS
    while True:
        try:
            with site.client.inside():
                connect(0)
        except ProxyError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.1)
        else:
            return
