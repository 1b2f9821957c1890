"""kubectl against a real API server, with its answers as values."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

from tests.support.waiting import LIMIT_SECONDS

from kpctl.apiserver.build import built
from kpctl.apiserver.real import RealApiServer

Tree = dict[str, object]


class Kubectl:
    """Runs kubectl as the administrator. The caller is inside the API server's network."""

    def __init__(self, real: RealApiServer) -> None:
        self._words = (str(built("kubectl")), f"--kubeconfig={real.kubeconfig()}")

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end, whatever it thinks of it."""
        return subprocess.run(
            [*self._words, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run a command that must succeed. Return what it prints."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *arguments: str) -> Tree:
        """Return an object without what the API server counts: versions, times, who wrote what."""
        found: Tree = json.loads(self("get", "-o", "json", *arguments))
        metadata = found["metadata"]
        assert isinstance(metadata, dict)
        for name in ("managedFields", "resourceVersion", "generation"):
            metadata.pop(name, None)
        metadata.get("annotations", {}).pop("deprecated.daemonset.template.generation", None)
        return found


def differences(
    before: object, after: object, path: str = ""
) -> Mapping[str, tuple[object, object]]:
    """Return where two JSON values differ: a path, what was there, and what is there now."""
    if before == after:
        return {}
    pairs: list[tuple[str, object, object]] = []
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(before.keys() | after.keys())
        pairs = [(f"{path}.{key}", before.get(key), after.get(key)) for key in keys]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(before, after, strict=True))]
    if not pairs:
        return {path: (before, after)}
    return {k: v for pair in pairs for k, v in differences(pair[1], pair[2], pair[0]).items()}
