"""`kpctl apply` and `cleanup` with a kernel: what they refuse, ask, show and leave behind."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from tests.support.host import PROGRAMS, Host
from tests.support.served import BAD, BALANCED, WEB, until_programmed, write
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.kernel

MODES = ("nftables", "iptables")
SERVED, REST = ("10.96.0.10", "10.96.0.20")


def apply(host: Host, mode: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return host.run("kpctl", "apply", "--mode", mode, "--node", "worker-a", *words)


def rules(host: Host) -> str:
    """Everything in the kernel, without counters."""
    return host.run("nft", "list", "ruleset").stdout


@pytest.fixture
def both(host: Host) -> Path:
    """A file with both Services. Another file has one of them."""
    write(host, "both.yaml", WEB + BALANCED)
    return host.manifests / "both.yaml"


@pytest.fixture
def one(host: Host) -> Path:
    write(host, "one.yaml", WEB)
    return host.manifests / "one.yaml"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "text", [BAD, ": : [", "", f"{WEB}---\n{BAD}", WEB.replace("10.96.0.10", "10.96.0.300")]
)
def test_apply_refuses_everything_if_one_object_is_rejected(
    host: Host, both: Path, mode: str, text: str
) -> None:
    assert apply(host, mode, both).returncode == 0
    before = rules(host)
    write(host, "broken.yaml", text)
    for file in (host.manifests / "broken.yaml", both):
        refused = host.run("kpctl", "apply", "--mode", mode, file, host.manifests / "broken.yaml")
        assert refused.returncode == 3, refused.stderr
        assert "rejected; nothing was changed" in refused.stderr
    assert rules(host) == before


@pytest.mark.parametrize("mode", MODES)
def test_apply_removes_no_service_without_agreement(
    host: Host, both: Path, one: Path, mode: str
) -> None:
    assert apply(host, mode, both).returncode == 0
    before = rules(host)
    refused = apply(host, mode, one)
    assert refused.returncode == 4
    assert "In the kernel, but not in these files: shop/lb." in refused.stderr
    assert "--prune" in refused.stderr
    assert rules(host) == before
    assert apply(host, mode, one, "--prune").returncode == 0
    assert SERVED in rules(host) and REST not in rules(host)


def test_an_endpoint_or_a_port_less_needs_no_agreement(host: Host, both: Path) -> None:
    for mode in MODES:
        assert apply(host, mode, both).returncode == 0
        write(host, "less.yaml", (WEB + BALANCED).replace("10.244.1.6", "10.244.1.7"))
        done = apply(host, mode, host.manifests / "less.yaml")
        assert done.returncode == 0, done.stderr
        assert "10.244.1.7" in rules(host)


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 4), (b"\n", 4)])
def test_in_a_terminal_apply_asks(
    host: Host, both: Path, one: Path, answer: bytes, code: int
) -> None:
    assert apply(host, "nftables", both).returncode == 0
    ours, its = pty.openpty()
    words = ["apply", "--mode", "nftables", "--node", "worker-a", str(one)]
    with host.network.inside():
        asking = subprocess.Popen(
            [PROGRAMS / "kpctl", *words],
            stdin=its,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    os.write(ours, answer)
    output, _ = asking.communicate(timeout=LIMIT_SECONDS)
    os.close(ours)
    os.close(its)
    assert asking.returncode == code and b"Remove them?" in output
    assert (REST in rules(host)) is (code == 4)


@pytest.mark.parametrize("mode", MODES)
def test_a_dry_run_prints_a_diff_and_changes_nothing(
    host: Host, both: Path, one: Path, mode: str
) -> None:
    empty = rules(host)
    first = apply(host, mode, both, "--dry-run")
    assert first.returncode == 0 and rules(host) == empty
    assert "+++ IPv4, after apply" in first.stdout and "@@ shop/lb:http" in first.stdout
    assert all(line.startswith(("+", "---", "@@")) for line in first.stdout.splitlines())
    assert apply(host, mode, both).returncode == 0
    assert apply(host, mode, both, "--dry-run").stdout == "Nothing would change.\n"
    before = rules(host)
    less = apply(host, mode, one, "--dry-run")
    assert less.returncode == 0 and rules(host) == before
    assert "needs --prune, because it removes shop/lb." in less.stderr
    assert any(line.startswith("- ") and REST in line for line in less.stdout.splitlines())


def test_userspace_mode_cannot_be_applied(host: Host, one: Path) -> None:
    before = rules(host)
    refused = apply(host, "userspace", one)
    assert refused.returncode == 2
    assert "sockets of a process" in refused.stderr and "--manifests" in refused.stderr
    assert rules(host) == before


@pytest.mark.parametrize("mode", MODES)
def test_apply_notices_a_running_daemon(host: Host, tmp_path: Path, mode: str) -> None:
    """Also one of another mode. Afterwards it is gone, however it ended."""
    write(host, "web.yaml", WEB)
    process = host.start("--proxy-mode=nftables")
    host.until(lambda: '"Serving"' in host.log, "the first sync of both families")
    other = tmp_path / "other.yaml"
    other.write_text(BALANCED)
    before = rules(host)
    refused = apply(host, mode, other)
    assert refused.returncode == 4
    assert f"kube-proxy in nftables mode (process {process.pid})" in refused.stderr
    shown = apply(host, mode, other, "--dry-run")
    assert shown.returncode == 0 and "is running in this network namespace" in shown.stderr
    assert rules(host) == before
    process.kill()
    process.wait()
    assert apply(host, mode, other, "--prune").returncode == 0


def test_another_kube_proxy_is_found_by_its_name(host: Host, one: Path, tmp_path: Path) -> None:
    """Upstream's announces itself to no one."""
    program = tmp_path / "kube-proxy"
    program.symlink_to("/bin/sleep")
    with host.network.inside():
        process = subprocess.Popen([program, "600"])
    elsewhere = subprocess.Popen([program, "600"])
    try:
        refused = apply(host, "nftables", one)
        assert refused.returncode == 4 and f"(process {process.pid})" in refused.stderr
        assert f"(process {elsewhere.pid})" not in refused.stderr
        forced = apply(host, "nftables", one, "--force")
        assert forced.returncode == 0 and "is running" in forced.stderr
    finally:
        for started in (process, elsewhere):
            started.kill()
            started.wait()


