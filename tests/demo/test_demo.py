"""The demo and the lab command, as people run them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kpctl.demo.lab import LabOptions, read_topology, run_lab
from kpctl.demo.run import run_demo
from kpctl.demo.view import Claim, Line, claims_view, traffic_view
from kpctl.flows.library import CORPUS, find_flow, flow_names
from kpctl.lab.reaper import lab_namespaces
from kubeproxy.errors import ConfigError
from kubeproxy.modes.registry import mode_names

MODES = [mode for mode in ("nftables", "iptables") if mode in mode_names()]


def shown(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_traffic_fits_a_narrow_terminal() -> None:
    line = Line("outside → node:30080", {"web-1": 1200, "web-3": 800}, failed=3, rate=61.4)
    text = shown(traffic_view("live", [line], ["web-1", "web-2", "web-3"]))
    assert "1200 ███████" in text
    assert "800 █████" in text
    assert " 61 " in text
    assert max(len(row) for row in text.splitlines()) <= 80


def test_claims_show_what_failed() -> None:
    text = shown(claims_view([Claim("true", True), Claim("false", False, "3 failed")]))
    assert "✔ true" in text
    assert "✘ false" in text
    assert "3 failed" in text


def test_a_topology_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file"):
        read_topology(tmp_path / "nowhere.yaml")


@pytest.mark.kernel
@pytest.mark.parametrize("mode", MODES)
def test_the_demo_shows_the_truth_and_leaves_nothing(mode: str) -> None:
    output = io.StringIO()
    code = run_demo(mode, Console(file=output, width=100), phase_seconds=1.0)
    assert code == 0, output.getvalue()
    for words in (
        "the cluster",
        "web-2 fails",
        "ms after the failure",
        "look at the rules",
        "ask the proxy",
    ):
        assert words in output.getvalue()
    assert "✘" not in output.getvalue()
    assert not lab_namespaces(f"kplab-{os.getpid()}-")


@pytest.mark.kernel
@pytest.mark.skipif(not MODES, reason="no mode is there")
def test_the_lab_runs_a_command_on_a_host_and_gives_its_exit_code() -> None:
    ask = "exec 3<>/dev/tcp/10.96.0.10/80; echo hello >&3; head -1 <&3 | grep -q client-b; exit $?"
    asked = f"for i in $(seq 60); do bash -c '{ask}' && exit 7; done; exit 1"
    kpctl = [sys.executable, "-c", "from kpctl.cli import main; main()"]
    options = ["lab", "--mode", MODES[0], "--on", "client-a", "--", "bash", "-c", asked]
    done = subprocess.run([*kpctl, *options], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr


@pytest.mark.kernel
@pytest.mark.skipif(not MODES, reason="no mode is there")
def test_the_lab_runs_a_flow_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = CORPUS / "01-ports.yaml"
    bad = tmp_path / "bad.yaml"
    bad.write_text(good.read_text().replace("web-a2 sees client-b", "rejected"))
    output = io.StringIO()
    console = Console(file=output, width=200)
    assert run_lab(LabOptions(MODES[0], flow=good), console) == 0
    # What is wrong stays wrong, however long it is tried again.
    monkeypatch.setattr("kpctl.flows.lab_run.PATIENCE_SECONDS", 1.0)
    assert run_lab(LabOptions(MODES[0], flow=bad), console) == 1
    assert "holds (nftables, dual)" in output.getvalue()
    assert "client-b -> plain:7: expected rejected, was answered by web-a2" in output.getvalue()


def test_a_flow_is_found_by_its_name_with_or_without_number() -> None:
    assert find_flow("cluster-ip") == find_flow("01-cluster-ip") == CORPUS / "01-cluster-ip.yaml"
    assert len(set(flow_names())) == len(flow_names())


def test_an_unknown_flow_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match="neither a file nor one of the flows: cluster-ip, ports"):
        find_flow("magic")
