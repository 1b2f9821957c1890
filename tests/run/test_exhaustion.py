"""Clients that open connections and say nothing, on a host that allows 1,024 files and no more.

Everything that listens is attacked at once. What the proxy does for Services, and the answers to
the kubelet, must not notice.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
from tests.soak.node import Node
from tests.support.host import Host
from tests.support.served import BALANCED, WEB, write
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.logs.limit import INTERVAL_SECONDS

pytestmark = pytest.mark.kernel

ALLOWED = 1024
CONNECTIONS = 1500
HEALTH, METRICS, SERVICE_HEALTH = 10256, 10249, 32123

ADDED = BALANCED.replace("lb", "added").replace("0.20", "0.30").replace("30080", "30081")
ADDED = ADDED.replace("32123", "32124").replace("203.0.113.7", "203.0.113.8")


def allow_few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (ALLOWED, ALLOWED))


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process hold the other ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def silent_connections(host: Host, *ports: int) -> Iterator[None]:
    """Hold connections to all these ports on which nothing is sent."""
    with contextlib.ExitStack() as held, host.network.inside():
        for _ in range(CONNECTIONS):
            for port in ports:
                place = ("127.0.0.1", port)
                held.enter_context(socket.create_connection(place, timeout=LIMIT_SECONDS))
        yield


def is_served(host: Host, port: int, path: str) -> bool:
    return host.get(port, path)[0] == 200


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_silent_connections_take_nothing_from_the_proxy(host: Host, mode: str) -> None:
    (host.manifests / "lb.yaml").write_text(BALANCED)
    process = host.start(
        f"--proxy-mode={mode}", "--nodeport-addresses=0.0.0.0/0", before=allow_few_files
    )
    for port, path in ((HEALTH, "/livez"), (METRICS, "/healthz"), (SERVICE_HEALTH, "/")):
        host.until(partial(is_served, host, port, path), f"port {port}")
    began = time.monotonic()
    with silent_connections(host, HEALTH, METRICS, SERVICE_HEALTH):
        assert descriptors(process.pid) < ALLOWED // 2
        (host.manifests / "added.yaml").write_text(ADDED)
        host.until(lambda: "10.96.0.30" in host.tables(), "a new Service")
        host.run("ip", "address", "add", "10.9.8.7/24", "dev", "lo")
        host.until(lambda: host.get(32124, "/", "10.9.8.7")[0] == 200, "a new health port")
        (host.manifests / "lb.yaml").unlink()
        host.until(lambda: "10.96.0.20" not in host.tables(), "removing a Service")
        for port, path in ((HEALTH, "/livez"), (HEALTH, "/healthz"), (METRICS, "/metrics")):
            assert host.get(port, path)[0] == 200, path
        assert process.poll() is None
    intervals = 1 + int((time.monotonic() - began) / INTERVAL_SECONDS)
    assert 3 <= host.log.count("Too many HTTP connections") <= 3 * intervals  # for each server
    assert len(host.log) < 20_000
    assert "Traceback" not in host.log
    assert host.stop(process) == 0


def test_the_soft_limit_is_raised_at_start(host: Host) -> None:
    """systemd and containerd start programs with 1,024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    process = host.start(
        "--proxy-mode=nftables",
        before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (ALLOWED, hard)),
    )
    host.until(lambda: host.get(METRICS, "/healthz")[0] == 200, "start")
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    assert host.stop(process) == 0


@contextlib.contextmanager
def no_descriptor_left(pid: int) -> Iterator[None]:
    """Allow a running process no other file than those it has open."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    take_descriptors(pid)
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def take_descriptors(pid: int) -> None:
    """As above, once; one that is closed later is free again."""
    held = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    lowest = next(number for number in range(soft + 1) if number not in held)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, hard))


@pytest.mark.parametrize(
    ("mode", "variant"),
    [("nftables", ""), ("iptables", "nft"), ("iptables", "legacy"), ("userspace", "")],
)
def test_without_a_descriptor_rules_wait_until_there_is_one(
    host: Host, mode: str, variant: str
) -> None:
    """What could not be read or run is tried again by itself, and nothing ends meanwhile."""
    write(host, "web.yaml", WEB)
    flags = [f"--iptables-variant={variant}"] if variant else []
    tables = host.legacy_tables if variant == "legacy" else host.tables
    process = host.start(f"--proxy-mode={mode}", *flags)
    host.until(lambda: "10.96.0.10" in tables(), "start")
    addresses = cycle(f"10.96.0.{number}" for number in range(11, 250))

    def has_failed() -> bool:
        # One more change for each descriptor that the start had open for a moment only.
        take_descriptors(process.pid)
        write(host, "web.yaml", WEB.replace("10.96.0.10", next(addresses)))
        return "open files" in host.log

    with no_descriptor_left(process.pid):
        host.until(has_failed, "an error about descriptors")
        assert "10.96.0." in tables()
    write(host, "web.yaml", WEB.replace("10.96.0.10", "10.96.0.254"))
    host.until(lambda: "10.96.0.254" in tables(), "programming")
    host.until(lambda: host.get(HEALTH, "/livez")[0] == 200, "health")
    assert "Traceback" not in host.log
    assert host.stop(process) == 0


async def test_an_open_watch_and_nftables_need_no_other_descriptor(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    async with Node("nftables", tmp_path).running() as node:
        await node.probe()
        with no_descriptor_left(node.proxy.pid):
            for _ in range(3):
                await node.probe()
        assert "Traceback" not in node.end_of_log()
