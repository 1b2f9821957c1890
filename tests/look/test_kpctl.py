"""`kpctl` as people start it: sentences about what is wrong, exit codes, pipes and terminals."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.support.host import PROGRAMS
from tests.support.waiting import LIMIT_SECONDS

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]

CLUSTER = Path(__file__).parent.parent / "golden" / "plan" / "cluster.yaml"
BAD = "{kind: Service, metadata: {name: bad}}\n"
ODD = "{kind: Service, metadata: {name: odd}, spec: {clusterIP: 10.0.0.300, ports: [{port: 1}]}}\n"
WEB = "{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, ports: [{port: 1}]}}\n"
LOG_LINE = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.", re.M)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plan", "/nowhere.yaml"], "/nowhere.yaml"),
        (["render", "--mode", "magic", "x.yaml"], "magic"),
        (["plan"], "FILES"),
    ],
)
def test_kpctl_says_what_is_wrong(run: Run, argv: list[str], message: str) -> None:
    done = run(["kpctl", *argv])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_kpctl_names_both_versions(run: Run) -> None:
    done = run(["kpctl", "--version"])
    assert done.returncode == 0 and "v1.36.4" in done.stdout


@pytest.mark.parametrize("command", [["plan"], ["render", "--mode", "nftables"]])
@pytest.mark.parametrize("text", [BAD, ODD, WEB + "---\n" + WEB, ": : [\n", "", "\xff"])
def test_rejected_input_shows_in_the_exit_code(
    run: Run, tmp_path: Path, command: list[str], text: str
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(text.encode("latin-1"))
    done = run(["kpctl", *command, str(CLUSTER), str(bad)])
    assert done.returncode == 3, done.stderr
    assert "10.96.0.10" in done.stdout, "the rest is shown"
    assert str(bad) in done.stderr or "odd" in done.stderr
    lines = done.stderr.splitlines()
    assert lines[-1] == "Error: One object or file is rejected; what is shown is without it."
    assert all(line.startswith(("Error: ", "Note: ")) for line in lines)
    assert not LOG_LINE.search(done.stderr)


def test_an_object_of_an_earlier_file_is_named(run: Run, tmp_path: Path) -> None:
    again = tmp_path / "again.yaml"
    again.write_text(WEB)
    done = run(["kpctl", "plan", str(again), str(again)])
    assert done.returncode == 3
    assert "Service default/web" in done.stderr and "earlier file" in done.stderr


def test_a_dash_is_standard_input(tmp_path: Path) -> None:
    for argv in (["plan", "-"], ["render", "--mode", "iptables", "-"]):
        done = subprocess.run(
            [PROGRAMS / "kpctl", *argv],
            input=CLUSTER.read_text(),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        assert "10.96.0.10" in done.stdout


@pytest.mark.parametrize("command", [["plan"], ["render", "--mode", "nftables"]])
def test_an_unknown_node_is_an_error(run: Run, command: list[str]) -> None:
    done = run(["kpctl", *command, str(CLUSTER), "--node", "worker-x"])
    assert done.returncode == 2 and not done.stdout
    assert "'worker-x'" in done.stderr and "worker-a, worker-b" in done.stderr


def test_a_wrong_configuration_is_a_sentence(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    config.write_text(f"{head}mode: nftable\n")
    done = run(["kpctl", "plan", str(CLUSTER), "--config", str(config)])
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {config}: failed validate: KubeProxyConfiguration.Mode")


def test_a_configuration_may_come_through_a_pipe(tmp_path: Path) -> None:
    text = (
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\\nkind: KubeProxyConfiguration\\n"
        "nodePortAddresses: [192.0.2.0/24]\\n"
    )
    script = f"{PROGRAMS / 'kpctl'} plan {CLUSTER} --config <(printf '{text}')"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "NodePort 192.0.2.10:30443" in done.stdout


def node_port_line(text: str) -> str:
    return next(line for line in text.splitlines() if "NodePort" in line)


def test_node_ports_are_shown_where_they_are_served(run: Run) -> None:
    """In nftables mode on the node's primary address only."""
    plan = ["kpctl", "plan", str(CLUSTER)]
    everywhere = node_port_line(run(plan).stdout)
    assert "NodePort *:30443" in everywhere and "on all addresses of the node" in everywhere
    assert "NodePort 192.0.2.10:30443" in node_port_line(run([*plan, "--mode=nftables"]).stdout)
    other = node_port_line(run([*plan, "--mode=nftables", "--node=worker-b"]).stdout)
    assert "NodePort <primary address>:30443" in other


