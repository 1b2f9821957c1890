"""The daemon on a host that gives it too little: memory, processor, disk, room in tables, rest."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.conntrack_kit import listed, packed
from tests.support.host import Host
from tests.support.served import WEB, until_programmed, write

from kpctl.places.flows import ASSURED, REPLIED, NewFlow, insert_flows
from kubeproxy.errors import KernelError

pytestmark = pytest.mark.kernel

HEALTH, METRICS = 10256, 10249
NFTABLES = "--proxy-mode=nftables"


def moved(address: str) -> str:
    return WEB.replace("10.96.0.10", address)


@contextmanager
def meanwhile(work: Sequence[str], host: Host) -> Iterator[None]:
    """Run `ip` with these lines again and again."""
    ended = threading.Event()

    def run() -> None:
        with host.network.inside():
            while not ended.is_set():
                batch = ["ip", "-force", "-batch", "-"]
                subprocess.run(batch, input="\n".join(work), text=True, check=False,
                               capture_output=True)  # fmt: skip

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_interfaces_that_come_and_go_by_the_hundred(host: Host, mode: str) -> None:
    """Each with an address, as those of pods have: rules follow changes all the same."""
    lines = [
        line
        for n in range(100)
        for line in (
            f"link add churn{n} type veth peer name peer{n}",
            f"address add 10.200.{n}.1/32 dev churn{n}",
            f"link set churn{n} up",
            f"link del churn{n}",
        )
    ]
    write(host, "web.yaml", WEB)
    with meanwhile(lines, host):
        process = host.start(f"--proxy-mode={mode}", "--nodeport-addresses=0.0.0.0/0")
        until_programmed(host, "10.96.0.10")
        for number in range(11, 15):
            write(host, "web.yaml", moved(f"10.96.0.{number}"))
            until_programmed(host, f"10.96.0.{number}")
        assert host.get(HEALTH, "/livez")[0] == 200
    assert host.stop(process) == 0
    assert "Traceback" not in host.log


def test_a_process_that_is_stopped_and_continued_catches_up(host: Host) -> None:
    """Also with rules that were removed meanwhile, and with more events than its sockets hold."""
    write(host, "web.yaml", WEB)
    process = host.start(NFTABLES)
    until_programmed(host, "10.96.0.10")
    process.send_signal(signal.SIGSTOP)
    for number in range(11, 60):
        write(host, "web.yaml", moved(f"10.96.0.{number}"))
    host.run("nft", "delete", "table", "ip", "kube-proxy")
    churn = [
        f"address {verb} 10.200.0.{n}/32 dev lo" for n in range(200) for verb in ("add", "del")
    ]
    with host.network.inside():
        batch = ["ip", "-force", "-batch", "-"]
        subprocess.run(batch, input="\n".join(churn * 20), text=True, check=False)
    process.send_signal(signal.SIGCONT)
    until_programmed(host, "10.96.0.59")
    host.until(lambda: host.get(HEALTH, "/livez")[0] == 200, "health")
    assert host.stop(process) == 0
    assert "Traceback" not in host.log


@contextmanager
def throttled(process: subprocess.Popen[bytes], share: float) -> Iterator[None]:
    """Let a process run for this share of the time, as the kernel does with a CPU quota."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.1 * (1 - share))
            process.send_signal(signal.SIGCONT)
            time.sleep(0.1 * share)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_twentieth_of_a_processor_is_enough(host: Host) -> None:
    """Also to start with; and the kubelet gets its answers."""
    write(host, "web.yaml", WEB)
    process = host.start(NFTABLES)
    with throttled(process, 0.05):
        until_programmed(host, "10.96.0.10")
        write(host, "web.yaml", moved("10.96.0.11"))
        until_programmed(host, "10.96.0.11")
        host.until(lambda: host.get(HEALTH, "/livez")[0] == 200, "health")
    assert host.stop(process) == 0
    assert "Traceback" not in host.log


def test_a_full_disk_takes_the_log_and_nothing_else(host: Host) -> None:
    """What is logged while there is no room is lost; rules, health and metrics are not."""
    with Path("/dev/full").open("wb") as full:
        write(host, "web.yaml", WEB)
        process = host.start(NFTABLES, "--v=4", stderr=full.fileno())
        until_programmed(host, "10.96.0.10")
        write(host, "bad.yaml", "{kind: Service, metadata: {name: bad}}\n")
        write(host, "web.yaml", moved("10.96.0.11"))
        until_programmed(host, "10.96.0.11")
        assert host.get(HEALTH, "/livez")[0] == 200
        assert host.get(METRICS, "/metrics")[0] == 200
        assert host.stop(process) == 0


def test_a_memory_limit_that_is_reached_is_survived(host: Host) -> None:
    """A file too large to be taken in is left; others are served, and it is when there is room."""
    write(host, "web.yaml", WEB)
    process = host.start(NFTABLES)
    until_programmed(host, "10.96.0.10")
    used = int((Path(f"/proc/{process.pid}/statm").read_text()).split()[0])
    room = used * os.sysconf("SC_PAGE_SIZE") + (8 << 20)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    large = "".join(
        WEB.replace("web", f"web-{n}").replace("0.10", f"{n // 250 + 1}.{n % 250 + 1}")
        for n in range(20_000)
    )
    write(host, "large.yaml", large)
    host.until(lambda: "memory" in host.log.lower(), "an error about memory")
    write(host, "web.yaml", moved("10.96.0.11"))
    until_programmed(host, "10.96.0.11")
    assert host.get(HEALTH, "/livez")[0] == 200
    resource.prlimit(process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    write(host, "large.yaml", large + "\n")
    until_programmed(host, "10.96.80.250")
    assert host.stop(process) == 0


DNS = WEB.replace("port: 80}", "port: 53, protocol: UDP}").replace(
    "port: 8080}", "port: 8080, protocol: UDP}"
)


def test_a_full_connection_tracking_table(host: Host) -> None:
    """Rules change, and what becomes stale makes room."""
    most = int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text())
    if most > 300_000:
        pytest.skip(f"filling a table of {most} flows takes too long")
    write(host, "dns.yaml", DNS)
    process = host.start(NFTABLES)
    until_programmed(host, "10.96.0.10")
    vip, old = packed("10.96.0.10", 53), packed("10.244.1.5", 8080)
    with host.network.inside():
        insert_flows(
            NewFlow(packed("172.16.0.1", 1000 + n), vip, old, status=ASSURED | REPLIED)
            for n in range(1000)
        )
        with pytest.raises(KernelError):
            insert_flows(_fillers())
    write(host, "dns.yaml", DNS.replace("10.244.1.5", "10.244.1.6"))

    def is_gone() -> bool:
        with host.network.inside():
            return (vip, old) not in listed(destination=vip)

    host.until(is_gone, "deletion of the stale flows")
    with host.network.inside():
        assert insert_flows(_fillers(count=500, first=250)) == 500
    assert host.stop(process) == 0
    assert "Traceback" not in host.log


def _fillers(count: int = 1 << 20, first: int = 0) -> Iterator[NewFlow]:
    """Flows of no concern, which the kernel does not drop for others."""
    there = packed("198.51.100.1", 53)
    for n in range(count):
        client = packed(f"172.{17 + first // 50}.{n // 50_000}.{first}", 10_000 + n % 50_000)
        yield NewFlow(client, there, there, status=ASSURED | REPLIED, seconds=3600)
