"""Namespaces come, carry packets, and always go."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.support.host import restore_signals
from tests.support.waiting import LIMIT_SECONDS, wait_until

from kpctl.lab.echo import EchoServers, Listening
from kpctl.lab.namespaces import Namespaces, sweep_stale
from kpctl.lab.probe import Connection, Fate, Prober, Target
from kpctl.lab.reaper import NAMED, lab_namespaces
from kpctl.lab.sockets import bound_socket
from kpctl.lab.topology import Topology, parse_topology
from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family, Protocol

pytestmark = pytest.mark.kernel

OWNER = """
import sys, time
from kpctl.lab.namespaces import Namespaces
from kpctl.lab.topology import parse_topology
lab = Namespaces(parse_topology(sys.argv[1]))
print(lab.name(""), lab._reaper.pid, flush=True)
time.sleep(600)
"""


def start_owner() -> tuple[subprocess.Popen[str], str, int]:
    """Another process with a lab of its own: it, its prefix, its reaper."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, "nodes: {node-a: {pods: [web]}}"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=restore_signals,
    )
    assert owner.stdout is not None
    prefix, reaper = owner.stdout.readline().split()
    return owner, prefix, int(reaper)


def end(owner: subprocess.Popen[str], number: int) -> None:
    owner.send_signal(number)
    owner.wait()
    assert owner.stdout is not None
    owner.stdout.close()


def wait_until_gone(prefix: str) -> None:
    wait_until(lambda: not lab_namespaces(prefix), lambda: lab_namespaces(prefix))


def links_here() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def test_the_callers_namespace_is_left_alone(topology: Topology) -> None:
    """Neither links, nor forwarding, nor the namespace itself change for the caller."""
    forward = Path("/proc/sys/net/ipv4/ip_forward")

    def here() -> tuple[Path, set[str], str]:
        return Path("/proc/thread-self/ns/net").readlink(), links_here(), forward.read_text()

    before = here()
    lab = Namespaces(topology)
    during = here()
    with pytest.raises(KeyError), lab.inside("web-1"):
        raise KeyError
    after_error = here()
    lab.close()
    assert before == during == after_error == here()


def test_close_removes_all_and_may_be_repeated(topology: Topology) -> None:
    lab = Namespaces(topology)
    prefix = lab.name("")
    assert len(lab_namespaces(prefix)) == len(topology.names)
    lab.close()
    lab.close()
    assert lab_namespaces(prefix) == []