def test_a_drop_goes_nowhere(run: Run) -> None:
    """Those to whom the policy does not apply have a row of their own."""
    lines = run(["kpctl", "plan", str(CLUSTER)]).stdout.splitlines()
    dropped = [line.split("│") for line in lines if "│ drop " in line]
    assert len(dropped) == 3 and all(not cells[4].strip() for cells in dropped)
    number = next(n for n, line in enumerate(lines) if "LoadBalancer 203.0.113.7:443" in line)
    assert "│ forward  │ 10.244.2.9:8443" in lines[number + 1]
    assert "from pods of this node and the node itself" in lines[number + 1]


def test_piped_output_is_not_wrapped(run: Run) -> None:
    """Every reason stands in one line, whatever COLUMNS holds."""
    argv = [str(PROGRAMS / "kpctl"), "plan", str(CLUSTER)]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "40", "FORCE_COLOR": "1"},
    )
    assert "from pods of this node and the node itself; only from 198.51.100.0/24" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_pipe_without_unicode_gets_a_table_too() -> None:
    done = subprocess.run(
        [PROGRAMS / "kpctl", "plan", CLUSTER],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert b"| ClusterIP 10.96.0.10:80" in done.stdout


def test_a_narrow_terminal_gets_a_list(tmp_path: Path) -> None:
    text = in_terminal(["plan", str(CLUSTER)], columns=60)
    assert "shop/web:http TCP\r\n  ClusterIP 10.96.0.10:80\r\n" in text
    assert "    forward to 10.244.1.5:8080, 10.244.2.5:8080\r\n" in text
    assert max(len(line) for line in text.splitlines()) <= 60


def in_terminal(argv: list[str], *, columns: int) -> str:
    """What a command writes to a terminal of this width."""
    ours, its = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb"}
    process = subprocess.Popen(
        [PROGRAMS / "kpctl", *argv], stdin=its, stdout=its, stderr=its, env=environment
    )
    os.close(its)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(ours)
    assert process.wait(LIMIT_SECONDS) == 0
    return b"".join(parts).decode()


@pytest.mark.parametrize("command", ["plan", "render --mode iptables"])
@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        ("{file} > /dev/full", 1, "Error: output cannot be written: no space left on device"),
        ("{file} >&-", 0, ""),
        ("{file} 2>&-", 0, ""),
        ("- <&-", 3, "is rejected"),
    ],
)
def test_closed_and_full_streams_end_with_a_sentence(
    command: str, redirection: str, code: int, message: str
) -> None:
    line = f"{PROGRAMS / 'kpctl'} {command} {redirection.format(file=CLUSTER)}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_an_endless_file_is_refused(run: Run) -> None:
    """As many bytes as fit into a manifest are read, not as many as into memory."""
    done = run(["kpctl", "plan", "/dev/zero"])
    assert done.returncode == 3
    assert "it has more than" in done.stderr and "Traceback" not in done.stderr


def test_a_plan_shows_what_is_refused_and_why(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(
        f"{WEB}---\n"
        "{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, addressType: IPv4,\n"
        " metadata: {name: web-1, labels: {kubernetes.io/service-name: web}},\n"
        " ports: [{name: '', port: 8080}],\n"
        " endpoints: [{addresses: [10.244.1.5]}, {addresses: [169.254.169.254]}]}\n"
    )
    done = run(["kpctl", "plan", str(file)])
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "169.254.169.254" in line)
    assert "left out" in line and "refused: a link-local address" in line
