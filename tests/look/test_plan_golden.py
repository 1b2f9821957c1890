"""`kpctl plan` prints every decision with its reason; the files under tests/golden/plan are it.

After an intended change, `REWRITE_GOLDEN=1 pytest tests/look/test_plan_golden.py` rewrites them.
Read the diff.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

GOLDEN = Path(__file__).parent.parent / "golden" / "plan"
CLUSTER = GOLDEN / "cluster.yaml"
Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


def printed(run: Run, *options: str) -> str:
    done = run(["kpctl", "plan", str(CLUSTER), *options])
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def compare(path: Path, text: str) -> None:
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("output", "name"), [("table", "table.txt"), ("yaml", "plan.yaml"), ("json", "plan.json")]
)
def test_the_plan_as(run: Run, output: str, name: str) -> None:
    compare(GOLDEN / name, printed(run, "-o", output))


def test_the_plan_as_another_node_sees_it(run: Run) -> None:
    compare(GOLDEN / "worker-b.txt", printed(run, "--node", "worker-b"))


def test_yaml_and_json_say_the_same(run: Run) -> None:
    documents = list(yaml.safe_load_all(printed(run, "-o", "yaml")))
    assert documents == json.loads(printed(run, "-o", "json"))


def test_a_plan_is_printed_although_some_objects_are_bad(run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("{kind: Service, metadata: {name: bad}}\n")
    done = run(["kpctl", "plan", str(CLUSTER), str(bad)])
    assert done.returncode == 3
    assert "spec.clusterIP is missing" in done.stderr
    assert "shop/web:http TCP" in done.stdout
