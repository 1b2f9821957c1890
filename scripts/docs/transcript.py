"""`make transcript`: a swap to this program and back under load, as it happened, as a page.

python -m scripts.docs.transcript [--image=FILE] [--output=FILE] [MODE ...]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kpctl.kubernetes.cluster import OUR_PROXY, Cluster, ClusterOptions
from kpctl.kubernetes.images import UPSTREAM_PROXY
from kpctl.kubernetes.lab import find_image, progress_on
from kpctl.kubernetes.programs import CONTAINERD_VERSION
from kpctl.kubernetes.swap import Step, run_swap
from kubeproxy.version import KUBERNETES_VERSION

PAGE = Path(__file__).parents[2] / "docs/guides/swap-transcript.md"
_HEAD = """# A swap under load

What happened, word for word, when upstream's kube-proxy was replaced by this program and put back
in [a real cluster](cluster.md), while clients opened new connections all the time: from a pod and
from each node to the cluster IPs of a Service, and from outside to its node port on each node. A
connection that is refused or not answered within ten seconds has failed. `make transcript` runs it
and writes this page.

| | |
|---|---|
| Kubernetes | {kubernetes}, three nodes, containerd {containerd} |
| kernel | {kernel} |
| upstream's program | `{upstream}`: its binary of that release |
| this program | `{ours}`: the image of `make image` |
"""


def transcript(runs: Sequence[tuple[str, Sequence[Step]]]) -> str:
    """The page: the versions, the sums, and each step of each mode."""
    head = _HEAD.format(
        kubernetes=KUBERNETES_VERSION,
        containerd=CONTAINERD_VERSION,
        kernel=os.uname().release,
        upstream=UPSTREAM_PROXY,
        ours=OUR_PROXY,
    )
    rows = [f"| {mode} | {_tried(steps):,} | {_failed(steps)} |" for mode, steps in runs]
    table = ["| mode | connections tried | failed |", "|---|--:|--:|", *rows]
    parts = [head, *table, ""]
    for mode, steps in runs:
        parts += [f"## Mode {mode}", "", *(_step(step) for step in steps)]
    return "\n".join(parts).rstrip() + "\n"


def _tried(steps: Sequence[Step]) -> int:
    return sum(step.connections.tried for step in steps)


def _failed(steps: Sequence[Step]) -> int:
    return sum(step.connections.failed for step in steps)


def _step(step: Step) -> str:
    typed = "\n".join(f"$ {command}\n{output.rstrip()}" for command, output in step.typed)
    counted = step.connections
    failures = "".join(f"\n    {failure}" for failure in counted.failures)
    return (
        f"{step.title}:\n\n```console norun\n{typed}\n```\n\n"
        f"{step.seconds:.0f} s, {counted.tried:,} connections tried, "
        f"**{counted.failed} failed**.{failures}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Swap programs under load, and write it down.")
    parser.add_argument("modes", nargs="*", default=["nftables", "iptables"])
    parser.add_argument("--image", type=Path)
    parser.add_argument("--output", type=Path, default=PAGE)
    chosen = parser.parse_args()
    progress = progress_on(Console(stderr=True))
    runs = []
    for mode in chosen.modes:
        options = ClusterOptions(image=chosen.image or find_image(), mode=mode, proxy="upstream")
        with Cluster(options, progress) as cluster:
            progress(f"swapping there and back under load, mode {mode}")
            runs.append((mode, run_swap(cluster)))
    chosen.output.write_text(transcript(runs), encoding="utf-8")
    failed = sum(_failed(steps) for _, steps in runs)
    print(f"{sum(_tried(steps) for _, steps in runs)} connections tried, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
