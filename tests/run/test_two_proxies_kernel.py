"""Two proxies on one node: the second one writes nothing, and takes over when the first is gone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.host import PROGRAMS, Host
from tests.support.served import WEB, until_programmed, write
from tests.support.waiting import LIMIT_SECONDS, limit, until

from kpctl.places.scratch import scratch_namespace
from kubeproxy.run.claim import Claim, NoClaim, try_claim, wait_for_claim

pytestmark = pytest.mark.kernel

HEALTH, METRICS = 10256, 10249
NFTABLES, IPTABLES, USERSPACE = (f"--proxy-mode={m}" for m in ("nftables", "iptables", "userspace"))
ELSEWHERE = ("--healthz-bind-address=127.0.0.1:20256", "--metrics-bind-address=127.0.0.1:20249")
THIRD = ("--healthz-bind-address=127.0.0.1:30256", "--metrics-bind-address=127.0.0.1:30249")
WAITING, OVER = "waiting until it ends", "has ended; taking over"
NAME = "\0kubeproxy/claim"


# --- the claim ---


@pytest.fixture
def namespace() -> Iterator[None]:
    with scratch_namespace():
        yield


def claimed() -> Claim:
    claim = try_claim()
    assert claim is not None
    return claim


async def test_a_claim_is_held_by_one_and_passed_on_when_it_ends(namespace: None) -> None:
    first = claimed()
    assert try_claim() is None
    assert not first.has_successor()
    waiting = [asyncio.create_task(wait_for_claim()) for _ in range(2)]
    await until(first.has_successor)
    first.close()
    async with limit():
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (second,) = (task.result() for task in done)
    assert try_claim() is None
    second.close()
    for task in pending:
        (await task).close()


async def test_a_successor_that_gave_up_is_none(namespace: None) -> None:
    with closing(claimed()) as first:
        waiting = asyncio.create_task(wait_for_claim())
        await until(first.has_successor)
        waiting.cancel()
        await until(lambda: not first.has_successor())


async def test_a_holder_that_does_not_listen_is_ignored(namespace: None) -> None:
    """Any process may bind the name. None can keep a proxy from working."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        holder.bind(NAME)
        async with limit():
            with pytest.raises(NoClaim, match="does not listen"):
                await wait_for_claim()


def hold(stack: ExitStack) -> None:
    holder = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    holder.bind(NAME)
    holder.listen()


def fill_queue(stack: ExitStack) -> None:
    """Connect to the holder of the name until it takes no more."""
    with suppress(BlockingIOError):
        while True:
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.setblocking(False)
            client.connect(NAME)


@contextmanager
def by_another_user(do: Callable[[ExitStack], None]) -> Iterator[None]:
    """In a process of its own: have what this opens until the end of the block."""
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(go_on[1])
        os.setgid(65534)
        os.setuid(65534)
        try:
            with ExitStack() as stack:
                do(stack)
                os.write(ready[1], b".")
                os.read(go_on[0], 1)
        finally:
            os._exit(0)
    os.read(ready[0], 1)
    try:
        yield
    finally:
        for end in (*ready, *go_on):
            os.close(end)
        os.waitpid(child, 0)


async def test_a_holder_of_another_user_is_ignored(namespace: None) -> None:
    with by_another_user(hold):
        assert try_claim() is None
        async with limit():
            with pytest.raises(NoClaim, match="another user"):
                await wait_for_claim()


# --- the programs ---


def waiting_lines(host: Host) -> int:
    return host.log.count(WAITING)


def is_waiting_at(host: Host, metrics_port: int) -> bool:
    return host.get(metrics_port, "/proxyMode")[0] == 503


def until_waiting(host: Host) -> None:
    host.until(lambda: waiting_lines(host), "waiting for the other proxy")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_the_second_waits_and_takes_over(host: Host, number: signal.Signals) -> None:
    """It changes nothing, is healthy with ports of its own, and begins when the first is gone."""
    write(host, "web.yaml", WEB)
    first = host.start(NFTABLES)
    until_programmed(host, "10.96.0.10")
    second = host.start(IPTABLES, *ELSEWHERE)
    until_waiting(host)
    host.until(lambda: host.get(20256, "/healthz")[0] == 200, "health of the second")
    assert host.get(20256, "/livez")[0] == 200
    assert "kube-proxy in nftables mode" in host.log.partition(WAITING)[2].splitlines()[0]
    assert host.run("iptables-save").stdout == ""
    assert (first.poll(), second.poll()) == (None, None)

    first.send_signal(number)
    first.wait()
    host.until(lambda: "KUBE-SEP-" in host.run("iptables-save", "-t", "nat").stdout, "taking over")
    host.until(lambda: "table ip kube-proxy" not in host.tables(), "removal of the first's rules")
    assert OVER in host.log
    assert host.stop(second) == 0


