"""How many tools a start of the daemon runs: each is a process that a small cluster waits for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.host import PROGRAMS, Host

from kpctl.places.network import PrivateNetwork

pytestmark = pytest.mark.kernel

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, ports: [{name: web, port: 80, targetPort: 8080}]}
"""


class CountedTools:
    """The tools of one variant, first in PATH, with a line in a file for each run."""

    def __init__(self, folder: Path, variant: str) -> None:
        folder.mkdir()
        self._folder = folder
        self._log = folder / "runs"
        for family in ("iptables", "ip6tables"):
            for suffix in ("", "-save", "-restore"):
                self._wrap(f"{family}-{variant}{suffix}")

    def _wrap(self, name: str) -> None:
        real, script = shutil.which(name), self._folder / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._log}\nexec {real} "$@"\n')
        script.chmod(0o755)

    def program(self) -> tuple[str | Path, ...]:
        return (
            "/bin/sh",
            "-c",
            f'PATH={self._folder}:$PATH exec "$0" "$@"',
            PROGRAMS / "kube-proxy",
        )

    def take(self) -> list[str]:
        """The runs since the last call."""
        runs = self._log.read_text().splitlines()
        self._log.unlink()
        return runs


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    network = PrivateNetwork()
    host = Host(network, tmp_path)
    try:
        yield host
    finally:
        host.close()
        network.close()


def serve(host: Host, tools: CountedTools, variant: str) -> list[str]:
    """Start the daemon, stop it once it serves, and return the tools it ran."""
    before = host.log.count('"Serving"') if host.manifests.with_name("log").exists() else 0
    process = host.start(
        "--proxy-mode=iptables", f"--iptables-variant={variant}", program=tools.program()
    )
    host.until(lambda: host.log.count('"Serving"') > before, "serving")
    assert host.stop(process) == 0
    return tools.take()


@pytest.mark.parametrize("variant", ["legacy", "nft"])
def test_a_start_runs_few_tools(host: Host, tmp_path: Path, variant: str) -> None:
    """Both families: a version, a rehearsal, the canary, two listings and two restores each.

    A restart has nothing to restore. Legacy tables that are empty need no listing, but whether
    the canary or the reading comes first is open.
    """
    (host.manifests / "web.yaml").write_text(SERVICE)
    tools = CountedTools(tmp_path / "tools", variant)
    cold = serve(host, tools, variant)
    assert len(cold) <= 14, cold
    again = serve(host, tools, variant)
    assert len(again) <= 8, again
    assert not any("--counters" in run for run in again), "nothing is written"
