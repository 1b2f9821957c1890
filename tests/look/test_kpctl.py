"""`kpctl` as people start it: versions, and clear words about a wrong command line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

import pytest

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


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
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_kpctl_names_both_versions(run: Run) -> None:
    done = run(["kpctl", "--version"])
    assert done.returncode == 0 and "v1.36.4" in done.stdout
