"""The daemon as deploy/ confines it: in a container and under systemd's filters, with traffic.

Read-only files, /proc/sys read-only, the capabilities of the mode and no others, no new privileges;
the seccomp profile is what containerd means by RuntimeDefault, or what the systemd unit allows.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.confined import FRONTENDS, Confine, serve
from tests.support.container import (
    Profile,
    in_container,
    runtime_default_profile,
    systemd_profile,
)
from tests.support.go_tools import runtime_default
from tests.support.host import Host
from tests.support.waiting import LIMIT_SECONDS

from kpctl.apiserver.build import NoGo
from kubeproxy.run.privileges import NEEDS

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(900)]

UNIT = Path(__file__).parents[2] / "deploy/systemd/kube-proxy.service"
MODES = ("nftables", "iptables", "userspace")


@pytest.fixture
def seccomp(request: pytest.FixtureRequest) -> Profile:
    if shutil.which("runc") is None:
        pytest.skip('NO CONTAINER: runc is not installed (package "runc")')
    if request.param == "systemd":
        if shutil.which("systemd-analyze") is None:
            pytest.skip('systemd-analyze is not installed (package "systemd")')
        return systemd_profile(UNIT)
    try:
        runtime_default()
    except NoGo as reason:
        pytest.skip(f"NO SECCOMP PROFILE: {reason}")
    return runtime_default_profile


@pytest.mark.parametrize("seccomp", ["RuntimeDefault", "systemd"], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_it_serves_in_a_container(host: Host, tmp_path: Path, mode: str, seccomp: Profile) -> None:
    names = [need.name for need in NEEDS if mode in need.modes]
    confine = in_container(tmp_path / "container", names, seccomp, {})
    with host.network.inside():
        outcome = serve(mode, confine, tmp_path / "run")
    assert outcome["answered"] == sorted(FRONTENDS), outcome["log"]
    assert "Traceback" not in str(outcome["log"])


@pytest.mark.parametrize("seccomp", ["RuntimeDefault"], indirect=True)
def test_a_sysctl_that_init_did_not_set_is_named(
    host: Host, tmp_path: Path, seccomp: Profile
) -> None:
    """Sysctls are read-only in the container; this is another value than --init-only has set."""
    confine = in_container(tmp_path / "container", ["NET_ADMIN"], seccomp, {})

    def other(argv: Sequence[str]) -> Sequence[str]:
        return confine([*argv, "--conntrack-tcp-timeout-close-wait=1234s"])

    with host.network.inside():
        outcome = serve("nftables", other, tmp_path / "run")
    name = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
    assert f"open {name}: read-only file system" in str(outcome["log"])
    assert outcome["answered"] == sorted(FRONTENDS)


def without_executable_writes(argv: Sequence[str]) -> Sequence[str]:
    """MemoryDenyWriteExecute= of the unit, by the kernel's own means: kept over fork and exec."""
    set_mdwe, refuse_exec_gain = 65, 1
    code = (
        "import ctypes, os, sys;"
        f"assert ctypes.CDLL(None).prctl({set_mdwe}, {refuse_exec_gain}, 0, 0, 0) == 0;"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [argv[0], "-c", code, *argv]


def test_no_memory_is_writable_and_executable(host: Host, tmp_path: Path) -> None:
    get_mdwe = 66
    if ctypes.CDLL(None).prctl(get_mdwe, 0, 0, 0, 0) < 0:
        pytest.skip("the kernel is older than 6.3 and cannot refuse it")
    confine: Confine = without_executable_writes
    with host.network.inside():
        outcome = serve("nftables", confine, tmp_path / "run")
    assert outcome["answered"] == sorted(FRONTENDS), outcome["log"]


def test_the_unit_gives_what_the_modes_need() -> None:
    (line,) = re.findall(r"^CapabilityBoundingSet=(.+)$", UNIT.read_text(), re.MULTILINE)
    assert set(line.split()) == {f"CAP_{need.name}" for need in NEEDS}


@pytest.fixture
def analysed(tmp_path: Path) -> Path:
    """A root directory in which the program, and what the unit names, is installed."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip('systemd-analyze is not installed (package "systemd")')
    system, programs = tmp_path / "usr/lib/systemd/system", tmp_path / "usr/bin"
    for folder in (system, programs):
        folder.mkdir(parents=True)
    shutil.copy(UNIT, system)
    for name in ("kube-proxy", "touch"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    for target in ("multi-user", "network-online", "sysinit", "basic", "shutdown", "umount"):
        (system / f"{target}.target").write_text("[Unit]\nDescription=x\n")
    return tmp_path


def test_systemd_finds_nothing_wrong_with_the_unit(analysed: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--root={analysed}", "kube-proxy.service"],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_rates_the_unit_as_little_exposed() -> None:
    """2.4 of 10, of which 0.5 is the host's network, 0.4 root, and 0.3 Internet sockets."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip('systemd-analyze is not installed (package "systemd")')
    words = ("systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager")
    done = subprocess.run(
        [*words, str(UNIT)], capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stdout[-200:]