def test_cleanup_names_what_stays_and_why(host: Host, one: Path) -> None:
    assert apply(host, "iptables", one).returncode == 0
    done = host.run("kpctl", "cleanup")
    assert done.returncode == 0, done.stderr
    (stays,) = (line for line in done.stdout.splitlines() if "IPv4 chain KUBE-FIREWALL" in line)
    assert stays.startswith("Stays: ") and "the kubelet uses it too" in stays
    assert "KUBE-SERVICES" not in done.stdout


def test_after_cleaning_one_mode_the_rest_is_named(host: Host, one: Path) -> None:
    assert apply(host, "iptables", one).returncode == 0
    done = host.run("kpctl", "cleanup", "--mode", "nftables")
    assert "KUBE-SERVICES in table nat: it belongs to a mode that was not cleaned" in done.stdout


def with_two_addresses(host: Host, *, has_default_route: bool) -> None:
    """An address that sorts first, and one to which the default route leads."""
    words = [
        "link add v0 type veth peer name v1",
        "address add 10.1.1.1/24 dev v0",
        "address add 192.168.7.5/24 dev v0",
        "link set v0 up",
        "link set v1 up",
        *(["route add default via 192.168.7.1"] if has_default_route else []),
    ]
    for line in words:
        done = host.run("ip", *line.split())
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("has_default_route", "primary"), [(True, "192.168.7.5"), (False, "10.1.1.1")]
)
def test_the_primary_address_of_a_plain_host_is_that_of_its_default_route(
    host: Host, tmp_path: Path, has_default_route: bool, primary: str
) -> None:
    """In what is planned, and in what the daemon serves."""
    with_two_addresses(host, has_default_route=has_default_route)
    balanced = tmp_path / "lb.yaml"
    balanced.write_text(BALANCED)
    plan = host.run("kpctl", "plan", "--mode", "nftables", balanced).stdout
    assert f"NodePort {primary}:30080" in plan
    write(host, "lb.yaml", BALANCED)
    process = host.start("--proxy-mode=nftables")
    until_programmed(host, REST)
    host.until(lambda: '"Serving"' in host.log, "the summary")
    (line,) = (line for line in host.log.splitlines() if '"Serving"' in line)
    assert f'nodePortAddresses=["{primary}","all IPv6 addresses"]' in line
    assert host.stop(process) == 0
