"""`kube-proxy` as people start it: what needs neither privileges nor a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


def cpu_seconds(argv: Sequence[str | Path]) -> float:
    """Processor time of one run, the best of three."""
    best = float("inf")
    for _ in range(3):
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device, not a file of ours
            pid = os.posix_spawn(
                argv[0],
                [str(word) for word in argv],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)],
            )
        _, status, usage = os.wait4(pid, 0)
        assert status == 0
        best = min(best, usage.ru_utime + usage.ru_stime)
    return best


def test_the_version_is_printed_and_costs_little() -> None:
    """Some times the processor time of the bare interpreter, which is 8 ms on an ordinary host."""
    bare = cpu_seconds([sys.executable, "-c", "pass"])
    ours = cpu_seconds([Path(sys.executable).parent / "kube-proxy", "--version"])
    assert ours < 60 * bare


def test_the_version_is_the_release_we_match(run: Run) -> None:
    done = run(["kube-proxy", "--version"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "Kubernetes v1.36.4\n", "")


def test_help_names_our_own_flags_apart(run: Run) -> None:
    done = run(["kube-proxy", "--help"])
    assert done.returncode == 0 and not done.stderr
    assert "--proxy-mode" in done.stdout
    assert "--manifests" in done.stdout


def test_an_unknown_flag_is_an_error(run: Run) -> None:
    done = run(["kube-proxy", "--no-such-flag"])
    assert done.returncode == 1
    assert done.stderr.endswith("Error: unknown flag: --no-such-flag\n")
    assert "Traceback" not in done.stderr


def test_an_argument_is_an_error(run: Run) -> None:
    done = run(["kube-proxy", "start"])
    assert done.returncode == 1
    assert 'Error: "kube-proxy" does not take any arguments, got ["start"]' in done.stderr


def test_the_configuration_is_written_where_asked(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.yaml"
    done = run(["kube-proxy", "--proxy-mode=nftables", f"--write-config-to={path}"])
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    assert "kind: KubeProxyConfiguration" in text and "\nmode: nftables\n" in text
    again = run(["kube-proxy", f"--config={path}", f"--write-config-to={tmp_path / 'again.yaml'}"])
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.yaml").read_text() == text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config=/nowhere/config.yaml"], "/nowhere/config.yaml: no such file or directory"),
        (["--proxy-mode=magic"], "magic"),
        (["--cluster-cidr=nonsense"], "nonsense"),
        (["--health-check=icmp", "--manifests=/"], "--health-check: 'icmp' is none of tcp"),
        (["--health-check=tcp"], "with an API server, annotate the Services"),
        (["--manifests=/nowhere"], "--manifests /nowhere: no such file or directory"),
        (["--write-config-to=/nowhere/x.yaml"], "/nowhere/x.yaml: no such file or directory"),
        (["--write-config-to=/dev/full"], "write /dev/full: no space left on device"),
        (["--config=/dev/zero"], "open /dev/zero: it has more than 1048576 bytes"),
        (["--kubeconfig=/dev/zero"], "open /dev/zero: it has more than 16777216 bytes"),
    ],
)
def test_what_is_wrong_is_logged_in_one_line_and_ends_with_1(
    run: Run, flags: list[str], message: str
) -> None:
    done = run(["kube-proxy", *flags])
    assert done.returncode == 1
    assert message in done.stderr
    assert '"command failed"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_configuration_file_names_the_field(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
        "metricsBindAddress: nowhere\n"
    )
    done = run(["kube-proxy", f"--config={path}"])
    assert done.returncode == 1
    assert "MetricsBindAddress" in done.stderr
