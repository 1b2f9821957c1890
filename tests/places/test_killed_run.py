"""A test run that is killed takes its guests along, with all their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import wait_until

from kpctl.places.uml import missing

pytestmark = [pytest.mark.uml, pytest.mark.timeout(600)]

BOOT = """
import time
from kpctl.places.uml import UserModeKernel
with UserModeKernel():
    print("booted", flush=True)
    time.sleep(3600)
"""


def processes_with(word: str) -> list[str]:
    """Command lines of all processes of this machine in which a word occurs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended
            continue
    return [line for line in found if word in line]


def test_a_guest_ends_with_the_run_that_booted_it(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    run = subprocess.Popen(
        [sys.executable, "-c", BOOT],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"booted\n"
    assert len(processes_with(f"uml_dir={tmp_path}")) > 2, "the kernel and its helpers"
    run.kill()
    run.wait()
    run.stdout.close()
    wait_until(lambda: not processes_with(str(tmp_path)), lambda: "they are still there")
