"""`kpctl trace` and a running proxy: what is right, and what another program took away."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from tests.support.host import PROGRAMS, Host
from tests.support.objects_text import service_text, slice_text
from tests.support.served import write

from kpctl.snapshot.live import read_live
from kpctl.snapshot.types import Snapshot
from kpctl.trace.cli import exit_code
from kpctl.trace.question import Answer, Question, answer
from kpctl.trace.subject import parse_destination
from kpctl.trace.text import answer_lines
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import Family

pytestmark = pytest.mark.kernel

MANIFEST = (
    service_text(
        ("10.96.0.10", "fd00:10:96::a"), ports="{name: http, port: 80}, {name: none, port: 81}"
    )
    + slice_text("10.244.1.5", "10.244.1.6")
    + slice_text("fd00:244:1::5", number=2)
)
PATIENCE_SECONDS = 180.0
PLACES = {"IPv4": "10.96.0.10", "IPv6": "[fd00:10:96::a]"}
IPTABLES = {"IPv4": "iptables", "IPv6": "ip6tables"}
NFT = {"IPv4": "ip", "IPv6": "ip6"}
MODES = ["nftables", "iptables", "userspace"]
"""This kernel may have no IPVS: see `test_trace_ipvs`."""


def start(host: Host, mode: str, *flags: str) -> subprocess.Popen[bytes]:
    """A proxy that has programmed everything."""
    write(host, "web.yaml", MANIFEST)
    with host.network.inside():
        for argv in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "add", "uplink", "type", "veth", "peer", "name", "far"],
            ["ip", "address", "add", "192.0.2.10/24", "dev", "uplink"],
            ["ip", "address", "add", "fd00:c0:2::a/64", "dev", "uplink", "nodad"],
            ["ip", "link", "set", "uplink", "up"],
            ["ip", "link", "set", "far", "up"],
            ["ip", "route", "add", "default", "via", "192.0.2.1"],
            ["ip", "route", "add", "default", "via", "fd00:c0:2::1"],
        ):
            subprocess.run(argv, check=True)
    process = host.start(f"--proxy-mode={mode}", *flags)
    until(lambda: all(is_programmed(host, place) for place in PLACES.values()), "programming")
    return process


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.1)


def is_programmed(host: Host, place: str) -> bool:
    try:
        with host.network.inside():
            snapshot = read_live(host.socket)
    except ProxyError:
        return False
    return exit_code(ask(host, snapshot, place).comparison) == 0


def ask(host: Host, snapshot: Snapshot, place: str) -> Answer:
    question = Question("outside", parse_destination(f"{place}:80"))
    with host.network.inside():
        return asyncio.run(answer(snapshot, question, is_live=True))


def trace(
    host: Host, destination: str, *options: str, source: str = "outside"
) -> subprocess.CompletedProcess[str]:
    argv = [str(PROGRAMS / "kpctl"), "trace", source, destination, "--socket", str(host.socket)]
    with host.network.inside():
        return subprocess.run(
            [*argv, *options], capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )


@pytest.mark.parametrize("family", PLACES)
@pytest.mark.parametrize("mode", MODES)
def test_plan_rules_and_kernel_agree(host: Host, mode: str, family: str) -> None:
    start(host, mode)
    place = PLACES[family]
    right = trace(host, f"{place}:80")
    assert right.returncode == 0, right.stdout
    assert "shop/web:http/TCP" in right.stdout
    assert "Verdict: forwarded; plan, rules and kernel agree." in right.stdout
    refused = trace(host, f"{place}:81")
    assert refused.returncode == 3, refused.stdout
    assert "rejected" in refused.stdout

    data = json.loads(trace(host, f"{place}:80", "-o", "json").stdout)
    endpoints = data["kernel"]["endpoints"]
    assert {each["address"] for each in endpoints} == (
        {"10.244.1.5", "10.244.1.6"} if family == "IPv4" else {"fd00:244:1::5"}
    )
    assert sum(each["share"] for each in endpoints) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("family", PLACES)
@pytest.mark.parametrize("mode", MODES)
def test_the_first_place_where_the_kernel_differs_is_named(
    host: Host, mode: str, family: str
) -> None:
    process = start(host, mode)
    with host.network.inside():
        snapshot = read_live(host.socket)
    process.send_signal(signal.SIGSTOP)  # so that it cannot repair
    address = PLACES[family].strip("[]")
    argv, told = removal(mode, family, address)
    done = host.run(argv[0], *argv[1:])
    assert done.returncode == 0, done.stderr

    found = ask(host, snapshot, PLACES[family])
    backend, node = snapshot.backends[Family(family)], snapshot.pipelines[Family(family)].node
    lines = list(answer_lines(found.comparison, found.wanted, backend, node, mode=mode))
    assert exit_code(found.comparison) == 1
    assert any(told in line for line in lines), lines
    assert any("of shop/web:http/TCP" in line for line in lines), lines
    assert any("`kpctl drift` shows all that differs" in line for line in lines)


@pytest.mark.parametrize(
    ("mode", "chain"), [("iptables", "KUBE-SERVICES"), ("userspace", "KUBE-PORTALS-CONTAINER")]
)
def test_a_rule_of_another_program_in_a_chain_of_ours_is_named(
    host: Host, mode: str, chain: str
) -> None:
    process = start(host, mode)
    with host.network.inside():
        snapshot = read_live(host.socket)
    process.send_signal(signal.SIGSTOP)  # so that it cannot repair
    done = host.run("iptables", "-w", "-t", "nat", "-I", chain, "-p", "tcp", "-j", "RETURN")
    assert done.returncode == 0, done.stderr
    found = ask(host, snapshot, PLACES["IPv4"])
    backend, node = snapshot.backends[Family.IPV4], snapshot.pipelines[Family.IPV4].node
    lines = list(answer_lines(found.comparison, found.wanted, backend, node, mode=mode))
    assert exit_code(found.comparison) == 1
    assert found.comparison.kernel and not found.comparison.kernel.problem
    assert any(f"-A {chain} -p tcp -j RETURN" in line for line in lines), lines


def removal(mode: str, family: str, address: str) -> tuple[list[str], str]:
    """A command that takes away what leads to the Service, and the words about it."""
    if mode == "nftables":
        element = f"{address} . tcp . 80"
        argv = ["nft", "delete", "element", NFT[family], "kube-proxy", "service-ips"]
        return [*argv, f"{{ {element} }}"], f"the kernel has no element {element} in service-ips"
    chain = "KUBE-SERVICES" if mode == "iptables" else "KUBE-PORTALS-CONTAINER"
    argv = [IPTABLES[family], "-w", "-t", "nat", "-F", chain]
    return argv, f"the kernel has no rules in chain {chain} of table nat"


VARIANTS = [("nftables", ""), ("iptables", "nft"), ("iptables", "legacy")]


@pytest.mark.parametrize("family", PLACES)
@pytest.mark.parametrize(("mode", "variant"), VARIANTS)
def test_a_real_connection_is_followed_through_the_kernel(
    host: Host, mode: str, variant: str, family: str
) -> None:
    flags = [f"--iptables-variant={variant}"] if variant else []
    start(host, mode, *flags)
    place = f"{PLACES[family]}:80"
    done = trace(host, place, "--live", "--send", source="node")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"A new connection to {place}/TCP, which is shop/web:http/TCP" in done.stdout
    assert ":8080; as planned." in done.stdout

    data = json.loads(trace(host, place, "--live", "--send", "-o", "json", source="node").stdout)
    chains = {step["chain"] for step in data["steps"]}
    assert chains >= ({"nat-output", "services"} if not variant else {"OUTPUT", "KUBE-SERVICES"})
    assert data["reached"]["port"] == 8080

    refused = trace(host, f"{PLACES[family]}:81", "--live", "--send", source="node")
    assert refused.returncode == 3, refused.stdout + refused.stderr
    assert_no_traces(host)


def test_a_connection_that_never_comes_is_an_error(host: Host) -> None:
    start(host, "nftables")
    done = trace(host, "10.96.0.10:80", "--live", "--timeout", "1", source="10.9.9.9")
    assert done.returncode == 5
    assert "no new connection of this kind met a rule within 1 s" in done.stderr
    assert_no_traces(host)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_trace_leaves_nothing(host: Host, number: signal.Signals) -> None:
    start(host, "nftables")
    argv = [str(PROGRAMS / "kpctl"), "trace", "10.9.9.9", "10.96.0.10:80", "--live"]
    with host.network.inside():
        process = subprocess.Popen([*argv, "--socket", str(host.socket)], stderr=subprocess.DEVNULL)
    until(lambda: "kpctl-trace" in host.tables(), "marking")
    process.send_signal(number)
    process.wait(PATIENCE_SECONDS)
    assert_no_traces(host)


@pytest.mark.parametrize("family", PLACES)
def test_what_a_killed_command_leaves_is_put_back(host: Host, family: str) -> None:
    """Legacy iptables has a setting and rules for this, which outlive the process."""
    start(host, "iptables", "--iptables-variant=legacy")
    log = f"/proc/sys/net/netfilter/nf_log/{Family(family).af}"
    save = (f"{IPTABLES[family]}-legacy-save", "-t", "raw")
    before = host.run("cat", log).stdout
    argv = ["kpctl", "trace", "outside", f"{PLACES[family]}:80", "--live"]
    with host.network.inside():
        following = subprocess.Popen([PROGRAMS / argv[0], *argv[1:], "--socket", host.socket])
    until(lambda: host.run(*save).stdout.count("-j TRACE") == 2, "marking")
    assert host.run("cat", log).stdout == "nfnetlink_log\n"
    following.kill()
    following.wait()
    until(lambda: host.run("cat", log).stdout == before, "putting the log back")
    assert_no_traces(host)


def assert_no_traces(host: Host) -> None:
    assert "kpctl-trace" not in host.tables()
    for tool in IPTABLES.values():
        assert "TRACE" not in host.run(f"{tool}-legacy-save").stdout