def test_a_failed_command_says_which(namespaces: Namespaces) -> None:
    with pytest.raises(KernelError, match=r"ip -n .*node-a.*failed"):
        namespaces.ip("node-a", ["link set nothing up"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_lab_goes_with_its_owner(number: int) -> None:
    """Ctrl-C, kill, even kill -9: the reaper notices and removes."""
    owner, prefix, _ = start_owner()
    assert lab_namespaces(prefix)
    end(owner, number)
    wait_until_gone(prefix)


def test_processes_in_the_lab_go_with_it() -> None:
    owner, prefix, _ = start_owner()
    sleeper = subprocess.Popen(["ip", "netns", "exec", f"{prefix}web", "sleep", "600"])
    # Before it has entered the namespace it is no process of the lab.
    name = Path(f"/proc/{sleeper.pid}/comm")
    wait_until(lambda: name.read_text() == "sleep\n")
    end(owner, signal.SIGKILL)
    assert sleeper.wait(LIMIT_SECONDS) != 0


def test_the_next_lab_sweeps_what_a_crash_left() -> None:
    """Owner and reaper killed together: the next start removes it, but no living lab."""
    crashed, stale, reaper = start_owner()
    living, alive, _ = start_owner()
    os.kill(reaper, signal.SIGKILL)
    end(crashed, signal.SIGKILL)
    # The killed reaper may still be dying; and another lab on this machine may be quicker.
    wait_until(lambda: sweep_stale() or not lab_namespaces(stale))
    assert lab_namespaces(alive)
    end(living, signal.SIGTERM)
    wait_until_gone(alive)


def test_set_up_takes_seconds_not_minutes(topology: Topology) -> None:
    """Of processors, its tools included: how long that is depends on the machine's other work."""
    before = sum(os.times()[:4])
    lab = Namespaces(topology)
    spent = sum(os.times()[:4]) - before
    lab.close()
    assert spent < 5
    assert not any(path.name == lab.name("web-1") for path in NAMED.iterdir())


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("protocol", Protocol)
async def test_echo_says_who_it_is_and_whom_it_saw(
    namespaces: Namespaces, topology: Topology, family: Family, protocol: Protocol
) -> None:
    echo, prober = EchoServers(namespaces), Prober(namespaces)
    address = topology.host("web-3").addresses.of(family)
    echo.listen(Listening("web-3", address, family, protocol, 8080))
    for source in ("web-1", "outside"):
        target = Target(source, address, 8080, family, protocol, source_port=40123)
        outcome = await prober.probe(target, timeout_seconds=LIMIT_SECONDS)
        assert outcome.fate is Fate.ANSWERED
        assert outcome.answer is not None
        assert outcome.answer.host == "web-3"
        assert outcome.answer.source == topology.host(source).addresses.of(family)
        assert outcome.answer.source_port == 40123
    echo.close()
    prober.close()


@pytest.mark.parametrize("family", Family)
async def test_the_fates_of_unanswered_packets_differ(
    namespaces: Namespaces, topology: Topology, family: Family
) -> None:
    """A reset, an ICMP port unreachable, no route, and silence."""
    prober = Prober(namespaces)
    version = "ip" if family is Family.IPV4 else "ip6"
    rules = (
        f"add table {version} t; "
        f"add chain {version} t f {{ type filter hook forward priority 0; }}; "
        f"add rule {version} t f tcp dport 81 reject; "
        f"add rule {version} t f meta l4proto {{ 6, 17, 132 }} th dport 82 drop"
    )
    subprocess.run(namespaces.command("node-a", ["nft", rules]), check=True)
    here = topology.host("web-2").addresses.of(family)
    nowhere = "192.168.1.1" if family is Family.IPV4 else "fd01::1"

    async def fate(
        address: str, port: int, protocol: Protocol = Protocol.TCP, seconds: float = LIMIT_SECONDS
    ) -> Fate:
        target = Target("web-1", address, port, family, protocol)
        return (await prober.probe(target, timeout_seconds=seconds)).fate

    assert await fate(here, 80) is Fate.REFUSED
    assert await fate(here, 81) is Fate.REJECTED
    assert await fate(here, 80, Protocol.UDP) is Fate.REJECTED
    assert await fate(nowhere, 80) is Fate.UNREACHABLE
    for protocol in Protocol:
        assert await fate(here, 82, protocol, seconds=0.3) is Fate.DROPPED
    prober.close()


async def test_a_stopped_echo_breaks_its_connections(
    namespaces: Namespaces, topology: Topology
) -> None:
    echo, prober = EchoServers(namespaces), Prober(namespaces)
    address = topology.host("web-1").addresses.ipv4
    listening = Listening("web-1", address, Family.IPV4, Protocol.TCP, 8080)
    echo.listen(listening)
    echo.listen(listening)
    target = Target("outside", address, 8080, Family.IPV4, Protocol.TCP)
    connection = await prober.connect(target, timeout_seconds=LIMIT_SECONDS)
    assert isinstance(connection, Connection)
    ask = partial(connection.ask, timeout_seconds=LIMIT_SECONDS)
    assert (await ask()).fate is Fate.ANSWERED
    assert (await ask()).fate is Fate.ANSWERED
    echo.stop(listening)
    assert (await ask()).fate is Fate.BROKEN
    refused = await prober.probe(target, timeout_seconds=LIMIT_SECONDS)
    assert refused.fate is Fate.REFUSED
    connection.close()
    echo.close()
    prober.close()


def test_without_root_the_lab_says_what_it_needs() -> None:
    text = (
        "import os; from kpctl.lab.namespaces import Namespaces;"
        "from kpctl.lab.topology import parse_topology; lab = parse_topology('nodes: {a: {}}');"
        "os.seteuid(65534); Namespaces(lab)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert "needs root: try again with sudo" in done.stderr


@pytest.mark.parametrize("family", Family)
async def test_three_nodes_reach_each_others_pods(family: Family) -> None:
    """Pods, nodes and clients reach every pod, and are seen as who they are."""
    text = "nodes: {a: {pods: [x]}, b: {pods: [y]}, c: {pods: [z]}}\nclients: {out: c}"
    topology = parse_topology(text)
    lab = Namespaces(topology)
    echo, prober = EchoServers(lab), Prober(lab)
    try:
        for pod in topology.pods:
            address = pod.addresses.of(family)
            echo.listen(Listening(pod.name, address, family, Protocol.UDP, 7))
        for source in ("x", "b", "out"):
            for pod in topology.pods:
                target = Target(source, pod.addresses.of(family), 7, family, Protocol.UDP)
                found = await prober.probe(target, timeout_seconds=LIMIT_SECONDS)
                answer = found.answer
                assert answer is not None
                assert (answer.host, topology.owner(answer.source)) == (pod.name, source)
    finally:
        echo.close()
        prober.close()
        lab.close()


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP])
def test_probes_under_way_never_share_a_source_port(
    namespaces: Namespaces, protocol: Protocol
) -> None:
    """Two sockets on one port would take each other's answers."""
    made = [bound_socket(namespaces, "web-1", Family.IPV4, protocol) for _ in range(600)]
    ports = {sock.getsockname()[1] for sock in made}
    for sock in made:
        sock.close()
    assert len(ports) == len(made)