def test_the_second_gets_the_ports_of_the_first(host: Host) -> None:
    """Until then they are answered by the first one, and not having them ends nothing."""
    write(host, "web.yaml", WEB)
    first = host.start(NFTABLES)
    until_programmed(host, "10.96.0.10")
    second = host.start(NFTABLES, "--bind-address-hard-fail")
    until_waiting(host)
    assert host.get(METRICS, "/proxyMode") == (200, "nftables")
    write(host, "web.yaml", WEB.replace("10.96.0.10", "10.96.0.11"))
    until_programmed(host, "10.96.0.11")
    assert host.stop(first) == 0
    host.until(lambda: host.get(HEALTH, "/healthz")[0] == 200, "the health port")
    host.until(lambda: host.get(METRICS, "/proxyMode")[0] == 200, "the metrics port")
    write(host, "web.yaml", WEB.replace("10.96.0.10", "10.96.0.12"))
    until_programmed(host, "10.96.0.12")
    assert host.stop(second) == 0


def test_a_waiting_proxy_ends_at_a_signal_and_no_one_is_disturbed(host: Host) -> None:
    write(host, "web.yaml", WEB)
    first = host.start(NFTABLES)
    until_programmed(host, "10.96.0.10")
    before = host.tables()
    second = host.start(NFTABLES)
    until_waiting(host)
    assert host.stop(second) == 0
    assert host.tables() == before
    assert host.stop(first) == 0


def serving(host: Host, ports: Iterable[int]) -> list[int]:
    """The metrics ports of proxies that do not wait."""
    return [port for port in ports if host.get(port, "/proxyMode")[0] == 200]


def test_of_two_that_wait_one_takes_over_and_then_the_other(host: Host) -> None:
    """One of them has the usual metrics port; the other does not take it for upstream's."""
    write(host, "web.yaml", WEB)
    first = host.start(NFTABLES, *ELSEWHERE)
    until_programmed(host, "10.96.0.10")
    processes = {METRICS: host.start(NFTABLES), 30249: host.start(NFTABLES, *THIRD)}
    for port in processes:
        host.until(partial(is_waiting_at, host, port), "waiting")
    host.stop(first)
    for number in (11, 12):
        write(host, "web.yaml", WEB.replace("10.96.0.10", f"10.96.0.{number}"))
        until_programmed(host, f"10.96.0.{number}")
        host.until(lambda: serving(host, processes), "the answer of the one that serves")
        (port,) = serving(host, processes)
        host.stop(processes.pop(port))


def test_a_flag_lets_both_go_on(host: Host) -> None:
    """It is reported that they fight."""
    write(host, "web.yaml", WEB)
    host.start(NFTABLES)
    until_programmed(host, "10.96.0.10")
    host.start(IPTABLES, *ELSEWHERE, "--wait-for-other-proxy=false")
    host.until(lambda: "KUBE-SEP-" in host.run("iptables-save", "-t", "nat").stdout, "its rules")
    host.until(lambda: "Two proxies change the same rules" in host.log, "the report")
    assert not waiting_lines(host)


def test_a_claim_of_another_user_keeps_no_proxy_from_working(host: Host) -> None:
    write(host, "web.yaml", WEB)
    with host.network.inside(), by_another_user(hold):
        host.start(NFTABLES)
        until_programmed(host, "10.96.0.10")


class Upstream(BaseHTTPRequestHandler):
    """The one answer by which upstream's kube-proxy is known."""

    answer = b"iptables"

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/proxyMode" else 404)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None: ...


class Other(Upstream):
    """Another program at that port."""

    answer = b"welcome"


