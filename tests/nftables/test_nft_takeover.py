"""Either proxy takes over the other's table, while its services keep their affinity.

Upstream's own binary and our daemon run one after the other in a namespace with an API server.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.waiting import until

from kpctl.apiserver.admin import endpoint_slice, service
from kpctl.apiserver.build import NoGo, built
from kpctl.apiserver.small import SmallApiServer

pytestmark = [pytest.mark.api, pytest.mark.kernel, pytest.mark.timeout(900)]

OURS = (sys.executable, "-m", "kubeproxy", "--inspection-socket=")
CLIENT = "198.51.100.7"
NODE: dict[str, object] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node"},
    "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]},
}


@pytest.fixture(scope="module")
def upstream() -> tuple[str, ...]:
    try:
        return (str(built("kube-proxy")),)
    except NoGo as reason:
        pytest.skip(str(reason))


@pytest.fixture
async def api(namespace: None) -> AsyncIterator[SmallApiServer]:
    """Three services: plain, with affinity, and with nothing behind it."""
    async with SmallApiServer().serving() as found:
        await found.create("nodes", "", NODE)
        for number, (name, affinity) in enumerate(
            (("plain", "None"), ("sticky", "ClientIP"), ("empty", "None"))
        ):
            await found.create("services", "default", _service(name, number, affinity))
            if name != "empty":
                pods = (f"10.244.{number}.1", f"10.244.{number}.2")
                item = endpoint_slice(f"{name}-1", name, *pods)
                await found.create("endpointslices", "default", item)
        yield found


def _service(name: str, number: int, affinity: str) -> dict[str, object]:
    address = f"10.96.0.{number + 1}"
    timeout = {"clientIP": {"timeoutSeconds": 600}} if affinity == "ClientIP" else None
    return service(
        name,
        type="ClusterIP",
        clusterIP=address,
        clusterIPs=[address],
        ipFamilies=["IPv4"],
        sessionAffinity=affinity,
        sessionAffinityConfig=timeout,
    )


@asynccontextmanager
async def running(program: Sequence[str], api: SmallApiServer, log: Path) -> AsyncIterator[None]:
    """A proxy, until it has synced and beyond."""
    flags = [
        f"--master={api.url}",
        "--proxy-mode=nftables",
        "--hostname-override=node",
        "--cluster-cidr=10.244.0.0/16",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--iptables-min-sync-period=10ms",
        "--kube-api-content-type=application/json",
    ]
    with log.open("w") as output:
        process = subprocess.Popen([*program, *flags], stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def objects() -> list[dict[str, dict[str, object]]]:
    done = subprocess.run(
        ["nft", "-j", "list", "table", "ip", "kube-proxy"], capture_output=True, text=True
    )
    if done.returncode:
        return []
    found: list[dict[str, dict[str, object]]] = json.loads(done.stdout)["nftables"]
    return found


def names(kind: str) -> set[str]:
    return {str(entry[kind]["name"]) for entry in objects() if kind in entry}


def dispatch() -> str:
    return json.dumps(
        [e["map"] for e in objects() if e.get("map", {}).get("name") == "service-ips"]
    )


def is_ours() -> bool:
    return "pick-2" in dispatch()


def is_upstreams() -> bool:
    return "plain/tcp/web" in dispatch()


def remember_client() -> str:
    """Put a client into an affinity set, as a packet would; the set's name."""
    name = min(found for found in names("set") if found.startswith("affinity-"))
    command = ["nft", "add", "element", "ip", "kube-proxy", name, f"{{ {CLIENT} }}"]
    subprocess.run(command, check=True)
    return name


def clients(name: str) -> str:
    command = ["nft", "list", "set", "ip", "kube-proxy", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def test_we_take_over_from_upstream(
    api: SmallApiServer, upstream: tuple[str, ...], tmp_path: Path
) -> None:
    """Its chains go, its affinity stays, and nothing of it is left in the way."""
    async with running(upstream, api, tmp_path / "upstream.log"):
        await until(is_upstreams)
    sticky = remember_client()
    async with running(OURS, api, tmp_path / "ours.log"):
        await until(is_ours)
        await until(lambda: not any("plain/tcp" in name for name in names("chain")))
        assert CLIENT in clients(sticky)


async def test_upstream_takes_over_from_us(
    api: SmallApiServer, upstream: tuple[str, ...], tmp_path: Path
) -> None:
    """It neither fails on our objects nor loses the affinity they hold."""
    async with running(OURS, api, tmp_path / "ours.log"):
        await until(is_ours)
    sticky = remember_client()
    async with running(upstream, api, tmp_path / "upstream.log"):
        await until(is_upstreams)
        assert CLIENT in clients(sticky)
        assert not is_ours()
    log = (tmp_path / "upstream.log").read_text()
    assert "nftables sync failed" not in log
