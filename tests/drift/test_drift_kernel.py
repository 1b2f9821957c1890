"""`kpctl drift` beside a running proxy: what is right, what is broken, who did it, who else is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.host import Host
from tests.support.objects_text import at, service_text, slice_text
from tests.support.served import write

from kpctl.drift.compare import FamilyDrift, Shown, drift_of, look
from kpctl.drift.read import drift_of_bundle
from kpctl.snapshot.bundle import read_bundle, write_bundle
from kpctl.snapshot.kernel import read_kernel
from kpctl.snapshot.live import read_live
from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.ids import Family

pytestmark = pytest.mark.kernel

DUAL = (
    service_text(
        ("10.96.0.10", "fd00:96::a"),
        ports="{name: http, port: 80, nodePort: 30080}",
        spec="type: NodePort",
    )
    + slice_text(at("10.244.1.5", "worker-a"))
    + slice_text(at("fd00:244::5", "worker-a"), number=2)
    + service_text("10.96.0.11", "other")
)
MODES = ("nftables", "iptables", "userspace")
families = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
TABLES = {Family.IPV4: "ip", Family.IPV6: "ip6"}
ADDRESSES = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00:96::a"}


def serve(host: Host, mode: str) -> subprocess.Popen[bytes]:
    write(host, "web.yaml", DUAL)
    process = host.start(f"--proxy-mode={mode}", "--iptables-variant=nft", "-v=3")
    until_settled(host)
    return process


def until_settled(host: Host) -> None:
    """Wait until the first round of both families is over, not just some of its writes."""
    host.until(lambda: '"Serving"' in host.log, "the first sync of both families")
    host.until(host.socket.exists, "the socket")


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A proxy that notices and repairs nothing."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def drift(host: Host, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return host.run("kpctl", "drift", "--socket", host.socket, *words)


def from_files(host: Host, mode: str, *words: str) -> subprocess.CompletedProcess[str]:
    given = ("--mode", mode, "--node", "worker-a", *words)
    return host.run("kpctl", "drift", "-f", host.manifests, *given)


def compared(host: Host, snapshot: Snapshot) -> dict[Family, FamilyDrift]:
    """One look, in the host's namespace."""
    with host.network.inside():
        looks = look(snapshot, asyncio.run(read_kernel(snapshot.backends)))
    return {found.family: found for found in drift_of(snapshot, looks)}


