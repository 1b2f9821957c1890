"""A proxy under test, seen from outside. Any program will do for that."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import LIMIT_SECONDS, wait_until

from kpctl.apiserver.build import NoGo
from kpctl.bench.program import (
    RunningProxy,
    command_of,
    has_children,
    private_mb,
    switches_of,
)
from kpctl.bench.records import OURS, UPSTREAM
from kpctl.places.network import PrivateNetwork
from kubeproxy.errors import ProxyError


def test_ours_is_this_very_program(tmp_path: Path) -> None:
    """The interpreter that runs the benchmark runs the proxy."""
    assert command_of(OURS, tmp_path)[:3] == (sys.executable, "-m", "kubeproxy")


def test_upstream_is_the_program_that_was_built(tmp_path: Path) -> None:
    """Or there is a reason why it cannot be."""
    try:
        assert Path(command_of(UPSTREAM, tmp_path)[0]).name == "kube-proxy"
    except NoGo as error:
        pytest.skip(str(error))


@pytest.fixture
def network() -> Iterator[PrivateNetwork]:
    try:
        made = PrivateNetwork()
    except OSError as error:
        pytest.skip(str(error))
    yield made
    made.close()


@pytest.mark.kernel
def test_a_proxy_that_ends_is_reported_with_its_last_lines(
    network: PrivateNetwork, tmp_path: Path
) -> None:
    """A benchmark of a dead proxy would measure nothing."""
    log = tmp_path / "log"
    proxy = RunningProxy(
        [*command_of(OURS, tmp_path), "--nonsense"], network=network, environment={}, log=log
    )
    proxy.wait(LIMIT_SECONDS)
    with pytest.raises(ProxyError, match="unknown flag: --nonsense"):
        proxy.usage()


@pytest.mark.kernel
def test_what_a_running_proxy_uses_is_known(network: PrivateNetwork, tmp_path: Path) -> None:
    """Memory and processor time, from the kernel; a tool it runs keeps it at work."""
    flags = [f"--manifests={tmp_path}", "--proxy-mode=nftables", "--hostname-override=n"]
    log = tmp_path / "log"
    proxy = RunningProxy(
        [*command_of(OURS, tmp_path), *flags], network=network, environment={}, log=log
    )
    try:
        wait_until(lambda: proxy.usage().resident_mb >= 10)
        usage = proxy.usage()
        assert usage.peak_mb >= usage.resident_mb
        assert 0 < private_mb(proxy.pid) < usage.peak_mb
        assert switches_of(proxy.pid)[proxy.pid] > 0
        assert proxy.is_at_work(usage.cpu_seconds - 1)
    finally:
        proxy.stop()


def test_children_count_as_work() -> None:
    """A tool that waits uses no processor, but is not done."""
    shell = subprocess.Popen(["sh", "-c", "read go; sleep 600 & read end"], stdin=subprocess.PIPE)
    assert shell.stdin is not None
    try:
        assert not has_children(shell.pid)
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        wait_until(lambda: has_children(shell.pid))
        (child,) = map(
            int, Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
        )
        os.kill(child, signal.SIGKILL)
    finally:
        shell.kill()
        shell.wait()
        shell.stdin.close()
