"""Runs inside a guest kernel: the daemon in one mode, with traffic through it.

The daemon is a fork of this process, whose modules are imported already: emulated, a start of
Python alone takes many times longer than all that is tested here.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from pathlib import Path

from tests.support.confined import MANIFEST, QUIET_HOST, answers, pod
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.cli import main
from kubeproxy.kernel.modules import load_module
from kubeproxy.modes.nftables.check import SKIP_VARIABLE

MODES = ("nftables", "iptables", "ipvs", "userspace")
_OF_A_MODE = ("check", "cleanup", "describe", "render", "scaffold", "sinks")
PRELOAD = (
    *("asyncio", "concurrent.futures.thread", "multiprocessing", "yaml"),
    *("kubeproxy.cli", "kubeproxy.config.command", "kubeproxy.run.app", "kubeproxy.run.workers"),
    # Every mode at its start looks for what the others left.
    *(f"kubeproxy.modes.{mode}.{name}" for mode in MODES for name in _OF_A_MODE),
)


def serve(mode: str) -> object:
    """The frontends that answered, and the log. The release of the kernel is not looked at."""
    os.environ[SKIP_VARIABLE] = "1"
    folder = Path(tempfile.mkdtemp())
    (folder / "web.yaml").write_text(MANIFEST)
    words = [f"--manifests={folder / 'web.yaml'}", f"--proxy-mode={mode}", "--v=2", *QUIET_HOST]
    asyncio.run(load_module("dummy"))
    with pod():
        daemon = multiprocessing.get_context("fork").Process(
            target=_run, args=(words, str(folder / "log"))
        )
        daemon.start()
        try:
            answered = answers(lambda: daemon.exitcode)
        finally:
            daemon.terminate()
            daemon.join(LIMIT_SECONDS)
    return {"answered": answered, "log": (folder / "log").read_text()}


def _run(words: list[str], log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    main(words)
