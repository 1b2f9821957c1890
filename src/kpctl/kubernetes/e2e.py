"""Upstream's own end-to-end tests of Services, run against the cluster; results by spec.

    python -m kpctl.kubernetes.e2e --mode=nftables --results=docs/e2e.json [--proxy=upstream]

The test binary is upstream's, unchanged (`go test -c` of its package). Selected is what exercises a
kube-proxy; left out is what needs a cloud, the Internet or SCTP. The results of a mode replace
those of an earlier run in the file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from kpctl.apiserver.build import built
from kpctl.kubernetes.cluster import Cluster, ClusterOptions
from kpctl.kubernetes.lab import find_image, progress_on
from kpctl.kubernetes.programs import E2E_PROGRAMS, build_all
from kpctl.kubernetes.results import Run, Spec, read_reports, read_results, write_results
from kpctl.kubernetes.ssh import USER, make_key
from kubeproxy.version import KUBERNETES_VERSION

FOCUS = (
    r"\[sig-network\] (Services|Conntrack|Networking|KubeProxy|EndpointSlice|HostPort"
    r"|Connectivity|Topology Hints|Service endpoints latency"
    r"|Traffic Distribution|\[Feature:Traffic|\[Feature:IPv6DualStack\]|.*[Dd]ual.?[Ss]tack)"
)
SKIP = (
    r"LoadBalancer|Internet|SCTP|Networking-IPv6|Networking-Performance|NoSNAT|Flaky"
    r"|\[Feature:PerNodeNetwork|\[Feature:Alpha|\[Alpha\]"
)
_PARTS = {
    "together": ("!Disruptive && !Serial", 0),
    # What restarts kube-proxy or removes its rules would make others fail.
    "alone": ("Disruptive || Serial", 1),
}
_OUR_IMAGES = ("agnhost", "busybox", "distroless-iptables", "pause", "regression-issue-74839")


def image_names() -> tuple[str, ...]:
    """The names by which the tests know images that the lab makes itself."""
    listed = subprocess.run([built("e2e.test"), "--list-images"], capture_output=True, text=True)
    names = listed.stdout.split()
    return tuple(n for n in names if n.rpartition("/")[2].partition(":")[0] in _OUR_IMAGES)


def run_suite(
    cluster: Cluster, private_key: Path, folder: Path, *, focus: str = FOCUS, processes: int = 6
) -> dict[str, Spec]:
    """Run the tests beside a cluster, on whose nodes they log in by the key.

    Return what became of each that was selected.
    """
    environment = {**os.environ, "KUBE_SSH_USER": USER, "LOCAL_SSH_KEY": str(private_key)}
    specs: dict[str, Spec] = {}
    for part, (labels, at_once) in _PARTS.items():
        # The tests run elsewhere, so the place of their reports is absolute.
        place = (folder / part).resolve()
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        options = (f"--procs={at_once or processes}", f"--label-filter={labels}")
        command = _command(cluster, place, (*options, f"--focus={focus}"))
        with (place / "e2e.log").open("wb") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=log)
        specs |= read_reports(place)
    return specs


def _command(cluster: Cluster, reports: Path, options: Sequence[str]) -> list[str]:
    return [
        # The tests must not outlive us: they would wait for a cluster that is gone.
        *("setpriv", "--pdeathsig", "TERM"),
        *("nsenter", f"--net={cluster.control.machine.network}", str(built("ginkgo"))),
        *("--timeout=3h", "--no-color", f"--skip={SKIP}", *options),
        *(str(built("e2e.test")), "--"),
        *("--provider=local", f"--kubeconfig={cluster.control.kubeconfig}"),
        *(f"--kubectl-path={built('kubectl')}", f"--report-dir={reports}"),
        *(
            f"--num-nodes={cluster.options.nodes}",
            "--minStartupPods=0",
            "--allowed-not-ready-nodes=0",
        ),
    ]


def run_mode(options: ClusterOptions, chosen: argparse.Namespace) -> Run:
    """Open a cluster for one run of the suite."""
    progress = progress_on(Console(stderr=True))
    build_all(E2E_PROGRAMS, progress)
    with tempfile.TemporaryDirectory() as folder:
        private, public = make_key(Path(folder))
        options = msgspec.structs.replace(
            options, extra_image_names=image_names(), login_key=public
        )
        with Cluster(options, progress) as cluster:
            progress(f"running upstream's tests; see {chosen.reports}/*/e2e.log")
            return _run_in(cluster, private, chosen)


def _run_in(cluster: Cluster, private_key: Path, chosen: argparse.Namespace) -> Run:
    began = time.monotonic()
    specs = run_suite(
        cluster, private_key, chosen.reports, focus=chosen.focus, processes=chosen.processes
    )
    kernel = "jsonpath={.items[0].status.nodeInfo.kernelVersion}"
    return Run(
        mode=cluster.options.mode,
        proxy=cluster.options.proxy,
        kubernetes=KUBERNETES_VERSION,
        kernel=cluster.control.kubectl("get", "nodes", "-o", kernel),
        minutes=round((time.monotonic() - began) / 60, 1),
        processes=chosen.processes,
        specs=specs,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mode", default="nftables")
    parser.add_argument("--proxy", choices=["ours", "upstream"], default="ours")
    parser.add_argument("--image", type=Path, help="our image (default: of `make image`)")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--kernel", default="", help="of the nodes: uml, or a package of Debian's")
    parser.add_argument("--focus", default=FOCUS, help="a regular expression of specs")
    parser.add_argument("--reports", type=Path, help="a folder (default: of mode and program)")
    parser.add_argument("--results", type=Path, help="the file that keeps the results")
    chosen = parser.parse_args(argv)
    # Of its own: another run in the same place must not remove these reports.
    chosen.reports = chosen.reports or Path("build/e2e") / f"{chosen.mode}-{chosen.proxy}"
    image = chosen.image or find_image()
    options = ClusterOptions(
        image=image,
        mode=chosen.mode,
        proxy=chosen.proxy,
        nodes=chosen.nodes,
        kernel=chosen.kernel,
    )
    run = run_mode(options, chosen)
    if chosen.results:
        results = read_results(chosen.results)
        results.put(run, is_whole=chosen.focus == FOCUS)
        write_results(chosen.results, results)
    _print_run(run)
    return 1 if run.failures() or not run.specs else 0


def _print_run(run: Run) -> None:
    states = ", ".join(f"{run.count(state)} {state}" for state in ("passed", "failed", "skipped"))
    print(f"{run.mode} ({run.proxy}): {states} in {run.minutes:g} minutes")
    for name, spec in run.failures().items():
        print(f"FAILED {name}: {spec.reason}")


if __name__ == "__main__":
    raise SystemExit(main())
