"""Removes a lab when the process that made it has ended, in whatever way.

`python -m kpctl.lab.reaper PREFIX` waits until its standard input closes, which happens when
the owner closes it or dies, even by SIGKILL. Then it ends the processes inside the namespaces whose
names start with PREFIX and deletes those namespaces. It lives in a session of its own, so that a
Ctrl-C meant for the owner does not stop it half-way.

It also holds the lab's lock (inherited), by which a later lab tells a crashed one from a live one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NAMED = Path("/run/netns")
_GRACE_SECONDS = 2.0


def lab_namespaces(prefix: str) -> list[str]:
    """Named namespaces of one lab."""
    if not NAMED.is_dir():
        return []
    return sorted(path.name for path in NAMED.iterdir() if path.name.startswith(prefix))


def processes_in(namespace: str) -> list[int]:
    """Processes in a namespace, except this one."""
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return [int(pid) for pid in done.stdout.split() if int(pid) != os.getpid()]


def remove_namespaces(prefix: str) -> None:
    """End what runs in the lab's namespaces, then delete them."""
    names = lab_namespaces(prefix)
    _end_processes(names)
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _end_processes(names: list[str]) -> None:
    deadline = time.monotonic() + _GRACE_SECONDS
    sent = signal.SIGTERM
    while pids := [pid for name in names for pid in processes_in(name)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sent)
        if sent is signal.SIGKILL:
            return
        time.sleep(0.05)
        if time.monotonic() > deadline:
            sent = signal.SIGKILL


def main() -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    remove_namespaces(sys.argv[1])


if __name__ == "__main__":
    main()
