"""`kpctl lab --kubernetes`: the cluster for people, until Ctrl-C or to the end of a command."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kpctl.apiserver.build import NoGo, built
from kpctl.kubernetes.cluster import Cluster, ClusterOptions, Progress
from kubeproxy.errors import Unsupported

IMAGES = Path("build")


def find_image() -> Path:
    """The image that `make image` has written here."""
    found = sorted(IMAGES.glob("kubeproxy-*-amd64.oci.tar"))
    if not found:
        raise Unsupported(
            f"there is no image in {IMAGES}/; `make image` makes it, --image names it"
        )
    return found[-1]


def run_cluster(
    options: ClusterOptions, command: Sequence[str] = (), console: Console | None = None
) -> int:
    """Open a cluster; run a command beside it, or wait until Ctrl-C. Return the exit code."""
    console = console or Console()
    # SIGTERM ends us as Ctrl-C does, so that all is removed before we are gone.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Cluster(options, progress_on(console)) as cluster:
            if command:
                return _run(cluster, command)
            _print_hints(cluster, console)
            signal.pause()
    except NoGo as error:
        raise Unsupported(str(error)) from error
    except KeyboardInterrupt:
        console.print("[dim]everything is removed again[/]")
    return 0


def progress_on(console: Console) -> Progress:
    """Print each step with the time since the first."""
    began = time.monotonic()

    def show(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.0f} s[/]  {text}", highlight=False)

    return show


def _run(cluster: Cluster, command: Sequence[str]) -> int:
    """Run a command in the network of the control plane, with kubectl at hand."""
    folder = built("kubectl").parent
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.control.kubeconfig),
        "PATH": f"{folder}:{os.environ.get('PATH', '')}",
    }
    argv = ["nsenter", f"--net={cluster.control.machine.network}", *command]
    return subprocess.run(argv, env=environment).returncode


def _print_hints(cluster: Cluster, console: Console) -> None:
    kubectl = cluster.folder / "kubectl"
    words = " ".join(cluster.control.kubectl_command())
    kubectl.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    kubectl.chmod(0o700)
    node = cluster.nodes[0]
    hints = [
        ("use the cluster", f"{kubectl} get pods -A -o wide"),
        ("kube-proxy's log", f"{kubectl} -n kube-system logs daemonset/kube-proxy"),
        (f"a shell on {node.place.name}", " ".join(node.machine.command(["bash"]))),
        ("logs of programs", f"{cluster.folder}/*/*.log"),
    ]
    console.print()
    for what, how in hints:
        # Whole lines, however long: they are there to be copied.
        console.print(f"{what:<22} [bold]{how}[/]", soft_wrap=True, highlight=False)
    console.print("\n[dim]Ctrl-C removes everything[/]")
