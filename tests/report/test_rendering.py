"""What `kpctl render` prints can be loaded, by family and by Service."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.support.host import Host
from tests.support.served import WEB, write
from tests.support.waiting import FOR_THE_LOCK, LIMIT_SECONDS

from kubeproxy.modes.iptables.sinks.counters import ensure_counters
from kubeproxy.modes.registry import mode_names

Run = Callable[[Sequence[str]], CompletedProcess[str]]

CLUSTER = str(Path(__file__).parent.parent / "golden" / "plan" / "cluster.yaml")
RESTORE = {"ipv4": "iptables-restore", "ipv6": "ip6tables-restore"}


def render(run: Run, mode: str, *argv: str) -> str:
    done = run(["kpctl", "render", "--mode", mode, CLUSTER, *argv])
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(host: Host, text: str, *argv: str) -> None:
    with host.network.inside():
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
    assert done.returncode == 0, done.stderr


def count(host: Host) -> None:
    """Create the accounting objects with which iptables mode counts, as the daemon does."""
    with host.network.inside():
        ensure_counters()


@pytest.mark.parametrize("mode", mode_names())
def test_each_family_has_a_heading_and_can_be_had_alone(run: Run, mode: str) -> None:
    four, six = render(run, mode, "--family", "ipv4"), render(run, mode, "--family", "ipv6")
    assert render(run, mode) == f"{four}\n{six}"
    assert four.startswith(f"# IPv4, {mode} mode, node worker-a")
    assert "fd00:96::53" in six and "fd00:96::53" not in four


@pytest.mark.parametrize("mode", mode_names())
def test_one_service_is_shown_without_the_others_and_the_scaffold(run: Run, mode: str) -> None:
    alone = render(run, mode, "--service", "shop/web", "--no-scaffold")
    assert "10.96.0.10" in alone
    for other in ("10.96.0.53", ":KUBE-POSTROUTING", "hook postrouting", ":KUBE-MARK-MASQ"):
        assert other not in alone
    assert "10.96.0.53" not in render(run, mode, "--service", "shop/web")


def test_a_service_that_is_not_there_is_an_error(run: Run) -> None:
    argv = ["kpctl", "render", "--mode", "nftables", CLUSTER, "--service"]
    assert run([*argv, "shop/none"]).returncode == 7
    assert run([*argv, "web"]).returncode == 2


def test_manifests_need_a_mode(run: Run) -> None:
    done = run(["kpctl", "render", CLUSTER])
    assert done.returncode == 2 and "--mode" in done.stderr


def test_manifests_and_a_bundle_are_not_mixed(run: Run) -> None:
    done = run(["kpctl", "render", "--mode", "nftables", CLUSTER, "--bundle", CLUSTER])
    assert done.returncode == 2 and "--bundle" in done.stderr


@pytest.mark.kernel
def test_nft_loads_both_families_at_once(host: Host, run: Run) -> None:
    load(host, render(run, "nftables"), "nft", "-f", "-")
    tables = host.tables()
    assert "10.96.0.10 . tcp . 80" in tables and "fd00:96::53" in tables


@pytest.mark.kernel
def test_nft_loads_a_service_alone(host: Host, run: Run) -> None:
    """The sets that its elements need come with it; nft cannot add to pool maps in a rule."""
    load(host, render(run, "nftables", "--service", "shop/web", "--no-scaffold"), "nft", "-f", "-")
    tables = host.tables()
    assert "10.96.0.10 . tcp . 80" in tables and "10.96.0.20" not in tables


@pytest.mark.kernel
@pytest.mark.parametrize("family", list(RESTORE))
@pytest.mark.parametrize("mode", ["iptables", "userspace"])
def test_iptables_restore_loads_a_family(host: Host, run: Run, mode: str, family: str) -> None:
    text = render(run, mode, "--family", family)
    count(host)
    if mode == "userspace":
        # A port that is bound is in the place of 0, which no rule can lead to.
        text = text.replace("--to-ports 0", "--to-ports 1").replace(":0\n", ":1\n")
    load(host, text, RESTORE[family], *FOR_THE_LOCK, "--noflush")
    saved = host.run(RESTORE[family].replace("restore", "save")).stdout
    assert ("10.96.0.53" if family == "ipv4" else "fd00:96::53") in saved


@pytest.mark.kernel
def test_iptables_restore_adds_a_service_and_keeps_the_others(host: Host, run: Run) -> None:
    four = ("--family", "ipv4")
    count(host)
    restore = (RESTORE["ipv4"], *FOR_THE_LOCK, "--noflush")
    load(host, render(run, "iptables", *four, "--service", "shop/zonal"), *restore)
    added = render(run, "iptables", *four, "--service", "shop/web", "--no-scaffold")
    load(host, added, *restore)
    saved = host.run("iptables-save").stdout
    assert "10.96.0.30" in saved and "10.96.0.10" in saved


@pytest.mark.kernel
def test_a_running_proxy_is_rendered_as_the_kernel_has_it(host: Host) -> None:
    write(host, "web.yaml", WEB)
    host.start("--proxy-mode=nftables")
    host.until(lambda: "10.96.0.10" in host.tables(), "programming")
    host.until(host.socket.exists, "the socket")
    done = host.run("kpctl", "render", "--socket", host.socket, "--family", "ipv4")
    assert done.returncode == 0, done.stderr
    assert '10.96.0.10 . tcp . 80 comment "shop/web:http" : goto' in done.stdout