def damage(host: Host, mode: str, family: Family) -> None:
    """Remove one thing of the Service behind the proxy's back."""
    table, address = TABLES[family], ADDRESSES[family]
    if mode == "nftables":
        element = f"{{ {address} . tcp . 80 }}"
        done = host.run("nft", "delete", "element", table, "kube-proxy", "service-ips", element)
    else:
        tool = "iptables-nft" if family is Family.IPV4 else "ip6tables-nft"
        rules = host.run(f"{tool}-save", "-t", "nat").stdout.splitlines()
        rule = next(r for r in rules if address in r and r.startswith("-A KUBE-"))
        done = host.run("sh", "-c", f"{tool} -t nat -D {rule.removeprefix('-A ')}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_that_is_as_wanted_is_no_drift(host: Host, mode: str) -> None:
    serve(host, mode)
    found = drift(host)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{mode} mode: the kernel is as wanted (IPv4 " in found.stdout
    assert all(len(line) < 120 for line in found.stdout.splitlines())


@families
@pytest.mark.parametrize("mode", MODES)
def test_what_is_removed_behind_the_proxys_back_is_shown(
    host: Host, mode: str, family: Family
) -> None:
    """Of the family in which it is missing, and of no other."""
    process = serve(host, mode)
    snapshot = read_live(host.socket)
    with stopped(process):
        assert not any(found.differing for found in compared(host, snapshot).values())
        damage(host, mode, family)
        found = compared(host, snapshot)
        (edit,) = found[family].edits
        assert edit.owner == "shop/web:http/TCP" and not edit.removed
        assert ADDRESSES[family] in "".join(edit.added)
        assert not any(other.differing for f, other in found.items() if f is not family)


@families
def test_drift_of_iptables_legacy_is_shown(host: Host, family: Family) -> None:
    write(host, "web.yaml", DUAL)
    process = host.start("--proxy-mode=iptables", "--iptables-variant=legacy")
    tool = "iptables-legacy" if family is Family.IPV4 else "ip6tables-legacy"
    save = (f"{tool}-save", "-t", "nat")
    until_settled(host)
    assert ADDRESSES[family] in host.run(*save).stdout
    snapshot = read_live(host.socket)
    with stopped(process):
        assert not compared(host, snapshot)[family].differing
        # Every iptables-legacy of this machine has the same lock.
        assert host.run(tool, "-w", "-t", "nat", "-F", "KUBE-SERVICES").returncode == 0
        edits = compared(host, snapshot)[family].edits
        assert {edit.owner for edit in edits} == {"shop/web:http/TCP", "for all Services"}


@pytest.mark.parametrize(
    ("mode", "chain"), [("iptables", "KUBE-SERVICES"), ("userspace", "KUBE-PORTALS-CONTAINER")]
)
def test_a_foreign_rule_in_a_chain_of_ours_is_shown(host: Host, mode: str, chain: str) -> None:
    """And nothing else: the rules around it are as wanted."""
    process = serve(host, mode)
    snapshot = read_live(host.socket)
    with stopped(process):
        host.run("iptables-nft", "-t", "nat", "-I", chain, "-s", "192.0.2.9", "-j", "RETURN")
        found = compared(host, snapshot)[Family.IPV4]
        lines = [line for edit in found.edits for line in edit.lines()]
        text = f"- -t nat -A {chain} -s 192.0.2.9/32 -j RETURN"
        assert (lines[0], found.differing) == (text, 1)


def test_node_ports_on_localhost_are_compared_by_what_listens(host: Host) -> None:
    write(host, "web.yaml", DUAL)
    process = host.start("--proxy-mode=nftables", "--nftables-localhost-nodeports=true")
    host.until(lambda: all(at in host.tables() for at in ADDRESSES.values()), "programming")
    host.until(host.socket.exists, "the socket")
    snapshot = read_live(host.socket)
    host.until(lambda: not any(f.differing for f in compared(host, snapshot).values()), "listening")
    process.kill()
    process.wait()
    found = compared(host, snapshot)
    assert found[Family.IPV4].edits[0].added == ("a socket on 127.0.0.1:30080/TCP",)
    assert found[Family.IPV6].edits[0].added == ("a socket on [::1]:30080/TCP",)


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_the_exit_code_says_that_the_kernel_differs(host: Host, mode: str) -> None:
    """Against files, as there is no proxy that would answer."""
    process = serve(host, mode)
    with stopped(process):
        assert from_files(host, mode).returncode == 0
        damage(host, mode, Family.IPV4)
        found = from_files(host, mode)
        assert found.returncode == 1, found.stderr
        assert "@@ shop/web:http/TCP @@\n+ " in found.stdout
        document = json.loads(from_files(host, mode, "-o", "json").stdout)
        assert document["differs"] is True
        assert document["families"][0]["differences"][0]["owner"] == "shop/web:http/TCP"


@contextmanager
def broken_again_and_again(host: Host, mode: str) -> Iterator[None]:
    """Another process removes something of ours whenever the proxy has put it right."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.01):
            with contextlib.suppress(AssertionError, StopIteration):
                damage(host, mode, Family.IPV4)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("mode", MODES)
def test_a_live_proxy_that_is_kept_from_its_rules_shows_drift(host: Host, mode: str) -> None:
    """It repairs more and more seldom then, so that what is missing stays missing for a while."""
    serve(host, mode)
    with broken_again_and_again(host, mode):
        host.until(lambda: drift(host).returncode == 1, "exit code 1")
        found = json.loads(drift(host, "-o", "json").stdout)
    assert found["repairs"], "and the history shows that it is not for the first time"
    host.until(lambda: drift(host).returncode == 0, "the last repair")


@families
@pytest.mark.parametrize("mode", MODES)
def test_a_bundle_says_what_a_proxy_wanted_that_hangs(
    host: Host, tmp_path: Path, mode: str, family: Family
) -> None:
    process, path = serve(host, mode), tmp_path / "bundle"
    assert host.run("kpctl", "bundle", "--socket", host.socket, path).returncode == 0
    with stopped(process):
        since = ("kpctl", "drift", "--bundle", path, "--now")
        assert host.run(*since).returncode == 0
        damage(host, mode, family)
        found = host.run(*since)
        assert found.returncode == 1, found.stderr
        assert "@@ shop/web:http/TCP @@\n+ " in found.stdout
        assert host.run("kpctl", "drift", "--bundle", path).returncode == 0, "as it was then"
        for asked, code in (("shop/web", 1), ("shop/other", 0), ("shop/none", 7), ("99999", 2)):
            assert host.run("kpctl", "drift", asked, *since[2:]).returncode == code, asked


def test_a_listener_that_is_gone_is_shown(host: Host) -> None:
    """Rules that lead to a port where nothing listens are not as wanted."""
    process = serve(host, "userspace")
    snapshot = read_live(host.socket)
    process.kill()
    process.wait()
    # The carrier has the socket as well, and ends when it notices.
    host.until(lambda: compared(host, snapshot)[Family.IPV4].differing, "the end of the carrier")
    found = compared(host, snapshot)[Family.IPV4]
    lines = [line for edit in found.edits for line in edit.added]
    assert lines and all(line.startswith("a socket on 0.0.0.0:") for line in lines)


def test_a_proxy_that_does_not_answer_is_another_exit_code(host: Host) -> None:
    found = drift(host)
    assert found.returncode == 3
    assert "no kube-proxy answers" in found.stderr


def test_files_say_nothing_about_userspace_mode(host: Host) -> None:
    write(host, "web.yaml", DUAL)
    found = from_files(host, "userspace")
    assert found.returncode == 3 and "ask the proxy" in found.stderr


def events(host: Host) -> list[str]:
    return [line for line in host.log.splitlines() if "Event occurred" in line]


@families
@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_the_history_names_who_made_a_repair_necessary(
    host: Host, mode: str, family: Family
) -> None:
    """So does the log, with the line of the event."""
    serve(host, mode)
    chain = ("kube-proxy", "services") if mode == "nftables" else ("nat", "KUBE-SERVICES")
    with host.network.inside():
        culprit = subprocess.Popen(["nft", "flush", "chain", TABLES[family], *chain])
    culprit.wait()
    who = f"by nft (process {culprit.pid})"
    host.until(lambda: "Another process changed our rules; repaired" in host.log, "the repair")
    found = drift(host)
    assert found.returncode == 0, found.stdout
    assert who in found.stdout and family.value in found.stdout
    host.until(lambda: any(who in event for event in events(host)), "the event")
    (repair,) = json.loads(drift(host, "-o", "json").stdout)["repairs"]
    assert repair["cause"].endswith(who) and repair["lines"]


@pytest.mark.parametrize("mode", MODES)
def test_a_bundle_holds_the_kernel(host: Host, tmp_path: Path, mode: str) -> None:
    """What is compared offline is what was there when it was written."""
    process = serve(host, mode)
    with_it = host.run("kpctl", "bundle", "--socket", host.socket, tmp_path / "with")
    assert with_it.returncode == 0, with_it.stderr
    with host.network.inside():
        write_bundle(read_live(host.socket), tmp_path / "without")
    host.stop(process)
    right = host.run("kpctl", "drift", "--bundle", tmp_path / "with")
    assert right.returncode == 0 and "the kernel is as wanted" in right.stdout, right
    without = host.run("kpctl", "drift", "--bundle", tmp_path / "without")
    assert without.returncode == 0 and "what the kernel held is not in it" in without.stdout
    snapshot = read_bundle(tmp_path / "with")
    assert snapshot.kernel is not None
    held = snapshot.kernel[Family.IPV4]
    assert isinstance(held, dict)
    held.popitem()
    assert drift_of_bundle(snapshot, None, Shown()).differs


def test_others_on_the_same_hooks_are_listed(host: Host) -> None:
    serve(host, "nftables")
    early = "add chain inet firewall early { type filter hook prerouting priority -300; }"
    assert host.run("nft", f"add table inet firewall; {early}").returncode == 0
    assert host.run("iptables-nft", "-I", "FORWARD", "-j", "DROP").returncode == 0
    found = drift(host, "-o", "wide").stdout
    assert "table inet firewall, chain early (filter)" in found
    assert "table ip filter, chain FORWARD (filter)" in found
    assert "table ip kube-proxy" not in found


def test_rules_before_our_jumps_are_listed(host: Host) -> None:
    serve(host, "iptables")
    host.run("iptables-nft", "-I", "FORWARD", "-s", "192.0.2.1", "-j", "DROP")
    host.run("iptables-nft", "-A", "FORWARD", "-s", "192.0.2.2", "-j", "DROP")
    found = drift(host, "-o", "wide").stdout
    assert "iptables -t filter -A FORWARD -s 192.0.2.1/32 -j DROP" in found
    assert "192.0.2.2" not in found and "chain FORWARD" not in found
