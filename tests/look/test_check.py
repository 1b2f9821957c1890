"""`kpctl check`: errors and notes with file and line, and an exit code for scripts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]

CLUSTER = Path(__file__).parent.parent / "golden" / "plan" / "cluster.yaml"
GOOD = "services:\n  web:\n    listen: 198.51.100.1:80\n    to: 192.0.2.1:80\n"
KUBERNETES = """\
kind: Service
metadata: {name: api}
spec:
  clusterIP: 10.96.0.1
  ports: [{port: 1}]
"""
SLICE = """\
---
kind: EndpointSlice
metadata: {name: api-1, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
ports: [{port: 1}]
endpoints: [{addresses: [192.0.2.1]}]
"""


def checked(
    run: Run, folder: Path, text: str, *options: str
) -> tuple[int, subprocess.CompletedProcess[str]]:
    (folder / "a.yaml").write_text(text)
    done = run(["kpctl", "check", *options, str(folder)])
    assert "Traceback" not in done.stderr
    return done.returncode, done


@pytest.mark.parametrize("text", [GOOD, KUBERNETES, f"{GOOD}---\n{KUBERNETES}{SLICE}"])
def test_files_that_are_all_right(run: Run, tmp_path: Path, text: str) -> None:
    code, done = checked(run, tmp_path, text, "--strict")
    assert code == 0 and done.stderr == ""
    assert "can be used" in done.stdout


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (GOOD.replace("to:", "too:"), 4, "did you mean to?"),
        (KUBERNETES.replace("{port: 1}", "{port: one}"), 5, "Expected `int`"),
        (KUBERNETES.replace("  clusterIP: 10.96.0.1\n", ""), 1, "spec.clusterIP is missing"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(
    run: Run, tmp_path: Path, text: str, line: int, reason: str
) -> None:
    code, done = checked(run, tmp_path, text)
    assert code == 3
    assert f"a.yaml:{line}" in done.stderr and reason in done.stderr


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (KUBERNETES + "  colour: red\n", 'unknown field "spec.colour"'),
        (GOOD + "    algorithm: source-hash\n", "source-hash"),
        (
            GOOD
            + KUBERNETES.replace("kind", "---\nkind").replace(
                "ports: [{port: 1}]", "externalIPs: [198.51.100.1]\n  ports: [{port: 80}]"
            ),
            "198.51.100.1:80/TCP is claimed by",
        ),
        (
            KUBERNETES.replace("{port: 1}", "{port: 1, targetPort: 2}"),
            "no EndpointSlice names this Service",
        ),
        (
            KUBERNETES.replace("{name: api}", "{name: api, annotations: {kubeproxy/deny: x}}"),
            'Service api: annotation "kubeproxy/deny" means nothing here',
        ),
        (
            KUBERNETES.replace("{name: api}", "{name: api, annotations: {kubeproxy/weights: a=1}}"),
            'annotation "kubeproxy/weights" means nothing here',
        ),
        (
            KUBERNETES + SLICE.replace("192.0.2.1", "169.254.1.1"),
            "169.254.1.1:1 is refused: a link-local address",
        ),
    ],
)
def test_what_has_no_effect_is_a_note_and_with_strict_an_error(
    run: Run, tmp_path: Path, text: str, note: str
) -> None:
    code, done = checked(run, tmp_path, text, "--mode", "iptables")
    assert code == 0 and note in done.stderr
    code, done = checked(run, tmp_path, text, "--strict", "--mode", "iptables")
    assert code == 3 and note in done.stderr


def test_a_link_that_leads_nowhere_is_an_error(run: Run, tmp_path: Path) -> None:
    """The daemon logs that it cannot be read, so the check of the same folder must not pass."""
    (tmp_path / "b.yaml").symlink_to("nowhere.yaml")
    code, done = checked(run, tmp_path, GOOD)
    assert code == 3 and "b.yaml" in done.stderr


def test_host_names_are_not_looked_up(run: Run, tmp_path: Path) -> None:
    code, done = checked(run, tmp_path, GOOD.replace("192.0.2.1:80", "no.such.invalid:80"))
    assert code == 0 and done.stderr == ""


def test_a_large_file_of_objects(run: Run) -> None:
    done = run(["kpctl", "check", str(CLUSTER)])
    assert done.returncode == 0
