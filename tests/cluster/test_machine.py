"""A machine is apart from the host, and nothing of it stays, however its owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kpctl.kubernetes.cgroups import cgroups_named
from kpctl.kubernetes.machine import Machine
from kpctl.kubernetes.programs import missing

pytestmark = pytest.mark.kernel
PATIENCE_SECONDS = 120.0
OWNER = """
import sys, time
from pathlib import Path
from kpctl.kubernetes.cgroups import make_cgroups
from kpctl.kubernetes.machine import Machine
from kpctl.kubernetes.reaper import start_reaper

folder, cgroup = Path(sys.argv[1]), sys.argv[2]
folder.mkdir()
reaper = start_reaper(folder, cgroup)
make_cgroups(f"/{cgroup}/node")
machine = Machine("node", folder / "node")
machine.start("sleep", ["sleep", "1234"])
print(machine.holder, flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _possible() -> None:
    if reason := missing():
        pytest.skip(reason)


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:g} s: {what}"
        time.sleep(0.05)


def test_what_a_machine_writes_does_not_reach_the_host(tmp_path: Path) -> None:
    """Files, host name and settings of the kernel."""
    machine = Machine("node-x", tmp_path / "node")
    try:
        machine.run("sh", "-c", "touch /etc/kplab-x /usr/kplab-x /var/kplab-x /run/kplab-x")
        assert machine.run("hostname").strip() == "node-x"
        assert machine.run("cat", "/proc/sys/kernel/panic").strip() == "10"
        assert machine.run("ip", "-o", "link").count("\n") == 1
    finally:
        machine.close()
    assert not [top for top in ("etc", "usr", "var", "run") if Path(f"/{top}/kplab-x").exists()]
    assert os.uname().nodename != "node-x"


def test_a_network_that_the_host_removes_is_not_held_by_a_machine(tmp_path: Path) -> None:
    """It would live on, with its devices, until the machine ends."""
    name = f"kplab-test-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        machine = Machine("node", tmp_path / "node")
        try:
            seen = machine.run("cat", "/proc/self/mountinfo")
        finally:
            machine.close()
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    assert name not in seen


def test_a_machine_that_is_closed_ends_its_programs(tmp_path: Path) -> None:
    machine = Machine("node", tmp_path / "node")
    program = machine.start("sleep", ["sleep", "1234"])
    machine.close()
    assert program.poll() is not None
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_nothing_stays_of_an_owner_that_was_killed(tmp_path: Path) -> None:
    """Neither processes nor files nor cgroups."""
    folder, cgroup = tmp_path / "cluster", f"kplab-test-{os.getpid()}"
    argv = [sys.executable, "-c", OWNER, str(folder), cgroup]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        holder = Path(f"/proc/{int(owner.stdout.readline())}")
        assert folder.exists()
        assert cgroups_named(cgroup)
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not folder.exists(), "files are removed")
    wait_until(lambda: not cgroups_named(cgroup), "cgroups are removed")
    wait_until(lambda: not holder.exists(), "processes have ended")
