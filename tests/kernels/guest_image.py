"""Runs inside a guest kernel: the daemon with nothing but the files of our image."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from pathlib import Path

from tests.support.confined import MANIFEST, QUIET_HOST, answers, pod
from tests.support.waiting import LIMIT_SECONDS

from kpctl.lab.pace import scaled
from kubeproxy.kernel.modules import load_module

_IN_ROOT = (
    'mount --make-rprivate / && mount -t proc proc "$1/proc" && mount -t sysfs sysfs "$1/sys"'
    ' && mount -t tmpfs tmpfs "$1/run" && cp "$2" "$1/run/web.yaml"'
    ' && root=$1 && shift 2 && exec chroot "$root" "$@"'
)
KUBE_PROXY = "/usr/local/bin/kube-proxy"


def serve(root: str, mode: str) -> object:
    """The frontends that answered, and the log."""
    # A node's modules are loaded from the node's own files, which the image has not got.
    asyncio.run(load_module("ip_vs"))
    folder = Path(tempfile.mkdtemp())
    (folder / "web.yaml").write_text(MANIFEST)
    argv = ["unshare", "--mount", "sh", "-c", _IN_ROOT, "sh", root, str(folder / "web.yaml")]
    argv += [KUBE_PROXY, "--manifests=/run/web.yaml", f"--proxy-mode={mode}", "--v=2", *QUIET_HOST]
    with (folder / "log").open("wb") as log, pod():
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            answered = answers(process.poll)
        finally:
            process.terminate()
            code = process.wait(scaled(LIMIT_SECONDS))
    return {"answered": answered, "code": code, "log": (folder / "log").read_text()}