@contextmanager
def listening(host: Host, handler: type[Upstream], *, user: int = 0) -> Iterator[None]:
    with host.network.inside():
        server = HTTPServer(("127.0.0.1", METRICS), handler)
    os.fchown(server.fileno(), user, user)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_proxy_of_upstream_is_known_by_its_metrics_server(host: Host) -> None:
    """It has no claim. When the port is ours, or free, it is gone."""
    write(host, "web.yaml", WEB)
    with listening(host, Upstream):
        host.start(NFTABLES)
        until_waiting(host)
        assert "kube-proxy in iptables mode (its metrics server is at port 10249)" in host.log
        assert "10.96.0.10" not in host.tables()
    until_programmed(host, "10.96.0.10")
    host.until(lambda: host.get(METRICS, "/proxyMode") == (200, "nftables"), "the metrics port")


def test_another_program_at_the_metrics_port_is_no_proxy(host: Host) -> None:
    write(host, "web.yaml", WEB)
    with listening(host, Other):
        host.start(NFTABLES)
        until_programmed(host, "10.96.0.10")
        assert not waiting_lines(host)


def test_a_process_of_another_user_at_the_metrics_port_is_no_proxy(host: Host) -> None:
    """Whatever it answers: any user of the node could keep Services from being programmed."""
    write(host, "web.yaml", WEB)
    with listening(host, Upstream, user=65534):
        host.start(NFTABLES)
        until_programmed(host, "10.96.0.10")
        assert not waiting_lines(host)


def test_nor_while_our_own_has_that_port_of_another_address(host: Host) -> None:
    """One that waits has it, as root; who answers at one address need not be who has another."""
    host.run("ip", "address", "add", "192.0.2.20/24", "dev", "lo")
    write(host, "web.yaml", WEB)
    first = host.start(NFTABLES, *ELSEWHERE)
    until_programmed(host, "10.96.0.10")
    with listening(host, Upstream, user=65534):
        host.start(NFTABLES, f"--metrics-bind-address=192.0.2.20:{METRICS}")
        waiting = partial(host.get, METRICS, "/proxyMode", "192.0.2.20")
        host.until(lambda: waiting()[0] == 503, "waiting")
        host.stop(first)
        write(host, "web.yaml", WEB.replace("10.96.0.10", "10.96.0.11"))
        until_programmed(host, "10.96.0.11")


PORTAL = "192.0.2.7"
POD = """
apiVersion: v1
kind: Service
metadata: {name: pod, namespace: shop}
spec: {clusterIP: 192.0.2.7, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pod-1, namespace: shop, labels: {kubernetes.io/service-name: pod}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [192.0.2.20], nodeName: worker-a}]
"""
"""A Service whose endpoint is an address of the host itself."""


def until_diverted(host: Host) -> None:
    host.until(lambda: PORTAL in host.run("iptables-save", "-t", "nat").stdout, "programming")


class Carried(NamedTuple):
    """A proxy in userspace mode, and both ends of a connection that it carries."""

    process: subprocess.Popen[bytes]
    client: socket.socket
    pod: socket.socket


