"""Removes what a cluster leaves in files and cgroups, once its owner has ended in whatever way.

`python -m kpctl.kubernetes.reaper FOLDER CGROUP` waits until its standard input closes, which
happens when the owner closes it or dies, even by SIGKILL. Processes, mounts and networks have
ended by themselves then (see `init`); their cgroups and files can be removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kpctl.kubernetes.cgroups import cgroups_named, remove_cgroups

PREFIX = "kplab-cluster-"
_END_SECONDS = 120.0


def start_reaper(folder: Path, cgroup: str) -> subprocess.Popen[str]:
    """Start the reaper, before anything exists for it to remove."""
    return subprocess.Popen(
        [sys.executable, "-m", "kpctl.kubernetes.reaper", str(folder), cgroup],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def sweep_stale() -> list[str]:
    """Remove what clusters left whose owner and reaper were killed together. Return their names."""
    folders = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
    names = {path.name for path in folders} | cgroups_named(PREFIX)
    stale = sorted(name for name in names if not _is_alive(name.removeprefix(PREFIX)))
    for name in stale:
        remove_cgroups(name)
        shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)
    return stale


def _is_alive(pid: str) -> bool:
    return Path(f"/proc/{pid.partition('-')[0]}").exists()


def remove(folder: Path, cgroup: str) -> None:
    """Remove cgroups and files as soon as no process uses them."""
    deadline = time.monotonic() + _END_SECONDS
    while not remove_cgroups(cgroup) and time.monotonic() < deadline:
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    remove(Path(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
