"""Helm on the chart under deploy/."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import yaml
from tests.support.go_tools import helm
from tests.support.kubectl import Tree
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.version import KUBERNETES_VERSION

CHART = Path(__file__).parents[2] / "deploy/chart"


class Helm:
    """Runs Helm with values that are written to a file first."""

    def __init__(self, folder: Path) -> None:
        self._program = str(helm())
        self._values = folder / "values.json"

    def run(self, *words: str, values: Tree) -> subprocess.CompletedProcess[str]:
        self._values.write_text(json.dumps(values))
        return subprocess.run(
            [self._program, *words, "--values", str(self._values)],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def lint(self, values: Tree) -> None:
        done = self.run("lint", "--strict", str(CHART), values=values)
        assert done.returncode == 0, done.stdout + done.stderr

    def template(self, values: Tree, *, namespace: str = "kube-system") -> str:
        done = self.run(*template_words(namespace), values=values)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def objects(self, values: Tree, *, namespace: str = "kube-system") -> list[Tree]:
        text = self.template(values, namespace=namespace)
        return [item for item in yaml.safe_load_all(text) if item]

    def problem(self, values: Tree) -> str:
        """Return why values are refused, in one line."""
        done = self.run(*template_words("kube-system"), values=values)
        assert done.returncode != 0, done.stdout
        return " ".join(done.stderr.split())


def template_words(namespace: str) -> tuple[str, ...]:
    # The version of the cluster is not asked for, and Helm built like this assumes an old one.
    version = f"--kube-version={KUBERNETES_VERSION}"
    return ("template", "nodes", str(CHART), "--namespace", namespace, version)