CONFIG = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: userspace
conntrack: {maxPerCore: 0}
oomScoreAdj: 0
"""


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "config.conf"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def carried(host: Host, configuration: Path) -> Iterator[Carried]:
    for words in ("addr add 192.0.2.20/24 dev lo", "route add default dev lo"):
        host.run("ip", *words.split())
    write(host, "pod.yaml", POD)
    process = host.start(f"--config={configuration}", "--config-restart-jitter=1ms")
    until_diverted(host)
    with host.listen("192.0.2.20", 8080) as pod, host.network.inside():
        client = socket.create_connection((PORTAL, 80), timeout=LIMIT_SECONDS)
        accepted, _ = pod.accept()
        with client, accepted:
            yield Carried(process, client, accepted)


def test_what_a_process_carries_outlives_the_change_to_another_mode(
    host: Host, carried: Carried
) -> None:
    """It stays for open connections, gives its ports up, and ends with the last connection."""
    first = carried.process
    host.start(NFTABLES)
    until_waiting(host)
    first.send_signal(signal.SIGTERM)
    until_programmed(host, PORTAL)
    host.until(lambda: "KUBE-" not in host.run("iptables-save").stdout, "removal of its rules")
    host.until(lambda: host.get(METRICS, "/proxyMode") == (200, "nftables"), "the metrics port")
    assert first.poll() is None
    carried.client.sendall(b"still there?")
    assert carried.pod.recv(100) == b"still there?"
    carried.client.close()
    carried.pod.close()
    assert first.wait(LIMIT_SECONDS) == 0
    assert "no connection is carried any more" in host.log


def test_a_full_queue_of_another_user_hides_no_successor(host: Host, carried: Carried) -> None:
    """Anyone may connect to the claim, and there is room for few."""
    first = carried.process
    with host.network.inside(), by_another_user(fill_queue):
        host.start(NFTABLES)
        until_waiting(host)
        first.send_signal(signal.SIGTERM)
        host.until(lambda: "staying until" in host.log or first.poll() is not None, "its end")
        assert first.poll() is None
        until_programmed(host, PORTAL)
        carried.client.sendall(b"still there?")
        assert carried.pod.recv(100) == b"still there?"


def test_a_configuration_that_changes_during_a_rollout_cuts_nothing(
    host: Host, carried: Carried, configuration: Path
) -> None:
    """The old pod sees the file of the new one, and wants to restart; its signal comes later."""
    first = carried.process
    host.start(NFTABLES)
    until_waiting(host)
    configuration.write_text(CONFIG.replace("userspace", "nftables"))
    host.until(lambda: "table ip kube-proxy" in host.tables(), "the end of its claim")
    first.send_signal(signal.SIGTERM)
    host.until(lambda: "KUBE-" not in host.run("iptables-save").stdout, "removal of its rules")
    carried.client.sendall(b"still there?")
    assert carried.pod.recv(100) == b"still there?"
    carried.client.close()
    carried.pod.close()
    assert first.wait(LIMIT_SECONDS) == 0


def test_a_second_signal_ends_a_process_that_stays(host: Host, carried: Carried) -> None:
    first = carried.process
    host.start(NFTABLES)
    until_waiting(host)
    first.send_signal(signal.SIGTERM)
    host.until(lambda: "staying until" in host.log, "staying")
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_SECONDS) == 0
    until_programmed(host, PORTAL)


# --- rules of another mode ---


def test_init_only_leaves_the_rules_of_another_mode_alone(host: Host) -> None:
    """They serve until the daemon does."""
    write(host, "web.yaml", WEB)
    process = host.start(IPTABLES)
    host.until(lambda: "KUBE-SEP-" in host.run("iptables-save").stdout, "programming")
    assert host.stop(process) == 0
    before = host.run("iptables-save", "-t", "nat").stdout
    assert host.start(NFTABLES, "--init-only").wait(LIMIT_SECONDS) == 0
    after = host.run("iptables-save", "-t", "nat").stdout
    assert [line for line in after.splitlines() if not line.startswith("#")] == [
        line for line in before.splitlines() if not line.startswith("#")
    ]


FAILING = """#!/bin/sh
case "$*" in *--test*|*--version*) exec {real} "$@" ;; esac
echo "not today" >&2
exit 1
"""


def test_rules_of_another_mode_stay_until_a_sync_succeeds(host: Host, tmp_path: Path) -> None:
    write(host, "web.yaml", WEB)
    process = host.start(NFTABLES)
    until_programmed(host, "10.96.0.10")
    assert host.stop(process) == 0
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("iptables-restore", "ip6tables-restore"):
        (tools / name).write_text(FAILING.format(real=shutil.which(name)))
        (tools / name).chmod(0o755)
    host.start(
        IPTABLES,
        "--iptables-sync-period=1s",
        program=("env", f"PATH={tools}:{os.environ['PATH']}", PROGRAMS / "kube-proxy"),
    )
    host.until(lambda: host.log.count("Sync failed") > 3, "failing")
    assert "10.96.0.10" in host.tables()
    shutil.rmtree(tools)
    host.until(lambda: "table ip kube-proxy" not in host.tables(), "removal of the old rules")
    assert "KUBE-SEP-" in host.run("iptables-save").stdout


def carriers(process: subprocess.Popen[bytes]) -> int:
    return len(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())


def test_without_a_successor_a_process_that_carries_connections_ends_at_once(host: Host) -> None:
    write(host, "web.yaml", WEB)
    process = host.start(USERSPACE)
    host.until(lambda: "10.96.0.10" in host.run("iptables-save").stdout, "programming")
    assert carriers(process)
    assert host.stop(process) == 0
    assert "staying until" not in host.log
